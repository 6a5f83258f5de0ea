"""What ``spawn`` raises when ranks have failed."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import torch.multiprocessing

from kernbench.errors import CollectiveMismatchError, DeadlockError, KernbenchError, kind_of, message_of, own_attribute
from kernbench.scheduler import Rank
from kernbench.scheduler.tracebacks import is_programs
from kernbench.simulation.ranks.locations import is_pythons, is_users

_MOST_TRACEBACKS = 8


class SpawnException(KernbenchError, torch.multiprocessing.ProcessRaisedException):
    """One or more ranks raised.

    Attributes:
        errors: ``{rank: exception}`` of the root causes; ranks that were unwound because of them are not in it.
        sections: what the message consists of: the first that failed, and then the others.
        error_index: the first rank in it, as ``torch.multiprocessing.ProcessRaisedException`` has it.
        error_pid: a stand-in for the process id that handlers of that exception may print.
    """

    def __init__(self, failed: Sequence[Rank]) -> None:
        ordered = sorted(failed, key=lambda rank: rank.index)
        self.errors = {rank.index: rank.error for rank in ordered if rank.error is not None}
        self.sections = _sections(failed)
        message = "".join(f"\n\n{section}" for section in self.sections)
        first = ordered[0].index
        torch.multiprocessing.ProcessRaisedException.__init__(self, message, first, pid_of(first))

    def __reduce__(self) -> Any:
        return RuntimeError, (str(self),)

    @property
    def first_words(self) -> str:
        """The kind of what the first rank raised, and the first line of what it says."""
        rank, error = next(iter(self.errors.items()))
        others = f", and {len(self.errors) - 1} more" if len(self.errors) > 1 else ""
        return f"rank {rank}{others}: {kind_of(error)[1]}: {message_of(error).strip().partition(chr(10))[0]}"


def headed(rank: Rank, report: str) -> str:
    """What a rank failed with, under torch's heading."""
    return f"-- Process {rank.index} terminated with the following error:\n{report}"


def _sections(failed: Sequence[Rank]) -> tuple[str, ...]:
    """The tracebacks of ranks that failed in this order: of the first, and then by number. Equal ones are shown once."""
    told: dict[str, int] = {}
    alike: dict[str, list[Rank]] = {}
    for rank in [*failed[:1], *sorted(failed[1:], key=lambda rank: rank.index)]:
        alike.setdefault(_once(rank, told), []).append(rank)
    sections = []
    for report, (rank, *others) in [*alike.items()][:_MOST_TRACEBACKS]:
        if report.startswith(_SAME):
            numbers = ", ".join(str(each.index) for each in (rank, *others))
            sections.append(f"-- Process {numbers}: {report.removeprefix(_SAME)}\n")
            continue
        numbers = ", ".join(str(each.index) for each in others)
        sections.append(headed(rank, report) + (f"The same in process {numbers}.\n" if others else ""))
    if len(alike) > _MOST_TRACEBACKS:
        sections.append(f"... and {len(alike) - _MOST_TRACEBACKS} more: see .errors")
    return tuple(sections)


_SAME = "\0"


def _once(rank: Rank, told: dict[str, int]) -> str:
    """A rank's traceback. What another rank has reported, whom ``told`` names, is a line: where this one was."""
    assert rank.error is not None
    shared = isinstance(rank.error, (DeadlockError, CollectiveMismatchError))
    if not shared or (first := told.setdefault(message_of(rank.error), rank.index)) == rank.index:
        return rank.traceback
    place = place_of(rank.error)
    return f"{_SAME}{type(rank.error).__name__}, in the report of process {first} above{place and f'; at {place}'}"


def place_of(error: BaseException) -> str:
    """``FILE:LINE in FUNCTION``: the innermost line of the program's own files that led to an exception; empty without one.

    Of one that has come from another process, what :func:`tell_place` has been given.
    """
    frames = traceback.extract_tb(own_attribute(error, "__traceback__"))
    place = next((each for each in reversed(frames) if _is_programs(each.filename)), None)
    if place is not None:
        return f"{place.filename}:{place.lineno} in {place.name}"
    return str(own_attribute(error, "__dict__").get(_PLACE, ""))


def _is_programs(filename: str) -> bool:
    return is_programs(filename) and is_users(filename) and not is_pythons(filename)


def tell_place(error: BaseException, place: str) -> None:
    """Note where an exception was raised that has no traceback here."""
    if place:
        own_attribute(error, "__dict__")[_PLACE] = place


_PLACE = "_kernbench_place"


def pid_of(rank: int) -> int:
    """The number that stands for a process id of a simulated rank: never one of a real process."""
    return -(rank + 1)
