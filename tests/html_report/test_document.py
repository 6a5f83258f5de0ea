"""What a page holds is what the trace holds."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands.trace import command as trace
from kernbench.errors import ConfigError
from kernbench.html_report import check_report_path, page_of, read_page, source_of_trace, write_report
from kernbench.html_report.columns import Columns, folded, unfolded, unpacked
from kernbench.html_report.flame import flame_of
from kernbench.html_report.page import LIBRARY
from kernbench.html_report.tracks import TypeTable, add_spans, groups_of, rows_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.trace import Timeline, write_chrome_trace
from kernbench.trace.critical import critical_path
from kernbench.trace.reading import TraceFile
from kernbench.trace.spans import HOST, Span

WHOLE = st.lists(st.integers(0, 2**52), max_size=50)


@given(WHOLE, WHOLE)
def test_columns_are_what_was_put_in(first: list[int], second: list[int]) -> None:
    columns = Columns()
    columns.add("first", first)
    columns.add("second", np.array(second, np.int64))
    header, found = unpacked(columns.packed({"title": "</script>"}))
    assert header["title"] == "</script>"
    assert found.column("first").tolist() == first
    assert found.column("second").tolist() == second
    assert unfolded(folded(np.array(first, np.int64))).tolist() == first


def test_a_negative_number_has_no_column() -> None:
    with pytest.raises(ValueError, match="'gap': -1 is negative"):
        Columns().add("gap", [0, -1])


def spans_in(path: Path) -> list[tuple[object, ...]]:
    """Rank, stream's first word, name, kind, begin and end (ns), bytes, group, sequence: of each span of a page."""
    header, columns = read_page(path)
    gap, length = columns.column("gap"), columns.column("length")
    kinds, calls = columns.column("type"), unfolded(columns.column("call"))
    spans, place = [], 0
    for rank, track, count in header["rows"]:
        now = 0
        for _ in range(count):
            name, kind, nbytes, detail = header["types"][kinds[place]]
            begin = now + int(gap[place])
            now = begin + int(length[place])
            call = header["calls"][calls[place] - 1] if calls[place] else [None, None]
            group = header["details"][detail].get("group") if calls[place] else None
            spans.append((rank, track.partition(" ")[0], name, kind, begin, now, nbytes, group, call[1]))
            place += 1
    assert place == len(gap)
    return spans


def test_a_page_has_every_span_to_the_nanosecond(reported: RuntimeContext, page: Path) -> None:
    wanted = [
        (
            span.rank, span.track.partition(" ")[0], span.name, span.kind, round(span.begin * 1e9), round(span.end * 1e9),
            span.nbytes, *((span.detail["group"], span.detail["sequence"]) if "sequence" in span.detail else (None, None)),
        )
        for span in Timeline.of(reported).spans
    ]  # fmt: skip
    assert len(wanted) > 100
    assert sorted(spans_in(page), key=str) == sorted(wanted, key=str)


def test_a_page_has_the_critical_path(reported: RuntimeContext, page: Path) -> None:
    header, columns = read_page(page)
    begin, length = unfolded(columns.column("path_begin")), columns.column("path_length")
    rows = [header["rows"][row][0] for row in columns.column("path_row")]
    steps = [step for step in critical_path(Timeline.of(reported).spans) if step.span is not None]
    assert rows == [step.span.rank for step in steps if step.span is not None]
    assert begin.tolist() == [round(step.begin * 1e9) for step in steps]
    assert (begin + length).tolist() == [round(step.end * 1e9) for step in steps]


def test_rows_do_not_overlap(reported: RuntimeContext) -> None:
    for row in rows_of(Timeline.of(reported).spans):
        assert all(before.end <= after.begin for before, after in zip(row.spans, row.spans[1:], strict=False))


def test_operations_have_shapes_and_the_lines_that_led_to_them(page: Path) -> None:
    header, columns = read_page(page)
    seen = {header["types"][place][0]: header["details"][header["types"][place][3]] for place in columns.column("type")}
    product = seen["mm.default"]
    assert product["shapes"] == "float32[64, 64], float32[64, 64] -> float32[64, 64]"
    assert product["flops"] == 2 * 64**3
    assert re.search(r"tests/trace/conftest\.py:\d+ in layers$", product["stack"][-1])
    assert seen["all_reduce"]["shapes"] == "[100000]"
    assert product["stack"][-1] != seen["all_reduce"]["stack"][-1]


