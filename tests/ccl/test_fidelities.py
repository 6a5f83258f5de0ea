"""Stepped and closed form: where they agree, and by how much; what queues and links do to every algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.ccl.closed_form import closed_form_plan
from kernbench.ccl.collectives import CollectiveRunner
from kernbench.ccl.config import AUTO, load_ccl_config
from kernbench.ccl.lower import lower, lower_library
from kernbench.ccl.placement import Placement
from kernbench.ccl.protocols import ProtocolCosts
from kernbench.ccl.registry import algorithm_module, build_schedule
from kernbench.ccl.schedule import CannotServeError
from kernbench.ccl.selection import select
from kernbench.collective_kinds import KINDS
from kernbench.errors import ConfigError
from kernbench.sim_engine import GraphEngine, Operation
from kernbench.sim_engine.plan import member_ends
from kernbench.topology import resolve_topology
from kernbench.topology.shipped import shipped_names

CONFIG = load_ccl_config()
SIZES = (1 << 10, 1 << 15, 1 << 20, 1 << 25, 1 << 30)
WORLDS = [("dgx_h100", 1, 2), ("dgx_h100", 1, 8), ("dgx_a100", 1, 4), ("mi300x", 1, 8), ("dgx_b200", 1, 8),
          ("dgx_h100", 2, 16), ("dgx_h100", 4, 32)]  # fmt: skip

# By how much, as a factor, an unpaced stepped time may differ from the closed form, at any size and in the median. Ring
# steps are the same in both; a tree's pipeline is cut more coarsely than the library's, and its closed form adds a time per
# chunk that steps do not have (docs/collectives.md).
AGREE = {
    "ring": (1.5, 1.1), "tree": (2.3, 1.35), "nvls": (1.6, 1.05), "nvls_tree": (1.35, 1.2), "one_shot": (1.2, 1.05),
    "two_shot": (1.2, 1.1), "p2p": (1.1, 1.01),
}  # fmt: skip
CASES = [
    *(
        ("all_reduce", name)
        for name in ("ring/ll", "ring/ll128", "ring/simple", "tree/ll", "tree/ll128", "tree/simple")
    ),
    *(("all_reduce", name) for name in ("nvls", "nvls_tree", "one_shot", "two_shot")),
    *((collective, "ring/simple") for collective in ("all_gather", "reduce_scatter", "broadcast", "reduce")),
    ("all_to_all", "p2p"),
]


def library_ratio(topology, nodes, ranks, collective, algorithm, nbytes):
    """Stepped time, as the steps alone make it, over the closed form's."""
    local = ranks // nodes
    sips = tuple(sip for node in range(nodes) for sip in list(topology.sips_of(node))[:local])
    where = Placement.of(topology, sips)
    selection = select(topology.system, collective, nbytes, where, algorithm=algorithm)
    schedule = build_schedule(CONFIG.select(selection.entry).module, ranks, 0, where, selection.chunks)
    choice = selection.choice
    costs = ProtocolCosts.of(
        selection.world, choice.algorithm, choice.protocol, collective, nbytes, selection.chunks
    )  # fmt: skip
    count = nbytes // 4 * (2 if collective == "all_to_all" else 1)
    counts = schedule.slot_lengths(count)[schedule.chunk]
    plan = lower_library(schedule, topology, sips, costs, counts=counts, itemsize=4)
    return max(member_ends(plan, np.zeros(ranks))) / selection.seconds


@pytest.mark.parametrize(
    "system", [s for s in shipped_names("systems") if resolve_topology(s).topology_obj.system.fabric]
)
def test_groups_of_one_rank_per_node_take_what_the_network_takes(system):
    """Groups with no other rank in the node, of which a node without a switch has no links to speak of."""
    topology = resolve_topology(system, nodes=3).topology_obj
    sips = tuple(topology.sips_of(node)[0] for node in range(3))
    where = Placement.of(topology, sips)
    elements = 1 << 20
    for collective in KINDS:
        try:
            selection = select(topology.system, collective, 4 * elements, where)
        except ConfigError:  # no algorithm of the library: placed by hand
            continue
        schedule = build_schedule(CONFIG.select(selection.entry).module, 3, 0, where, selection.chunks)
        choice = selection.choice
        costs = ProtocolCosts.of(
            selection.world, choice.algorithm, choice.protocol, collective, 4 * elements, selection.chunks
        )
        counts = schedule.slot_lengths(elements)[schedule.chunk]
        plan = lower_library(schedule, topology, sips, costs, counts=counts, itemsize=4)
        crossed = (
            np.bincount(schedule.dst[schedule.src != schedule.dst], counts[schedule.src != schedule.dst]).max() * 4
        )
        spent = max(member_ends(plan, np.zeros(3)))
        assert np.isfinite(spent), collective
        assert spent >= 0.99 * crossed / selection.world.net, collective


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
def test_the_library_s_steps_take_what_the_closed_form_says(collective, algorithm):
    limit, median = AGREE[algorithm.partition("/")[0]]
    ratios = {}
    for system, nodes, ranks in WORLDS:
        topology = resolve_topology(system, nodes=nodes).topology_obj
        for nbytes in SIZES:
            try:
                ratios[system, nodes, ranks, nbytes] = library_ratio(
                    topology, nodes, ranks, collective, algorithm, nbytes
                )
            except ConfigError:
                continue  # this world has no such algorithm
    assert len(ratios) >= len(SIZES)
    outside = {key: ratio for key, ratio in ratios.items() if not 1 / limit <= ratio <= limit}
    assert not outside
    spread = np.abs(np.log(list(ratios.values())))
    assert np.exp(np.median(spread)) <= median


