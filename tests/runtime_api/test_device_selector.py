"""Which SIPs a context may use."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench
from kernbench.errors import ConfigError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.types import DeviceSelector
from kernbench.sim_engine.engine import GraphEngine


@pytest.mark.parametrize(
    ("selection", "sips"),
    [
        ("all", list(range(8))),
        (3, [3]),
        (np.int64(3), [3]),
        (np.array([5, 1]), [5, 1]),
        ([5, 1], [5, 1]),
        (range(2, 8, 2), [2, 4, 6]),
        ((0,), [0]),
    ],
)
def test_selections(selection, sips):
    assert DeviceSelector(selection).resolve(8) == sips


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        ("some", "expected 'all'"),
        (8, "no SIP 8"),
        ([0, 0], "twice"),
        ([], "nothing"),
        ([1.5], "integers"),
        (1.5, "integers"),
        (True, "integers"),
        (-1, "no SIP -1"),
    ],
)
def test_wrong_selections(selection, text):
    with pytest.raises(ConfigError, match=text):
        DeviceSelector(selection).resolve(8)


def test_ranks_drive_the_selected_sips():
    driven = {}
    with kernbench.simulate(devices=[6, 2]) as ctx:
        assert ctx.accelerator.device_count() == 2

        def worker(rank):
            driven[rank] = (
                ctx.accelerator.current_device_index(),
                ctx.simulation.storages.of(ctx.ones(1)).allocation.sip,
            )

        ctx.multiprocessing.spawn(worker, nprocs=2)
        with pytest.raises(ConfigError, match="does not fit the 2 SIPs selected"):
            ctx.multiprocessing.spawn(worker, nprocs=3)
    assert driven == {0: (0, 6), 1: (1, 2)}


def test_a_context_made_by_hand_works_without_with(topology, spec):
    ctx = RuntimeContext(
        engine=GraphEngine(topology.topology_obj, enable_data=True),
        target_device=DeviceSelector("all"),
        correlation_id="by hand",
        spec=spec,
    )
    seen = []

    def worker(rank, world_size, torch):
        x = torch.full((4,), float(rank), dtype="f16")
        torch.launch(lambda program, y: y.add_(1), 1, x)
        torch.distributed.all_reduce(x)
        seen.append(x.tolist())

    count = spec["system"]["sips"]["count"]
    ctx.multiprocessing.spawn(worker, args=(count, ctx), nprocs=count)
    assert seen == [[sum(range(1, count + 1))] * 4] * count
    assert ctx._pending_worker_waits == []
    ctx.close()
