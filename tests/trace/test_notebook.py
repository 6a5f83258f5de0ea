"""What notebooks show of contexts, timelines, summaries and failures."""

from __future__ import annotations

import re
from base64 import b64decode
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.trace import Timeline, summary
from kernbench.trace.rank_times import rank_times


class Cells(HTMLParser):
    """The texts of tables' cells, row by row; all elements are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        assert tag == "img"

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] in (["td"], ["th"]):
            self.rows[-1][-1] += data


def picture_in(page: str) -> ElementTree.Element:
    found = re.search(r"data:image/svg\+xml;base64,([^\"]+)", page)
    assert found is not None
    return ElementTree.fromstring(b64decode(found[1]))


def worker(rank: int) -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    dist.all_reduce(torch.ones(1 << 16, device="cuda"))


def test_a_context_shows_its_ranks_and_its_timeline() -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        before = Cells(ctx._repr_html_()).rows
        ctx.multiprocessing.spawn(worker, nprocs=4)
        page, times = ctx._repr_html_(), rank_times(ctx.simulation)
        assert ctx._repr_html_() == page
    assert before == []
    head, *rows = Cells(page).rows
    assert head[:3] == ["rank", "time", "compute"]
    assert [(row[0], row[1]) for row in rows] == [(str(each.rank), f"{each.total * 1e3:.4f} ms") for each in times]
    texts = [each.text for each in picture_in(page).iter("{http://www.w3.org/2000/svg}text")]
    assert any("rank 3" in (text or "") for text in texts)
    assert "<style" not in page  # it would hold for the whole notebook


def test_a_timeline_is_its_picture_and_a_summary_its_tables() -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        timeline, figures = Timeline.of(ctx), summary(ctx)
    assert picture_in(timeline._repr_html_()).tag.endswith("svg")
    rows = Cells(figures._repr_html_()).rows
    assert [row[0] for row in rows] == ["rank", "0", "1", "collective", "all_reduce"]
    (call,) = figures.collectives
    assert rows[-1][1:4] == [str(call.calls), str(call.payload), str(call.moved)]


def stuck(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank:
        dist.barrier()


def test_a_failure_says_first_what_it_is() -> None:
    with pytest.raises(kernbench.SpawnException) as caught, kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(stuck, nprocs=2)
    error = caught.value
    shown = error._repr_html_()
    Cells(shown)
    assert re.search(r"<b>rank 1: DeadlockError: deadlock: ", shown)
    assert "To go on: rank 0 must call barrier" in shown
    lines = "\n".join(error._render_traceback_()).splitlines()
    assert lines[0].startswith("rank 1: DeadlockError: deadlock: ")
    assert re.search(rf"  at {re.escape(__file__)}:\d+ in test_a_failure_says_first_what_it_is: ", lines[-1])


def test_an_error_of_one_line_is_shown_once_and_as_text() -> None:
    with pytest.raises(kernbench.ConfigError) as caught, kernbench.simulate("<b>no such"):
        pass
    lines = "\n".join(caught.value._render_traceback_()).splitlines()
    assert sum("no such" in line for line in lines if not line.startswith("  at ")) == 1
    assert not [line for line in lines if "contextlib" in line]
    assert "&lt;b&gt;no such" in caught.value._repr_html_()