@pytest.mark.parametrize(("members", "tolerance"), [(2, 0.02), (3, 0.25), (8, 0.02), (64, 0.1)])
@pytest.mark.parametrize(
    "name", ["ring_allreduce", "ring_allgather", "ring_reducescatter", "ring_broadcast", "ring_reduce"]
)
def test_rings_of_queues_take_what_their_profile_says(name, members, tolerance):
    """Closely where links are alike; three SIPs of a ring of eight have a long way back, eight nodes a slow hop each."""
    topology = resolve_topology("sip8", nodes=max(1, members // 8)).topology_obj
    runner = CollectiveRunner(topology, CONFIG.select)
    collective = algorithm_module(CONFIG.select(name).module).COLLECTIVE
    for chunk in (1, 500, 40_000):
        times = {}
        for fidelity in ("stepped", "closed_form"):
            request = runner.request(
                op=collective, config=CONFIG.select(name), sips=tuple(range(members)), root=0,
                count=chunk * 8 * members, itemsize=4, dtype="fp32", fidelity=fidelity,
            )  # fmt: skip
            assert (request.fidelity, request.note) == (fidelity, "")
            times[fidelity] = max(member_ends(request.plan, np.zeros(members)))
        assert times["closed_form"] == pytest.approx(times["stepped"], rel=tolerance)


def test_an_algorithm_without_a_form_is_stepped_and_says_so():
    topology = resolve_topology("sip8").topology_obj
    request = CollectiveRunner(topology, CONFIG.select).request(
        op="all_reduce", config=CONFIG.select("double_binary_tree"), sips=(0, 1, 2), root=None, count=9, itemsize=4,
        dtype="fp32", fidelity="closed_form",
    )  # fmt: skip
    assert (request.fidelity, request.note) == (
        "stepped",
        "double_binary_tree has no closed form here: stepped instead",
    )


@pytest.mark.parametrize("members", [1, 2, 5, 8, 100])
def test_a_closed_form_s_plan_ends_for_all_after_the_last_has_come(members):
    starts = np.linspace(0, 1e-3, members)
    ends = member_ends(closed_form_plan("x", members, 5e-6), starts)
    assert ends == pytest.approx(np.full(members, starts.max() + 5e-6))


def test_very_large_worlds_take_the_form():
    topology = resolve_topology("dgx_h100", nodes=256).topology_obj
    config = load_ccl_config(system=topology.system)
    request = CollectiveRunner(topology, config.select).request(
        op="all_reduce", config=config.select(), sips=tuple(range(2048)), root=None, count=1 << 20, itemsize=4,
        dtype="fp32",
    )  # fmt: skip
    assert request.fidelity == "closed_form"
    assert member_ends(request.plan, np.zeros(2048)) == pytest.approx(np.full(2048, request.selection.seconds))


# -- queues and links ---------------------------------------------------------------------------------------------------

RUNNABLE = sorted(name for name in CONFIG.algorithms if name != AUTO and "send" not in name)


def queue_plan(name, topology, members, count, **changes):
    entry = CONFIG.select(name).model_copy(update=changes)
    sips = tuple(range(members))
    collective = algorithm_module(entry.module).COLLECTIVE
    try:
        schedule = build_schedule(entry.module, members, 0, Placement.of(topology, sips), 3)
    except CannotServeError:
        return None, collective
    counts = schedule.slot_lengths(count)[schedule.chunk]
    return lower(schedule, topology, sips, entry, counts=counts, itemsize=4, dtype="fp32"), collective


def shared_run(topology, plan):
    """Every transfer by itself on links that others use too; ``[members]`` ends."""
    engine = GraphEngine(topology)
    parts = [Operation("x", "collective", rank=m, sip=m, stream="c", enqueue=0.0) for m in range(plan.members)]
    engine._start_plan = lambda run: (engine._sharing.__setitem__(run, None), run.start_shared())
    run = engine.submit_collective(plan, parts, [()] * plan.members)
    engine.run()
    return run, [part.end for part in parts]


@pytest.mark.parametrize("system", ["sip8", "dgx_h100"])
def test_no_algorithm_can_deadlock(system):
    """All transfers of all algorithms happen, whatever shares the links: conditions form no cycle, credits come back."""
    topology = resolve_topology(system).topology_obj
    for name in RUNNABLE:
        plan, _ = queue_plan(name, topology, 5, 999, n_slots=1, slot_size=256)
        if plan is None:
            continue
        run, ends = shared_run(topology, plan)
        assert None not in ends, name
        assert not np.isnan(run.times.arrived).any(), name
        # and nothing is read at its source before it has arrived there
        after_arrival, _, _ = plan.dependents
        for first, dependents in enumerate(after_arrival):
            for second in dependents:
                assert run.times.start[second] >= run.times.arrived[first] - 1e-15, name


@pytest.mark.parametrize(
    "name", [name for name in RUNNABLE if not any(word in name for word in ("nvls", "multimem", "mesh", "torus"))]
)
def test_fewer_credits_never_help(name):
    topology = resolve_topology("sip8").topology_obj
    times = []
    for slots in (1, 2, 8):
        plan, _ = queue_plan(name, topology, 4, 30_000, n_slots=slots)
        times.append(max(member_ends(plan, np.zeros(4))))
    assert times[0] >= times[1] >= times[2]
    assert times[0] > times[2]
