"""The scheduler alone: policies, fairness, cycles. No torch, no time."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import pytest
from greenlet import _greenlet, getcurrent, greenlet
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import ConfigError
from kernbench.scheduler import RankPhase, RankScheduler, RoundRobin, SeededRandom, find_cycle, make_policy
from kernbench.scheduler.carrier import Carrier

each_isolation = pytest.mark.parametrize("isolation", ["greenlet", "carrier"])


def carrier_of(rank):
    assert isinstance(rank.execution, Carrier)
    return rank.execution


def interleaving(policy, turns, isolation="greenlet"):
    """Who ran, in order: each rank pauses as often as ``turns`` says."""
    scheduler = RankScheduler(policy)
    order = []

    def body(rank):
        for _ in range(turns[rank]):
            order.append(rank)
            scheduler.pause()
        order.append(rank)

    scheduler.start([lambda rank=rank: body(rank) for rank in range(len(turns))], isolation=isolation)
    assert scheduler.run_ready() == sum(turns) + len(turns)
    assert all(rank.phase is RankPhase.DONE for rank in scheduler.ranks)
    assert scheduler.live_count == 0
    assert scheduler.rank_by_greenlet == {}
    return order


@each_isolation
def test_round_robin_takes_turns(isolation):
    assert interleaving(RoundRobin(), [2, 2, 2], isolation) == [0, 1, 2] * 3


@settings(max_examples=50, deadline=None)
@given(turns=st.lists(st.integers(0, 5), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_every_policy_runs_everybody_to_the_end_and_reproducibly(turns, seed):
    for make in (RoundRobin, lambda: SeededRandom(seed)):
        order = interleaving(make(), turns)
        assert sorted(order) == sorted(rank for rank, count in enumerate(turns) for _ in range(count + 1))
        assert interleaving(make(), turns) == order


def test_another_seed_gives_another_interleaving():
    assert len({tuple(interleaving(SeededRandom(seed), [3] * 6)) for seed in range(10)}) > 5


def test_carriers_run_in_the_same_order_as_greenlets():
    for seed in range(3):
        turns = [3, 1, 4, 1, 5]
        assert interleaving(SeededRandom(seed), turns, "carrier") == interleaving(SeededRandom(seed), turns)


def test_unknown_policies():
    with pytest.raises(ConfigError, match="expected 'round_robin' or 'random'"):
        make_policy("fifo", 0)


@each_isolation
def test_the_run_stops_at_the_first_failure(isolation):
    scheduler = RankScheduler()
    ran = []

    def body(rank):
        ran.append(rank)
        if rank == 1:
            raise ValueError

    scheduler.start([lambda rank=rank: body(rank) for rank in range(4)], isolation=isolation)
    scheduler.run_ready()
    assert ran == [0, 1]
    assert [rank.index for rank in scheduler.failed] == [1]
    scheduler.abort()
    scheduler.abort()
    assert [rank.phase.value for rank in scheduler.ranks] == ["done", "failed", "aborted", "aborted"]
    assert ran == [0, 1]


def test_finally_blocks_that_wait_are_refused():
    scheduler = RankScheduler()
    log = []

    def body():
        try:
            scheduler.switch_to_main()
        finally:
            log.append("finally")
            scheduler.pause()
            log.append("unreachable")

    scheduler.start([body], isolation="greenlet")
    scheduler.run_ready()
    scheduler.abort()
    assert log == ["finally"]
    assert len(scheduler.ready) == 0


@pytest.mark.parametrize(
    ("graph", "cycle"),
    [
        ({}, []),
        ({0: [1], 1: [2]}, []),
        ({0: [1], 1: [0]}, [0, 1]),
        ({3: [2], 2: [1], 1: [3], 0: [3]}, [1, 3, 2]),
        ({0: [0]}, [0]),
    ],
)
def test_cycles_of_the_wait_for_graph(graph, cycle):
    assert find_cycle(graph) == cycle


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.integers(0, 7), st.sets(st.integers(0, 7), max_size=3)))
def test_a_cycle_is_found_exactly_if_there_is_one(graph):
    reach = {node: set(after) for node, after in graph.items()}
    for _ in range(8):  # transitive closure, the slow way
        reach = {node: after.union(*(reach.get(each, set()) for each in after)) for node, after in reach.items()}
    cycle = find_cycle(graph)
    assert bool(cycle) == any(node in after for node, after in reach.items())
    for node, following in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True):
        assert following in graph[node]


def switches_of_threads(turns, count):
    """Changes of the running OS thread while ``count`` carriers pause in turns."""
    scheduler = RankScheduler()
    seen = []

    def body():
        for _ in range(turns):
            seen.append(threading.get_ident())
            scheduler.pause()

    scheduler.start([body] * count, isolation="carrier")
    lent = []
    lend = scheduler.runner.baton.lend
    scheduler.runner.baton.lend = lambda carrier: (lent.append(carrier), lend(carrier))
    assert scheduler.run_ready() == count * (turns + 1)
    assert len(set(seen)) == count
    return len(lent)


def test_carriers_hand_over_without_main():
    assert switches_of_threads(5, 4) == switches_of_threads(50, 4)


def test_a_carrier_that_ended_while_main_was_in_the_front_of_another():
    scheduler = RankScheduler()
    order = []

    def body(rank):
        order.append(rank)
        for _ in range(3 - rank):
            scheduler.pause()
            order.append(rank)

    scheduler.start([lambda rank=rank: body(rank) for rank in range(3)], isolation="carrier")
    scheduler.run_ready()
    assert order == [0, 1, 2, 0, 1, 2, 0, 1, 0]
    assert all(rank.greenlet.dead and not carrier_of(rank).thread.is_alive() for rank in scheduler.ranks)


def test_an_error_made_ready_behind_a_carrier_is_raised_in_its_turn():
    scheduler = RankScheduler()
    order = []

    def waiter():
        try:
            scheduler.switch_to_main()
        except ValueError:
            order.append("raised")

    def other():
        for turn in range(2):
            order.append(turn)
            scheduler.pause()

    scheduler.start([waiter, other, other], isolation="carrier")
    scheduler.make_ready(scheduler.ranks[0].greenlet, ValueError())
    scheduler.run_ready()
    assert order == [0, 0, "raised", 1, 1]


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_main_is_in_the_front_of_another_carrier():
    scheduler = RankScheduler()
    cleaned = []

    def body(rank):
        try:
            for turn in range(1000):
                if (rank, turn) == (2, 5):
                    signal.raise_signal(signal.SIGINT)
                scheduler.pause()
        finally:
            cleaned.append(rank)

    scheduler.start([lambda rank=rank: body(rank) for rank in range(3)], isolation="carrier")
    with pytest.raises(KeyboardInterrupt), scheduler.at_work():
        scheduler.run_ready()
    scheduler.abort()
    assert sorted(cleaned) == [0, 1, 2]
    assert scheduler.live_count == 0
    assert not any(carrier_of(rank).thread.is_alive() for rank in scheduler.ranks)


def _run_to_the_end(scheduler):
    while scheduler.live_count:
        scheduler.run_ready()
        for rank in scheduler.ranks:
            scheduler.make_ready(rank.greenlet)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("when", ["before the thread runs", "before it goes to main", "when it comes from main"])
def test_ctrl_c_between_main_and_a_carrier_is_mains(monkeypatch, when):
    """It was the rank's, which it ended with a traceback; the run went on without it, to a deadlock."""
    scheduler = RankScheduler()
    begun, cleaned, interrupted = [], [], []

    def interrupt():
        if len(interrupted) < 1:
            interrupted.append(True)
            signal.raise_signal(signal.SIGINT)

    leave = Carrier._leave

    def leaves(carrier, to_main, *args):
        if when == "before it goes to main":
            interrupt()
        if when != "when it comes from main":
            return leave(carrier, to_main, *args)

        def there_and_back(*args):
            to_main(*args)
            interrupt()

        return leave(carrier, there_and_back, *args)

    def body(rank):
        begun.append(rank)
        try:
            for _ in range(10):
                scheduler.switch_to_main()
        finally:
            cleaned.append(rank)

    monkeypatch.setattr(Carrier, "_leave", leaves)
    before_run = (lambda rank: interrupt()) if when == "before the thread runs" else None
    bodies = [lambda rank=rank: body(rank) for rank in range(3)]
    scheduler.start(bodies, isolation="carrier", before_run=before_run)
    with pytest.raises(KeyboardInterrupt), scheduler.at_work():
        _run_to_the_end(scheduler)
    scheduler.abort()
    assert interrupted
    assert not any(rank.phase is RankPhase.FAILED for rank in scheduler.ranks)
    assert cleaned == begun
    assert scheduler.live_count == 0


