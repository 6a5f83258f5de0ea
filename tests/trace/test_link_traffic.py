"""Traffic per link over time, and the bandwidth that collectives reached."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.cost import collective_time
from kernbench.topology import resolve_topology
from kernbench.trace import Timeline
from kernbench.trace.bus_bandwidth import bus_bandwidths
from kernbench.trace.link_traffic import link_traffic
from kernbench.trace.report import report_of

SIZE = 1 << 24


def _collectives(rank: int) -> None:
    dist.init_process_group("nccl")
    members = dist.get_world_size()
    whole = torch.empty(SIZE // 4, device="cuda")
    part = torch.empty(SIZE // 4 // members, device="cuda")
    if rank % 2:
        torch.cuda.current_stream().synchronize()
        whole.fill_(1)  # members do not come together
    dist.all_reduce(whole)
    dist.all_gather(list(whole.chunk(members)), part)
    dist.reduce_scatter(part, list(whole.chunk(members)))
    dist.broadcast(whole, 0)
    for _ in range(2):
        if rank == 0:
            dist.send(whole, 1)
        if rank == 1:
            dist.recv(whole, 0)


def _ran(name: str, nodes: int = 1) -> Any:
    handle = resolve_topology(name, nodes=nodes)
    context = kernbench.simulate(handle, enable_data=False)
    with context as ctx:
        ctx.multiprocessing.spawn(_collectives, nprocs=handle.topology_obj.sip_count)
        return ctx


@pytest.mark.parametrize("name", ["dgx_a100", "sip8"])
def test_links_carry_what_the_steps_of_collectives_send(name: str) -> None:
    ctx = _ran(name)
    timeline = Timeline.of(ctx, max_steps=None)
    traffic = link_traffic(ctx.engine, timeline.end, bins=50)
    sent: Counter[int] = Counter()
    bins = np.zeros((len(ctx.engine.topology.links), 50))
    edges = np.arange(51) * timeline.end / 50
    for step in timeline.messages:
        share = np.diff(np.clip((edges - step.begin) / (step.sent - step.begin), 0, 1))
        for link in step.links:
            sent[link] += step.nbytes
            bins[link] += step.nbytes * share
    assert dict(zip(traffic.links.tolist(), traffic.nbytes.sum(axis=1).tolist(), strict=True)) == pytest.approx(
        dict(sent)
    )
    np.testing.assert_allclose(traffic.nbytes, bins[traffic.links], rtol=1e-6, atol=1.0)
    assert traffic.coarse == 0


@pytest.mark.parametrize(("name", "nodes"), [("dgx_h100", 2), ("mi300x", 1)])
def test_what_goes_over_several_links_at_once_is_divided_and_none_is_lost(name: str, nodes: int) -> None:
    ctx = _ran(name, nodes)
    timeline = Timeline.of(ctx, max_steps=None)
    traffic = link_traffic(ctx.engine, timeline.end)
    assert traffic.nbytes.sum() == pytest.approx(sum(step.nbytes * len(step.links) for step in timeline.messages))
    topology = ctx.engine.topology
    kinds = [topology.links[link].kind for link in traffic.links.tolist()]
    assert set(kinds) == ({"sip", "nic"} if nodes > 1 else {"sip"})
    if nodes > 1:  # what crosses is divided among the NICs of a node
        names = [topology.links[link].src for link in traffic.links.tolist()]
        totals = dict(zip(names, traffic.nbytes.sum(axis=1).tolist(), strict=True))
        out = [totals[f"nic{number}"] for number in range(8)]
        assert min(out) > 0.3 * max(out)


def test_of_very_many_transfers_the_times_are_coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = _ran("dgx_a100")
    end = Timeline.of(ctx, max_steps=0).end
    fine = link_traffic(ctx.engine, end)
    monkeypatch.setattr("kernbench.trace.link_traffic._EXACT", 0)
    coarse = link_traffic(ctx.engine, end)
    assert coarse.coarse == len(ctx.engine.op_log.collectives)
    np.testing.assert_allclose(coarse.nbytes.sum(axis=1), fine.nbytes.sum(axis=1), rtol=1e-6)


def test_a_run_without_collectives_has_no_traffic() -> None:
    with kernbench.simulate("dgx_a100") as ctx:
        assert link_traffic(ctx.engine, 1.0).links.size == 0
        assert bus_bandwidths(ctx.engine) == []


def test_bandwidth_is_that_of_nccl_tests() -> None:
    """Size and factor are those of the model, and times those of the report."""
    ctx = _ran("dgx_a100")
    lines = {line.name: line for line in report_of(Timeline.of(ctx, max_steps=0).spans).collectives}
    found = {row.name: row for row in bus_bandwidths(ctx.engine)}
    assert {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send"} <= set(found)
    for name, row in found.items():
        if name == "send":
            assert (row.calls, row.members, row.nbytes) == (2, 2, SIZE)
            continue
        assert row.nbytes == SIZE
        assert row.seconds == pytest.approx(lines[name].seconds)
        model = collective_time("dgx_a100", name, SIZE, ranks=8, kind="kernel")
        assert row.algbw == pytest.approx(model.algbw, rel=0.02)
        assert row.busbw / row.algbw == pytest.approx(model.busbw / model.algbw)
        assert row.limit is not None
        assert row.busbw < row.limit
