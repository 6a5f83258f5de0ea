"""Places on a stream that are taken before what takes them can be submitted."""

from __future__ import annotations

import pytest

from kernbench.sim_engine import GraphEngine, Operation
from kernbench.topology import resolve_topology


@pytest.fixture
def engine() -> GraphEngine:
    return GraphEngine(resolve_topology("sip8").topology_obj)


def operation(name: str, seconds: float, enqueue: float = 0.0) -> Operation:
    return Operation(name, "collective", 0, 0, "comm", enqueue, seconds)


def test_places_count_and_not_when_operations_are_submitted(engine: GraphEngine) -> None:
    first, second, third = operations = [operation(str(n), 1.0) for n in range(3)]
    for op in operations:
        engine.reserve(op)
    engine.submit(third)
    engine.submit(first)
    assert (first.end, second.end, third.end) == (1.0, None, None)
    engine.submit(second)
    assert (second.start, third.start, third.end) == (1.0, 2.0, 3.0)
    assert all(op.ahead is None for op in engine.op_log.operations)


def test_what_is_together_takes_one_place(engine: GraphEngine) -> None:
    before, short, long, after = (
        operation(name, seconds) for name, seconds in (("a", 1.0), ("b", 1.0), ("c", 3.0), ("d", 1.0))
    )
    engine.reserve(before)
    engine.reserve(short, together=7)
    engine.reserve(long, together=7)
    engine.reserve(after)
    for op in (after, long, short, before):
        engine.submit(op)
    assert (short.start, long.start) == (1.0, 1.0)
    assert after.start == long.end == 4.0


def test_an_operation_without_a_place_comes_behind_those_that_have_one(engine: GraphEngine) -> None:
    placed, other = operation("placed", 2.0), operation("other", 1.0)
    engine.reserve(placed)
    engine.submit(other)
    assert other.end is None
    engine.submit(placed)
    assert (other.start, other.end) == (2.0, 3.0)


def test_what_fails_gives_its_place_free(engine: GraphEngine) -> None:
    failed, next_ = operation("failed", 1.0), operation("next", 1.0)
    engine.reserve(failed)
    engine.reserve(next_)
    engine.submit(next_)
    failed.fail(RuntimeError("no"), 0.5)
    assert (next_.start, next_.end) == (0.5, 1.5)


@pytest.mark.parametrize(("arrives", "starts", "ends"), [(5.0, 1.0, 5.0), (1.0, 3.0, 3.5), (3.2, 3.0, 3.5)])
def test_a_receive_ends_when_all_has_come_and_been_copied(
    engine: GraphEngine, arrives: float, starts: float, ends: float
) -> None:
    arrived, receive = operation("arrived", 0.0), operation("recv", 0.0, enqueue=starts)
    engine.submit_arrival(receive, arrived, 0.5)
    assert receive.end is None
    arrived.resolve(arrives, arrives)
    assert (receive.start, receive.end) == (starts, ends)
