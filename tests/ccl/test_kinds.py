"""The table of collectives, held against the algorithms that implement them."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.ccl.algorithms import direct_alltoall
from kernbench.ccl.config import load_ccl_config
from kernbench.ccl.expressions import check_schedule
from kernbench.ccl.placement import Placement
from kernbench.ccl.registry import SHIPPED, algorithm_module, build_schedule
from kernbench.ccl.schedule import Schedule
from kernbench.collective_kinds import COLLECTIVES, KINDS, TIMED, timed_name

RINGS = [name for name in COLLECTIVES if KINDS[name].laps and not KINDS[name].root]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_algorithms_of_a_row_implement_its_collective(name: str) -> None:
    kind, entries = KINDS[name], load_ccl_config().algorithms
    for entry in (kind.fallback, *(entry for served in kind.library.values() for entry in served)):
        assert name == algorithm_module(entries[entry].module).COLLECTIVE
    assert name == algorithm_module(SHIPPED + kind.direct).COLLECTIVE


@pytest.mark.parametrize("members", [2, 3, 8])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_row_says_what_the_fallback_ends_with(name: str, members: int) -> None:
    """And a schedule without its last transfer is distinguished from a right one."""
    if name == "send" and members != 2:
        return
    kind = KINDS[name]
    schedule = build_schedule(
        load_ccl_config().select(kind.fallback).module, members, 0 if kind.root else None, Placement.flat(members)
    )
    check_schedule(schedule, name, 0 if kind.root else None)
    assert kind.chunks(members) in (1, schedule.chunks)
    keep = slice(len(schedule) - 1)
    cut = Schedule(
        schedule.name, members, schedule.chunks, np.minimum(schedule.rounds, len(schedule) - 1), schedule.src[keep],
        schedule.dst[keep], schedule.chunk[keep], schedule.reduces[keep], schedule.channel[keep],
        schedule.to_chunk[keep], schedule.way[keep], schedule.scratch,
    )  # fmt: skip
    with pytest.raises(ValueError, match="does not"):
        check_schedule(cut, name, 0 if kind.root else None)


@pytest.mark.parametrize("members", [2, 5, 8])
@pytest.mark.parametrize("name", RINGS)
def test_bus_factor_and_laps_are_what_a_ring_sends(name: str, members: int) -> None:
    schedule = build_schedule(load_ccl_config().select(KINDS[name].fallback).module, members, None)
    sent = np.bincount(schedule.src, minlength=members)
    assert set(sent / schedule.chunks) == {KINDS[name].bus_factor(members)}
    assert len(schedule.rounds) - 1 == KINDS[name].laps * (members - 1)


def test_bus_factor_of_an_exchange_is_what_leaves_a_member() -> None:
    sent = np.bincount(direct_alltoall.build(8).src)
    assert set(sent / 8) == {KINDS["all_to_all"].bus_factor(8)}


def test_names_of_nccl_tests_lead_to_the_timed_ones() -> None:
    given = ("all_reduce_perf", "AllReduce", "alltoall_perf", "reduce-scatter", "send_recv", "bcast", "sendrecv")
    assert [timed_name(name) for name in given] == [
        "all_reduce", "all_reduce", "all_to_all", "reduce_scatter", "sendrecv", "broadcast", "sendrecv",
    ]  # fmt: skip
    assert tuple(TIMED) == (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "reduce",
        "sendrecv",
    )


def test_a_root_that_is_missing_is_said() -> None:
    with pytest.raises(ValueError, match="broadcast has a root"):
        KINDS["broadcast"].receivers(4, None)
