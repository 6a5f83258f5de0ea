"""Device time by the lines of the program that asked for it: a tree from the outermost call inwards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernbench.simulation.operation_descriptions import STACK
from kernbench.trace.critical import kind_of
from kernbench.trace.spans import HOST, Span


def flame_of(spans: Iterable[Span]) -> list[tuple[int, str, str, float, int]]:
    """The tree, parents first: of each node its parent's place (-1: none), name, kind, seconds over all ranks, and calls.

    The leaves are operations. What runs on hosts does not count, and neither do operations whose lines are not known.
    """
    seconds: dict[tuple[tuple[str, ...], str, str], list[float]] = {}
    for span in spans:
        stack = span.detail.get(STACK)
        if stack and span.track != HOST:
            entry = seconds.setdefault((tuple(stack), span.name, kind_of(span)), [0.0, 0])
            entry[0] += span.seconds
            entry[1] += 1
    nodes: list[list[Any]] = []
    places: dict[tuple[int, str], int] = {}
    for (stack, name, kind), (took, calls) in seconds.items():
        parent = -1
        for number, part in enumerate((*stack, name)):
            leaf = number == len(stack)
            place = places.get((parent, part))
            if place is None:
                place = places[parent, part] = len(nodes)
                nodes.append([parent, part, kind if leaf else "", 0.0, 0])
            nodes[place][3] += took
            nodes[place][4] += calls
            parent = place
    return [(parent, name, kind, took, calls) for parent, name, kind, took, calls in nodes]