class _InterruptedLock:
    """A lock whose third ``acquire`` gets it and raises, as a thread does that is asked to end while it wakes up."""

    def __init__(self, lock):
        self.lock = lock
        self.times = 0

    def acquire(self):
        self.lock.acquire()
        self.times += 1
        if self.times == 3:
            raise SystemExit

    def __getattr__(self, name):
        return getattr(self.lock, name)


def test_a_rank_that_is_told_to_end_while_it_wakes_up_ends_when_it_is_its_turn():
    scheduler = RankScheduler()
    seen = []

    def body(rank):
        try:
            for turn in range(5):
                seen.append((rank, turn))
                scheduler.pause()
        finally:
            seen.append((rank, "end"))

    scheduler.start([lambda rank=rank: body(rank) for rank in range(2)], isolation="carrier")
    carrier = carrier_of(scheduler.ranks[1])
    carrier.turn = _InterruptedLock(carrier.turn)
    with scheduler.at_work():
        scheduler.run_ready()
    assert seen[-2:] == [(0, 4), (0, "end")]
    assert [what for rank, what in seen if rank == 1][-1] == "end"
    assert len(seen) == len(set(seen)) < 12


@pytest.mark.parametrize("isolation", ["carrier", "greenlet"])
def test_the_heap_is_frozen_only_while_greenlet_does_not_search_it(isolation, monkeypatch):
    """Its search for who keeps an ended thread's greenlet does not see frozen objects: it would free what they keep."""
    switch = _greenlet.enable_optional_cleanup
    frozen_when_switched = []

    def noted(enabled):
        frozen_when_switched.append((enabled, bool(gc.get_freeze_count())))
        return switch(enabled)

    monkeypatch.setattr(_greenlet, "enable_optional_cleanup", noted)
    frozen_inside = []
    scheduler = RankScheduler()
    scheduler.start([lambda: frozen_inside.append(bool(gc.get_freeze_count()))], isolation=isolation)
    with scheduler.at_work():
        scheduler.run_ready()
    assert frozen_inside == [True]
    assert frozen_when_switched == [(False, False), (True, False)]


