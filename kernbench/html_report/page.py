"""The page: one file with everything in it, which opens from a disk without a network.

What the run consists of is one text of base64 (:mod:`kernbench.html_report.columns`), so nothing that a program names can be
taken for markup; the page's scripts put names into it as text only. The charting library is deflated in the same way. Its
licence is in the page, and what it is, and of which version, in :data:`LIBRARY`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import zlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from kernbench.errors import ConfigError
from kernbench.html_report.columns import Columns, unpacked
from kernbench.html_report.flame import flame_of
from kernbench.html_report.source import ReportSource
from kernbench.html_report.tracks import TypeTable, add_path, add_spans, groups_of, rows_of
from kernbench.input_files import MOST_OF_A_TRACE, read_text, shortened, shown_path
from kernbench.output_files import require_place, write_file
from kernbench.version import __version__


class BundledLibrary(NamedTuple):
    """A library of others that is part of the page."""

    name: str
    version: str
    licence: str
    file: str
    sha256: str
    source: str


LIBRARY = BundledLibrary(
    "Apache ECharts", "6.1.0", "Apache-2.0", "echarts.min.js",
    "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0",
    "https://registry.npmjs.org/echarts/-/echarts-6.1.0.tgz, package/dist/echarts.min.js",
)  # fmt: skip
"""Unchanged, as its makers publish it; a test computes the sum."""

SCRIPTS = (
    "data.js", "words.js", "bitmap.js", "timeline.js", "details.js", "charts.js", "frame.js", "failures.js", "links.js",
    "main.js",
)  # fmt: skip
"""The page's own scripts, in the order in which they run."""

_SKIP = '<a class="skip" href="#timeline">to the timeline</a>\n'

MARK = '<script id="kernbench-data" type="text/plain">'
"""Behind this stands what the run consists of."""


def write_report(path: str | Path, source: ReportSource) -> None:
    """Write the report of ``source`` to ``path``; a reader never sees half of one."""
    write_page(path, page_of(source))


def write_page(path: str | Path, page: str) -> None:
    """Write a page's HTML to ``path``, in the same way."""
    write_file(path, page)


def check_report_path(path: str | Path) -> None:
    """Raises ConfigError if no report can be written to ``path``."""
    require_place(path, ".html", ".htm")


def page_of(source: ReportSource) -> str:
    """The page's HTML."""
    header, columns = document_of(source)
    return filled(
        "report.html", SCRIPTS, source.title, columns.packed(header), skip=_SKIP,
        failure="\n".join(f"<pre>{html.escape(each['text'])}</pre>" for each in source.failures),
    )  # fmt: skip


def filled(sections: str, scripts: Sequence[str], title: str, data: str, *, skip: str = "", failure: str = "") -> str:
    """A page of the parts in the file ``sections``, with style, library and scripts.

    Args:
        data: what :meth:`Columns.packed` gave.
        skip, failure: HTML: a link past the head; what is shown without JavaScript.
    """
    return Template(_text("page.html")).substitute(
        title=html.escape(title),
        skip=skip,
        failure=failure,
        sections=_text(sections),
        style=_text("style.css"),
        library=_deflated_library(),
        library_name=f"{LIBRARY.name} {LIBRARY.version}",
        licences=html.escape(_licences()),
        version=__version__,
        data=data,
        scripts="\n".join(f"<script>\n{_text(name)}</script>" for name in scripts),
    )


def document_of(source: ReportSource) -> tuple[dict[str, object], Columns]:
    """What the page is made of, as JSON and columns."""
    rows = rows_of((*source.spans, *source.requests))
    figures = source.figures
    columns, types = Columns(), TypeTable()
    add_spans(columns, rows, types)
    add_path(columns, figures.path, rows)
    if source.links is not None:
        columns.add("link_bytes", source.links.nbytes.reshape(-1))
    header = {
        "format": "kernbench.report",
        "version": 1,
        "title": source.title,
        "subtitle": source.subtitle,
        "facts": source.facts,
        "notes": source.notes,
        "failures": source.failures,
        "findings": source.findings,
        "seconds": figures.length,
        "path_shares": figures.path_shares,
        "rank_times": [_fields(each) for each in figures.ranks],
        "kernels": [_fields(each) for each in figures.kernels],
        "collectives": [_fields(each) for each in figures.collectives],
        "steps": source.steps,
        "serving": source.serving,
        "memory": source.memory,
        "traffic": None if source.links is None else source.links.header,
        "peaks": source.peaks,
        "flame": flame_of(source.spans),
        "rows": [(row.rank, row.name, len(row.spans)) for row in rows],
        "groups": [(group.ranks, group.shown) for group in groups_of(rows, figures.path)],
        "types": types.rows,
        "details": types.details,
        "calls": types.calls,
    }
    return header, columns


def read_page(path: str | Path) -> tuple[dict[str, object], Columns]:
    """What a page was made of. Raises ConfigError if it is none of ours."""
    _, mark, rest = read_text(path, MOST_OF_A_TRACE).partition(MARK)
    if not mark:
        raise ConfigError(f"{shown_path(path)} was not written by kernbench run --report")
    try:
        return unpacked(rest.partition("</script>")[0])
    except ValueError as error:
        raise ConfigError(f"{shown_path(path)} is damaged: {shortened(error, 200)}") from None


def _fields(each: Any) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__slots__}


def _text(name: str) -> str:
    return _file(name).decode()


@cache
def _file(name: str) -> bytes:
    return resources.files("kernbench.html_report").joinpath("page", *name.split("/")).read_bytes()


@cache
def _deflated_library() -> str:
    data = _file(f"vendor/{LIBRARY.file}")
    if hashlib.sha256(data).hexdigest() != LIBRARY.sha256:
        raise ConfigError(f"{LIBRARY.file} is not that of {LIBRARY.name} {LIBRARY.version}: install kernbench again")
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def _licences() -> str:
    names: Sequence[str] = ("NOTICE", "LICENSE", "LICENSE-d3")
    return "\n\n".join(_text(f"vendor/{name}") for name in names)
