"""Operations that wait for one another in long chains."""

from __future__ import annotations

from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.operation import Operation
from kernbench.topology import resolve_topology


def test_a_long_queue_behind_one_operation_ends_with_it() -> None:
    engine = GraphEngine(resolve_topology("sip8").topology_obj)

    def enqueue(duration: float | None) -> Operation:
        return engine.submit(
            Operation("op", "compute", rank=0, sip=0, stream="compute", enqueue=0.0, duration=duration)
        )

    first = enqueue(None)  # how long it takes is known when it has run
    queue = [enqueue(1e-6) for _ in range(5000)]
    assert queue[0].end is None
    engine.set_duration(first, 2e-6)
    assert queue[-1].end is not None
    assert abs(queue[-1].end - 5002e-6) < 1e-12


def test_dependents_are_told_in_the_order_of_calls_within_calls() -> None:
    told: list[str] = []

    def op() -> Operation:
        return Operation("op", "compute", rank=0, sip=0, stream="compute", enqueue=0.0)

    first, second = op(), op()

    def ends_second() -> None:
        told.append("first")
        second.resolve(0.0, 1.0)

    first.when_resolved(ends_second)
    first.when_resolved(lambda: told.append("last"))
    second.when_resolved(lambda: told.append("second"))
    first.resolve(0.0, 1.0)
    assert told == ["first", "second", "last"]
