"""A progress bar on standard error, on a terminal only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import click


class ProgressBar:
    """Counts to ``total``; a context manager. Lines written with :meth:`echo` stay above the bar."""

    def __init__(self, total: int, what: str) -> None:
        self._total = total
        self._what = what
        self._live: Any = None
        self._task: Any = None

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            # standard output is for the table: it may go to a file while the bar is on the terminal
            self._live = Progress(
                console=Console(stderr=True, markup=False), transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._task = self._live.add_task(self._what, total=self._total)
            self._live.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def advance(self) -> None:
        """One more is done."""
        if self._live is not None:
            self._live.advance(self._task)

    def echo(self, line: str) -> None:
        """Write ``line`` to standard output."""
        if self._live is None:
            click.echo(line)
            return
        self._live.stop()  # being transient, it clears the bar
        click.echo(line)
        self._live.start()
