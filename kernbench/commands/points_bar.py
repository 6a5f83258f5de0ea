"""The bar that the points of a study advance, and what is said beside it: the same for every command that runs many."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def points_bar(title: str) -> Iterator[Callable[[object, int, int], None]]:
    """For a block, a bar on standard error where that is a terminal, and what moves it; warnings of journals as lines there."""
    from kernbench.sweep.journal import JournalWarning

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, markup=False)
    with warnings.catch_warnings(), Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        warnings.simplefilter("always", JournalWarning)
        other = warnings.showwarning
        line = bar.add_task(title, total=None)

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, JournalWarning):
                click.echo(f"warning: {message}", err=True)
            else:
                other(message, category, *where, **more)

        def advance(_: object, done: int, total: int) -> None:
            bar.update(line, completed=done, total=total)

        warnings.showwarning = show
        yield advance
