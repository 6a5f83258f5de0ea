"""``kernbench trace``: what a trace says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from kernbench.trace.report import NameTime, TraceReport


@click.group("trace")
def command() -> None:
    """Read traces: those of --trace, and Chrome traces of PyTorch's profiler."""


@command.command("summary")
@click.argument("path", metavar="FILE")
@click.option("--top", type=click.IntRange(1), default=12, show_default=True, help="Names to show, by time.")
@click.option(
    "--steps", type=click.IntRange(2), default=24, show_default=True, help="Steps of the critical path to show."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def summary(path: str, top: int, steps: int, as_json: bool) -> None:
    """Time by kernel and by collective, what overlaps, what is exposed, and the critical path."""
    from kernbench.trace.reading import read_trace
    from kernbench.trace.report import report_of

    trace = read_trace(path)
    report = report_of(trace.spans)
    if as_json:
        click.echo(json.dumps(report.as_data(), indent=1))
        return
    console = Console(width=110, highlight=False, markup=False)
    title = f"{trace.title}: " if trace.title else ""
    console.print(
        f"{title}{_us(report.length)} us, 80 % between {_us(report.low)} and {_us(report.high)}\n", markup=False
    )
    _ranks(console, report)
    _names(console, "kernels and copies", report.kernels, top, waits=False)
    _names(console, "collectives", report.collectives, top, waits=True)
    _path(console, report, steps)


@command.command("report")
@click.argument("path", metavar="FILE")
@click.argument("page", metavar="PAGE")
def report(path: str, page: str) -> None:
    """Write a page for the browser: PAGE, such as report.html, from a trace."""
    from kernbench.html_report import check_report_path, source_of_trace, write_report
    from kernbench.trace.reading import read_trace

    check_report_path(page)
    write_report(page, source_of_trace(read_trace(path), Path(path).name))


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"


def _share(seconds: float, whole: float) -> str:
    return f"{seconds / whole if whole else 0:.1%}"


_MOST_RANKS = 16


def _ranks(console: Console, report: TraceReport) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("rank", "compute", "exposed comm", "hidden comm", "copy", "host", "idle", "comm hidden"):
        table.add_column(name, justify="right")
    for line in report.ranks[:_MOST_RANKS]:
        shares = (line.compute, line.communication, line.overlapped, line.copy, line.host, line.idle)
        hidden = _share(line.overlapped, line.overlapped + line.communication)
        table.add_row(str(line.rank), *(_share(share, report.length) for share in shares), hidden)
    console.print(table)
    if len(report.ranks) > _MOST_RANKS:
        console.print(f"... and {len(report.ranks) - _MOST_RANKS} more ranks")
    console.print()


def _names(console: Console, title: str, lines: tuple[NameTime, ...], top: int, *, waits: bool) -> None:
    if not lines:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    console.print(f"{title}, all ranks, us")
    table.add_column("name", max_width=44, overflow="ellipsis", no_wrap=True)
    for name in ("calls", "time", "low", "high", "per call", "bytes", *(["waited for members"] if waits else [])):
        table.add_column(name, justify="right")
    for line in lines[:top]:
        row = [
            line.name,
            str(line.calls),
            _us(line.seconds),
            _us(line.low),
            _us(line.high),
            _us(line.seconds / line.calls),
        ]
        table.add_row(*row, f"{line.nbytes:,}", *([_us(line.waited)] if waits else []))
    console.print(table)
    if len(lines) > top:
        console.print(f"... and {len(lines) - top} more")
    console.print()


def _path(console: Console, report: TraceReport, most: int) -> None:
    shares = ", ".join(f"{name} {_share(took, report.length)}" for name, took in report.path_shares.items() if took)
    console.print(f"critical path, us: {shares}")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("at", "for"):
        table.add_column(name, justify="right")
    for name in ("rank", "track", "what"):
        table.add_column(name, no_wrap=True)
    path = report.path
    for number, step in enumerate(path):
        if len(path) > most and number == most // 2:
            table.add_row("", "", "", "", f"... {len(path) - most // 2 * 2} steps ...")
        if len(path) <= most or number < most // 2 or number >= len(path) - most // 2:
            span = step.span
            where = ("", "", "nothing") if span is None else (str(span.rank), span.track, span.name)
            table.add_row(_us(step.begin), _us(step.seconds), *where)
    console.print(table)
