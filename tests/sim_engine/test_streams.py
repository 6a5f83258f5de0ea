"""Operations enqueued ahead of one whose duration is not known yet."""

from __future__ import annotations

import sys

import pytest

from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.operation import Operation
from kernbench.topology import resolve_topology


def operation(name: str, duration: float | None, stream: str = "compute") -> Operation:
    return Operation(name, "kernel", rank=0, sip=0, stream=stream, enqueue=0.0, duration=duration)


def test_a_chain_longer_than_the_stack_is_resolved():
    engine = GraphEngine(resolve_topology().topology_obj)
    length = 10 * sys.getrecursionlimit()
    first = engine.submit(operation("first", None))
    chain = [engine.submit(operation(f"link {at}", 1.0)) for at in range(length)]
    assert all(link.end is None for link in chain)
    engine.set_duration(first, 5.0)
    assert [link.end for link in chain] == [5.0 + at + 1 for at in range(length)]


def test_dependents_are_told_in_the_order_of_a_stack_of_calls():
    engine = GraphEngine(resolve_topology().topology_obj)
    first = engine.submit(operation("first", None))
    second = engine.submit(operation("second", 1.0))
    told: list[str] = []
    second.when_resolved(lambda: told.append("after second"))
    first.when_resolved(lambda: told.append("after first"))
    engine.set_duration(first, 5.0)
    assert told == ["after second", "after first"]


def test_an_error_in_who_is_told_leaves_nobody_behind_for_the_next():
    engine = GraphEngine(resolve_topology().topology_obj)
    told: list[str] = []

    def fails() -> None:
        raise ValueError("no")

    failing, other = (engine.submit(operation(name, None, name)) for name in ("failing", "other"))
    failing.when_resolved(fails)
    failing.when_resolved(lambda: told.append("failing"))
    other.when_resolved(lambda: told.append("other"))
    with pytest.raises(ValueError, match="no"):
        engine.set_duration(failing, 1.0)
    engine.set_duration(other, 1.0)
    assert told == ["other"]