def test_the_flame_adds_up(reported: RuntimeContext) -> None:
    spans = [span for span in Timeline.of(reported).spans if span.track != HOST and "stack" in span.detail]
    nodes = flame_of(spans)
    assert sum(took for parent, _, _, took, _ in nodes if parent < 0) == pytest.approx(sum(s.seconds for s in spans))
    for place, (_, _, kind, took, calls) in enumerate(nodes):
        inside = [node for node in nodes if node[0] == place]
        assert bool(inside) != bool(kind)
        if inside:
            assert sum(node[3] for node in inside) == pytest.approx(took)
            assert sum(node[4] for node in inside) == calls


def test_ranks_that_do_the_same_are_one_group() -> None:
    """Of six ranks, the odd ones do one operation more; times differ everywhere."""
    spans = [
        Span(rank, rank, "compute", f"op{number}", "math", number + 0.1 * rank, number + 0.1 * rank + 0.3)
        for rank in range(6)
        for number in range(3 + rank % 2)
    ]
    groups = groups_of(rows_of(spans), critical_path(spans))
    assert [group.ranks for group in groups] == [(0, 2, 4), (1, 3, 5)]
    assert groups[1].shown == 5  # it ends last


def test_an_interval_that_rounding_has_left_beside_its_span_is_none() -> None:
    """Times of traces are rounded: a span may be a little shorter than the least it should take."""
    columns = Columns()
    add_spans(
        columns, rows_of([Span(0, 0, "compute", "op", "math", 0, 1e-6, interval=(1.005e-6, 1.3e-6))]), TypeTable()
    )
    assert (columns.column("below").tolist(), columns.column("above").tolist()) == ([0], [300])


def test_names_are_no_markup(tmp_path: Path) -> None:
    name = '</script><script>alert("größer 大")</script>'
    spans = (Span(0, 0, "compute", name, "math", 0.0, 1e-6, detail={"note": name}),)
    text = page_of(source_of_trace(TraceFile(name, spans, {}), "x.json"))
    assert "alert(" not in text.replace("&lt;script&gt;alert(", "")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    header, _ = read_page(tmp_path / "page.html")
    assert header["types"] == [[name, "math", 0, 0]]
    assert header["details"] == [{"note": name}]
    assert header["title"] == name


def test_the_page_loads_nothing(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)\s*=\s*\"(?!data:)", text) == []
    assert "Apache License" in text


def test_the_library_is_as_its_makers_published_it() -> None:
    file = resources.files("kernbench.html_report") / "page" / "vendor" / LIBRARY.file
    data = file.read_bytes()
    assert hashlib.sha256(data).hexdigest() == LIBRARY.sha256
    assert f'version="{LIBRARY.version}"'.encode() in data or f'"{LIBRARY.version}"'.encode() in data


def test_equal_runs_give_equal_pages(reported: RuntimeContext, page: Path, tmp_path: Path) -> None:
    from tests.html_report.conftest import source_of

    write_report(tmp_path / "again.html", source_of(reported))
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


@pytest.mark.parametrize(
    ("name", "message"), [("report.pdf", "ends in .html"), ("no/where.html", "there is no folder")]
)
def test_a_report_has_a_place_before_the_program_runs(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_report_path(tmp_path / name)


def test_a_trace_becomes_a_page(reported: RuntimeContext, page: Path, tmp_path: Path) -> None:
    write_chrome_trace(reported, tmp_path / "trace.json")
    result = CliRunner().invoke(trace, ["report", str(tmp_path / "trace.json"), str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    assert sorted(spans_in(tmp_path / "page.html"), key=str) == sorted(spans_in(page), key=str)


def test_a_page_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<html></html>")
    with pytest.raises(ConfigError, match="not written by kernbench run --report"):
        read_page(tmp_path / "page.html")
