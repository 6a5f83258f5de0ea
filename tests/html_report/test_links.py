"""Links in a page: bytes to the byte, the graph, and bandwidths beside their limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.html_report import read_page, source_of_trace, write_report
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology import resolve_topology
from kernbench.trace import Timeline
from kernbench.trace.bus_bandwidth import bus_bandwidths
from kernbench.trace.reading import TraceFile
from tests.html_report.conftest import Opened, source_of


def _reduces(rank: int) -> None:
    dist.init_process_group("nccl")
    for _ in range(2):
        dist.all_reduce(torch.empty(1 << 20, device="cuda"))


@pytest.fixture(scope="module")
def reduced() -> Iterator[RuntimeContext]:
    with kernbench.simulate("dgx_a100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(_reduces, nprocs=8)
        yield ctx


def test_a_page_has_what_links_carried(reduced: RuntimeContext, opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "links.html"
    write_report(path, source_of(reduced))
    sent = {}
    for step in Timeline.of(reduced, max_steps=None).messages:
        for link in step.links:
            name = reduced.engine.topology.links[link].name
            sent[name] = sent.get(name, 0) + step.nbytes
    header, columns = read_page(path)
    traffic = header["traffic"]
    nbytes = columns.column("link_bytes").reshape(len(traffic["links"]), -1)
    np.testing.assert_allclose(
        nbytes.sum(axis=1), [sent[name] for name, _, _ in traffic["links"]], atol=nbytes.shape[1]
    )
    assert {name for name, _, _ in traffic["links"]} == set(sent)
    told = opened(
        path,
        """
      const chart = (id) => charts.find(({ chart }) => chart.getDom().id === id).chart;
      const graph = chart("topology-chart"), { links, data } = graph.getOption().series[0];
      told.points = data.map(({ name }) => name);
      told.links = links.map(({ link }) => link);
      const [a, b, bend] = graph.getModel().getSeriesByIndex(0).getGraph().edges[0].getLayout();
      click(graph, (a[0] + 2 * bend[0] + b[0]) / 4, (a[1] + 2 * bend[1] + b[1]) / 4);
      told.chosen = links[0].link;
      told.whole = document.getElementById("link-words").textContent;
      const moment = document.getElementById("link-moment");
      moment.value = 100;
      moment.dispatchEvent(new Event("input"));
      told.part = document.getElementById("link-words").textContent;
      const lines = [...document.querySelectorAll("#bandwidths tbody tr")];
      told.bandwidths = lines.map((row) => [...row.cells].map((cell) => cell.innerText));
    """,
    )
    assert told["wrong"] == []
    assert told["points"] == [*(f"sip{number}" for number in range(8)), "switch0"]
    assert set(told["links"]) == set(sent)
    row = [name for name, _, _ in traffic["links"]].index(told["chosen"])
    assert told["whole"].startswith(f"{told['chosen']}: {int(nbytes[row].sum()):,} bytes")
    assert told["part"].startswith(f"{told['chosen']}: {int(nbytes[row, 99]):,} bytes")
    (reached,) = bus_bandwidths(reduced.engine)
    assert reached.limit is not None
    (shown,) = told["bandwidths"]
    assert shown[0] == "all_reduce"
    assert [shown[2], shown[3], shown[4], shown[5]] == ["8", "1", "4 MiB", "2"]
    assert shown[8] == f"{float(f'{reached.busbw / 1e9:.4g}'):g} GB/s"
    assert shown[10] == f"{100 * reached.busbw / reached.limit:.1f} %"


@pytest.mark.parametrize(("name", "nodes"), [("mi300x", 1), ("sip8", 1), ("dgx_h100", 6)])
def test_every_link_that_is_drawn_has_two_points(name: str, nodes: int) -> None:
    with kernbench.simulate(resolve_topology(name, nodes=nodes), enable_data=False) as ctx:
        ctx.multiprocessing.spawn(_reduces, nprocs=len(ctx.sips))
        source = source_of(ctx)
    assert source.links is not None
    graph = source.links.header["graph"]
    points = {point for point, _, _ in graph["points"]}
    places = {(x, y) for _, x, y in graph["points"]}
    assert len(places) == len(points)
    assert {end for a, b, _ in graph["edges"] for end in (a, b)} <= points
    drawn = {link for _, _, link in graph["edges"]} - {""}
    assert graph["nodes"] == min(nodes, 4)
    if nodes == 1:
        assert {link for link, kind, _ in source.links.header["links"] if kind == "sip"} <= drawn


def test_a_trace_has_no_links(opened: Opened, tmp_path: Path) -> None:
    write_report(tmp_path / "trace.html", source_of_trace(TraceFile("t", (), {}), "t"))
    told = opened(tmp_path / "trace.html", 'told.hidden = document.getElementById("links").hidden;')
    assert told["wrong"] == []
    assert told["hidden"]