@each_isolation
def test_a_thread_that_ends_while_ranks_run_takes_no_reference_along(isolation):
    """greenlet takes a thread's own greenlet away if the collector knows no owner of it; a settled heap hides who does."""
    held, begun, go = [], threading.Event(), threading.Event()

    def use_greenlets():
        held.append(getcurrent())
        begun.set()
        go.wait()

    thread = threading.Thread(target=use_greenlets)
    thread.start()
    begun.wait()
    alive = weakref.ref(held[0])

    def body():
        go.set()
        thread.join()
        greenlet(lambda: None).switch()  # what threads have left behind is looked at now and then

    scheduler = RankScheduler()
    scheduler.start([body], isolation=isolation)
    with scheduler.at_work():
        scheduler.run_ready()
    assert alive() is held[0]


def test_a_world_inside_another_one_s_work_leaves_the_search_off():
    outer, inner = RankScheduler(), RankScheduler()
    outer.start([lambda: None], isolation="greenlet")
    inner.start([lambda: None], isolation="greenlet")
    with outer.at_work():
        with inner.at_work():
            inner.run_ready()
        assert _greenlet.get_clocks_used_doing_optional_cleanup() is None
        outer.run_ready()
    assert _greenlet.get_clocks_used_doing_optional_cleanup() is not None
