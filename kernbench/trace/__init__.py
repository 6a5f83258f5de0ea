"""The timeline of a simulation: exported, summed up, drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernbench.output_files import require_place, write_file
from kernbench.sim_engine.engine import GraphEngine
from kernbench.trace.chrome import write_chrome_trace
from kernbench.trace.picture import timeline_picture
from kernbench.trace.spans import ChunkStep, Span
from kernbench.trace.summary import CollectiveSummary, RankSummary, Summary, summary
from kernbench.trace.timeline import MAX_STEPS, HasEngine, Timeline

__all__ = [
    "MAX_STEPS",
    "ChunkStep",
    "CollectiveSummary",
    "RankSummary",
    "Span",
    "Summary",
    "Timeline",
    "check_trace_path",
    "plot_timeline",
    "summary",
    "write_chrome_trace",
    "write_trace",
]


def plot_timeline(
    source: HasEngine | GraphEngine,
    path: str | Path,
    *,
    begin: float = 0.0,
    end: float | None = None,
    width: int = 1100,
    title: str = "",
) -> None:
    """Draw the timeline of ``source`` into an SVG file.

    Args:
        source: a context or an engine.
        path: the file.
        begin, end: the part to draw, virtual seconds; default: all.
        width: pixels.
        title: default: the context's ``correlation_id``.
    """
    write_file(path, timeline_picture(Timeline.of(source), begin, end, width, title))


_WRITERS: dict[str, Callable[[Any, Path], None]] = {
    ".json": write_chrome_trace,
    ".json.gz": write_chrome_trace,
    ".svg": plot_timeline,
}


def check_trace_path(path: str | Path) -> str:
    """The suffix that says in which form :func:`write_trace` writes ``path``.

    Raises :class:`ConfigError` if it is none that there is, or it cannot be written there.
    """
    return require_place(path, *_WRITERS)


def write_trace(source: HasEngine | GraphEngine, path: str | Path) -> None:
    """Write the timeline of a context or an engine in the form that the suffix says.

    ``.json`` and ``.json.gz``: Chrome trace (:func:`write_chrome_trace`); ``.svg``: picture (:func:`plot_timeline`).
    """
    _WRITERS[check_trace_path(path)](source, Path(path))
