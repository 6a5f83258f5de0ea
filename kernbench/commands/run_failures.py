"""How ``kernbench run`` shows that a program has failed: at once, once, and without the simulator's own frames."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TextIO

import click

from kernbench.advice import advice_for
from kernbench.errors import HiddenBlockingError, NoProgressError, kind_of
from kernbench.processes.rank_process import RankDiedError
from kernbench.scheduler import Rank, user_traceback
from kernbench.simulation.ranks.failures import SpawnException, headed, place_of
from kernbench.standard_output import LostOutput, require_output
from kernbench.trace.memory_report import notes_that_python_hides

_ENDED_FROM_HERE = (RankDiedError, HiddenBlockingError, NoProgressError)
"""What a rank's process cannot have shown itself."""


class ShownFailures:
    """Shows the first rank that fails when it does, before what the others say while they are unwound.

    Args:
        stream: where to; by default what ``sys.stderr`` is now, so without a rank's prefix.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = 0

    def first(self, rank: Rank) -> None:
        """A rank has failed."""
        try:
            require_output()
        except LostOutput:
            return  # that is why, and it is said in the end
        if exit_status(rank.error) is None:
            self._show(headed(rank, rank.traceback))
        self._shown = 1

    def all(self, error: SpawnException) -> dict[int, BaseException]:
        """The run has ended: show the others, and sum up. Gives the errors by rank."""
        require_output()
        if status_of(error.errors) is None:
            for section in error.sections[self._shown :]:
                self._show(section)
        self._explain(error.errors.values(), "".join(error.sections))
        failed = ", ".join(f"rank {rank} ({_reason(cause)})" for rank, cause in error.errors.items())
        click.echo(f"kernbench: failed: {failed}", file=self._stream)
        return error.errors

    def joined(self, error: SpawnException) -> None:
        """Ranks started by other processes have failed: what they have not shown themselves is shown, once."""
        ended = [cause for cause in error.errors.values() if isinstance(cause, _ENDED_FROM_HERE)]
        for text in dict.fromkeys(map(str, ended)):
            self._show(f"kernbench: {text}")
        self._advise(error.errors.values())

    def script(self, error: BaseException, file: str) -> bool:
        """Show what a script that runs once has raised, from its own file on; false if that had no part in it."""
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != file:
            frames = frames.tb_next
        if frames is None:
            return False
        require_output()
        shown = user_traceback(error.with_traceback(frames))
        self._show(shown)
        self._explain([error], shown)
        click.echo(f"kernbench: failed: {_name(error)}", file=self._stream)
        return True

    def _explain(self, errors: Collection[BaseException], shown: str) -> None:
        """Print what is known of errors besides what was ``shown``, each once."""
        for line in notes_that_python_hides(errors, shown):
            click.echo(line, file=self._stream)
        self._advise(errors)

    def _advise(self, errors: Collection[BaseException]) -> None:
        for line in dict.fromkeys(filter(None, map(advice_for, errors))):
            click.echo(line, file=self._stream)

    def _show(self, text: str) -> None:
        with suppress(AttributeError, ValueError):  # the program has taken it away, or closed it
            sys.stdout.flush()  # what came before, in a file of both
        click.echo(text.strip(), file=self._stream)


def exit_status(error: BaseException | None) -> int | None:
    """What a process ends with whose program has given ``sys.exit`` a number, having said itself what is wrong; None: it failed
    otherwise. Never 0: the system takes the last byte of the number."""
    return error.code & 0xFF or 1 if isinstance(error, SystemExit) and isinstance(error.code, int) else None


def status_of(errors: Mapping[int, BaseException]) -> int | None:
    """The first rank's :func:`exit_status`, if every rank that failed has one."""
    found = [exit_status(error) for error in errors.values()]
    return None if None in found or not found else found[0]


def _reason(error: BaseException) -> str:
    status = exit_status(error)
    if status is None:
        return _name(error)
    place = place_of(error)
    return f"exit code {status}" + (f" at {place}" if place else "")


def _name(error: BaseException) -> str:
    return kind_of(error)[1].rpartition(".")[2]
