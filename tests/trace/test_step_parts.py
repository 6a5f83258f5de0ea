"""What a step's time is spent on, and the interval that follows from it."""

from __future__ import annotations

from math import hypot

import pytest

from kernbench.cost.uncertainty import COMMON, step_interval
from kernbench.trace.critical import PathStep
from kernbench.trace.spans import HOST, Span
from kernbench.trace.step_parts import PathPart, mean_parts, parts_of


def step(kind: str, begin: float, end: float, name: str = "a", track: str = "compute") -> PathStep:
    span = Span(0, 0, track, name, kind, begin, end, interval=(0.9 * (end - begin), 1.2 * (end - begin)))
    return PathStep(span, begin, end)


PATH = [
    step("gemm", 0.0, 4.0, "mm"),
    step("attention", 4.0, 5.0),
    step("math", 5.0, 6.0, "add"),
    step("math", 6.0, 8.0, "mul"),
    PathStep(None, 8.0, 8.5),
    step("launch", 8.5, 9.0, track=HOST),
    step("collective", 9.0, 10.0),
]


def test_parts_add_up_to_the_time_between_two_moments() -> None:
    parts = {part.kind: part for part in parts_of(PATH, 2.0, 10.0)}
    assert list(parts) == ["product", "attention", "memory", "communication", "host", "gap"]
    assert sum(part.seconds for part in parts.values()) == pytest.approx(8.0)
    assert parts["product"] == pytest.approx(("product", 2.0, 1.8, 2.4))


def test_errors_of_different_operators_are_independent() -> None:
    (memory,) = (part for part in parts_of(PATH, 0.0, 10.0) if part.kind == "memory")
    assert memory.high - memory.seconds == pytest.approx(hypot(0.2, 0.4))


def test_a_part_of_several_steps_is_shared_out() -> None:
    (part,) = mean_parts([PathPart("product", 4.0, 3.0, 6.0)], 2)
    assert part == PathPart("product", 2.0, 1.5, 3.0)


def test_what_the_device_computes_is_wrong_together() -> None:
    low, high = step_interval([PathPart("product", 1.0, 1.0, 1.0), PathPart("memory", 1.0, 1.0, 1.0)])
    assert (low, high) == pytest.approx((2 - 2 * COMMON, 2 + 2 * COMMON))
    low, high = step_interval([PathPart("communication", 1.0, 0.9, 1.2)])
    assert (low, high) == pytest.approx((0.9, 1.2))


def test_a_hosts_time_is_uncertain() -> None:
    low, high = step_interval([PathPart("host", 1.0, 1.0, 1.0)])
    assert low < 0.7
    assert high > 1.3
