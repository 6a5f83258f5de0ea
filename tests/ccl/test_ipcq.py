"""The queue's closed form against its message-by-message recurrence, and what each parameter does to the timeline."""

from __future__ import annotations

import math

import numpy as np
import pytest

import kernbench
from kernbench.ccl.config import load_ccl_config
from kernbench.ccl.ipcq import QueueCosts

BANDWIDTH, LATENCY, HOPS = 64e9, 120e-9, 3.0


def config_with(**values):
    config = load_ccl_config()
    entry = config.algorithms["ring_allreduce"].model_copy(update=values)
    return config.model_copy(update={"algorithms": {**config.algorithms, "ring_allreduce": entry}})


def costs_with(topology, **values):
    return QueueCosts.of(topology.topology_obj, config_with(**values).select(), "fp32")


def recurrence(costs, nbytes, reduces):
    """Send messages one by one: each leaves one period after the one before it, or when a slot is free again."""
    share = nbytes / costs.queues
    wire = BANDWIDTH / costs.queues
    full = min(share, costs.slot_size)
    stream = min(wire, costs.source_bandwidth, costs.slot_bandwidth)
    consume = costs.reduce_bandwidth if reduces else costs.consume_bandwidth
    fly = LATENCY + costs.memory_latency + (HOPS - 1) * min(costs.vc_chunk_size, full) / wire
    sizes = []
    while share > 0:
        sizes.append(min(share, costs.slot_size))
        share -= sizes[-1]
    period = max(
        costs.send_overhead + full / stream, costs.send_overhead + full / consume, 2 * full / costs.slot_bandwidth
    )
    clock, lost, starts = 0.0, 0.0, []
    for k in range(len(sizes)):
        if k:
            clock += period
        if k >= costs.n_slots:  # the slot of message k - n must have come back
            sent = starts[k - costs.n_slots]
            back = (
                sent + (costs.send_overhead + full / stream) + fly + (costs.send_overhead + full / consume)
                + costs.consume_latency + costs.credit_latency + costs.credit_size / wire
            )  # fmt: skip
            if back > clock * (1 + 1e-12):
                if costs.poll_interval:
                    looks = math.ceil((back - clock) / costs.poll_interval - 1e-9)
                    until = clock + looks * costs.poll_interval
                else:
                    until = back + costs.penalty
                lost += until - clock
                clock = until
        starts.append(clock)
    return clock + costs.send_overhead + sizes[-1] / stream, lost


@pytest.mark.parametrize("slots", [1, 2, 4, 64])
@pytest.mark.parametrize("backpressure", ["sleep", "poll"])
@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
@pytest.mark.parametrize("reduces", [False, True])
@pytest.mark.parametrize("nbytes", [1, 100, 4096, 4097, 65536, 1_000_003])
def test_the_closed_form_is_the_recurrence(topology, slots, backpressure, kind, reduces, nbytes):
    costs = costs_with(topology, n_slots=slots, backpressure=backpressure, buffer_kind=kind)
    arguments = (np.array([each]) for each in (float(nbytes), BANDWIDTH, LATENCY, HOPS))
    serial, _, polling = costs.transfer(*arguments, reduces=reduces)
    expected, lost = recurrence(costs, nbytes, reduces)
    assert serial[0] == pytest.approx(expected, rel=1e-9)
    assert polling[0] == pytest.approx(lost if backpressure == "poll" else 0.0, rel=1e-6, abs=1e-15)


def test_an_empty_transfer_still_takes_a_message(topology):
    costs = costs_with(topology)
    serial, latency, _ = costs.transfer(*(np.array([each]) for each in (0.0, BANDWIDTH, LATENCY, HOPS)), reduces=True)
    assert serial[0] == costs.send_overhead
    assert latency[0] == LATENCY


def duration(elements=1 << 18, world=8, **values):
    with kernbench.simulate(ccl=config_with(**values), enable_data=False) as ctx:

        def worker(rank):
            ctx.distributed.all_reduce(ctx.empty(elements))

        ctx.multiprocessing.spawn(worker, nprocs=world, isolation="greenlet")
        return ctx.now()


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ({"n_slots": 1}, {"n_slots": 2}),
        ({"n_slots": 2}, {"n_slots": 16}),
        ({"slot_size": 512}, {"slot_size": 16384}),
        ({"n_slots": 1, "ipcq_credit_size_bytes": 4096}, {"n_slots": 1, "ipcq_credit_size_bytes": 16}),
        ({"n_slots": 1, "backpressure": "sleep"}, {"n_slots": 1, "backpressure": "poll"}),
        ({"buffer_kind": "hbm"}, {"buffer_kind": "sram"}),
        ({"buffer_kind": "sram"}, {"buffer_kind": "tcm"}),
    ],
)
def test_each_parameter_moves_the_timeline_the_way_a_reader_expects(slower, faster):
    assert duration(**slower) > duration(**faster)


def test_smaller_virtual_channel_chunks_hide_hops():
    """Only a route of several links forwards chunks: a ring of every other SIP has two links per step."""

    def two_hops(chunk):
        with kernbench.simulate(ccl=config_with(vc_chunk_size=chunk), enable_data=False) as ctx:

            def worker(rank):
                ctx.accelerator.set_device_index(2 * rank)
                ctx.distributed.all_reduce(ctx.empty(1 << 16))

            ctx.multiprocessing.spawn(worker, nprocs=4, isolation="greenlet")
            return ctx.now()

    assert two_hops(64) < two_hops(256) < two_hops(4096)


def test_slot_memory_costs_something(topology):
    """A byte crosses the slots' memory twice: slots in slow memory cannot carry more than half its bandwidth."""
    costs = costs_with(topology, buffer_kind="hbm", n_slots=64)
    nbytes = 1e9
    serial, _, _ = costs.transfer(*(np.array([each]) for each in (nbytes, 1e15, 0.0, 1.0)), reduces=False)
    assert nbytes / costs.queues / serial[0] <= costs.slot_bandwidth / 2
