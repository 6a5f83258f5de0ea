"""The exceptions that users of kernbench see.

Every one is a :class:`KernbenchError`, so a program can tell what the simulator found from what the program itself
raised. Messages are written for the person who reads them: what happened, where (rank, operation, file:line), what to
do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST_OF_A_MESSAGE = 20_000
"""Characters of what an exception says that are shown."""


def message_of(error: BaseException) -> str:
    """What an exception says: also one that cannot say it, and of one that says very much the beginning."""
    try:
        text = str(error)
    except _RAISED_BY_PROGRAMS as reason:
        return f"<its __str__ raised {type(reason).__name__}>"
    if len(text) <= MOST_OF_A_MESSAGE:
        return text
    return f"{text[:MOST_OF_A_MESSAGE]}... (shortened: the message has {len(text):,} characters)"


_RAISED_BY_PROGRAMS = (Exception, SystemExit, GeneratorExit)
"""What methods of a program's exceptions may raise. A signal, which ends the run meanwhile, is none of it."""


def notes_of(error: BaseException) -> list[str]:
    """What has been added to an exception, whatever that is: each as text, of one that says very much the beginning."""
    try:
        notes = getattr(error, "__notes__", None)
        if not isinstance(notes, list | tuple):
            return []
        return [(each if isinstance(each, str) else repr(each))[:MOST_OF_A_MESSAGE] for each in notes]
    except _RAISED_BY_PROGRAMS as reason:
        return [f"<its notes raised {type(reason).__name__}>"]


def own_attribute(error: BaseException, name: str) -> Any:
    """What Python itself keeps of an exception (``__traceback__``, ``__cause__``), whatever its class answers."""
    return vars(BaseException)[name].__get__(error)


def kind_of(error: BaseException) -> tuple[str, str]:
    """Module and qualified name of an exception's class, whatever that answers."""
    kind = type(error)
    name = str(vars(type)["__qualname__"].__get__(kind))
    try:
        return str(kind.__module__), name
    except _RAISED_BY_PROGRAMS:
        return "builtins", name


class KernbenchError(RuntimeError):
    """Base class of every error that kernbench raises on its own account.

    Attributes:
        ranks: of a kernel's error, those whose programs it concerns; empty: not known.
        exit_code: of a command that ends with it: 1, or 2 if the command line or a description is wrong.
    """

    ranks: tuple[int | None, ...] = ()
    exit_code = 1

    @property
    def first_words(self) -> str:
        """Its kind, and the first line of what it says."""
        return f"{type(self).__name__}: {message_of(self).strip().partition(chr(10))[0]}"

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        from kernbench.notebook_html import failure

        return failure(self.first_words, message_of(self))

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints where it is raised: what it says, then the program's lines that led to it."""
        from kernbench.notebook_html import program_places, with_cells, without_repetition

        return [*map(with_cells, (*without_repetition(self.first_words, message_of(self)), *program_places(self)))]


def substitute(kind: tuple[str, str], said: str) -> KernbenchError:
    """What stands for an exception whose object cannot be had here: an error that has its name and says what it has said.

    ``kind``: as :func:`kind_of` gives it.
    """
    module, name = kind
    own = {"__module__": module, "__qualname__": name}
    error: KernbenchError = type(name.rpartition(".")[2], (KernbenchError,), own)(said)
    return error


def usable(error: BaseException) -> BaseException:
    """An exception; what stands for it if it does not even answer what it is an instance of."""
    try:
        isinstance(error, KernbenchError)
    except _RAISED_BY_PROGRAMS:
        return substitute(kind_of(error), message_of(error))
    return error


class ConfigError(KernbenchError, ValueError):
    """A system description, ``ccl.yaml`` or an option is wrong. The message names file, key path, line and what was
    expected, for all problems at once.

    Attributes:
        remedy: a setting that would help, by its name in Python, and the value: the message has it as ``name=value``.
    """

    exit_code = 2
    remedy: tuple[str, int] | None = None


class OutputError(KernbenchError, OSError):
    """A file that was asked for cannot be written: the disk is full, say. Of a file that was there before nothing is lost."""


class CallError(KernbenchError, ValueError):
    """A collective or a message was called with arguments that do not fit each other or the group."""


class DeadlockError(KernbenchError):
    """No rank can run and nothing is in flight. The message holds the wait-for cycle and one line per rank.

    Attributes:
        waits_for: of each rank that waits for others, these; empty where not determined.
        doing: what the ranks of the message do, in words.
    """

    waits_for: Mapping[int, Sequence[int]] = {}
    doing: Mapping[int, str] = {}


class HiddenBlockingError(KernbenchError):
    """A rank blocks its thread, and nothing in the process can wake it. The message has been written to ``stderr`` before."""


class NoProgressError(KernbenchError):
    """No rank has come further for as long as ``--hang-after`` says. The message says where every rank was. It is raised
    in the rank that ran; in main, if that goes on all the same."""


class CollectiveMismatchError(KernbenchError):
    """Ranks of one group issued collectives that do not match (operation, shape, dtype, order or root). Raised before
    any data moves, in every rank concerned.

    Attributes:
        group: where they were called; empty: not known.
        sequence: the collective's number in the group, -1 for a message.
        sides: what the ranks that have come called: of each the operation and its arguments by name, and the line (``"at"``).
    """

    group: str = ""
    sequence: int = -1
    sides: Mapping[int, Mapping[str, str]] = {}

    @classmethod
    def between(
        cls, text: str, group: str, sequence: int, sides: Mapping[int, Mapping[str, str]]
    ) -> CollectiveMismatchError:
        """One that says who called what, besides in its ``text``."""
        error = cls(text)
        error.group, error.sequence, error.sides = group, sequence, sides
        return error

    def again(self) -> CollectiveMismatchError:
        """The same for another rank, with a traceback of its own."""
        return self.between(str(self), self.group, self.sequence, self.sides)


class MemoryAccessError(KernbenchError):
    """A kernel or a copy reached outside a live allocation. The message names tensor, program id and source line."""


class RaceError(MemoryAccessError):
    """Two accesses to the same memory that nothing orders, at least one of which writes. Raised at the second one, in the rank
    that does it. The message names both, and what would order them."""


class UndefinedMemoryError(MemoryAccessError):
    """The program looks at memory that is unwritten since it was allocated. The message names both lines."""


class OutOfMemoryError(KernbenchError, MemoryError):
    """A modelled memory (HBM, SRAM, TCM) has no room for an allocation."""
