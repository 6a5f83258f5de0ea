"""What an all-reduce must return, to the bit: numpy, in the order that the algorithm's schedule prescribes.

The schedule is followed symbolically first. Each member's chunk then holds an expression over the members' inputs, and
the few distinct expressions are evaluated with numpy. Nothing of how the runtime moves values is used, and a schedule
that does not fold every member exactly once into every chunk is found out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernbench.benches.harness.elements import COMBINE, Array, ElementType, Inputs, finish
from kernbench.ccl.schedule import Schedule, Way

IntArray = NDArray[np.int64]

BLOCK = 1 << 16
"""Elements that are worked on at a time: they stay in cache, and need no large temporaries."""


class Expressions:
    """The expression that each (member, chunk) of a schedule ends with.

    Node ``n < members`` is that member's input; any other is the combination of two earlier nodes, the smaller number
    first: the reductions commute, though in floating point they do not associate. A node whose second part is -1 is its
    first part, rounded.

    Attributes:
        final: ``[members, chunks]`` node that each member ends with.
        parts: ``[nodes, 2]`` the two nodes that a node combines.
        wide: ``[nodes]`` whether a node is a sum that is kept wide: inside a member, or a switch.
    """

    def __init__(self, schedule: Schedule) -> None:
        members, slots = schedule.members, schedule.slots
        parts = [np.full((members, 2), -1, dtype=np.int64)]
        wide = np.zeros(members + 2 * len(schedule), dtype=bool)
        held = np.repeat(np.arange(members, dtype=np.int64), slots)
        nodes = members
        for begin, end in zip(schedule.rounds[:-1].tolist(), schedule.rounds[1:].tolist(), strict=True):
            rows = slice(begin, end)
            target = schedule.dst[rows] * slots + schedule.to_chunk[rows]
            arriving = held[schedule.src[rows] * slots + schedule.chunk[rows]]
            local = schedule.way[rows] == Way.LOCAL
            leaves = wide[arriving] & ~local
            fresh, which = np.unique(arriving[leaves], return_inverse=True)
            parts.append(np.stack([fresh, np.full_like(fresh, -1)], axis=1))
            arriving[leaves] = nodes + which.reshape(-1)
            nodes += len(fresh)
            reduces = schedule.reduces[rows]
            pairs = np.sort(np.stack([arriving, held[target]], axis=1)[reduces], axis=1)
            keyed = np.concatenate([pairs, local[reduces, None]], axis=1)
            fresh, which = np.unique(keyed, axis=0, return_inverse=True)
            parts.append(fresh[:, :2])
            wide[nodes : nodes + len(fresh)] = fresh[:, 2]
            arriving[reduces] = nodes + which.reshape(-1)
            nodes += len(fresh)
            held[target] = arriving
        self.members = members
        self.final = held.reshape(members, slots)[:, : schedule.chunks]
        self.parts: IntArray = np.concatenate(parts)
        self.wide = wide[:nodes]

    def needed(self, node: int) -> list[int]:
        """The nodes that ``node`` is made of and itself, each after its parts."""
        seen = {node}
        frontier = [node]
        while frontier:
            here = frontier.pop()
            if here >= self.members:
                for part in self.parts[here].tolist():
                    if part >= 0 and part not in seen:
                        seen.add(part)
                        frontier.append(part)
        return sorted(seen)

    def evaluate(self, node: int, inputs: Inputs, element: ElementType, op: str, begin: int, end: int) -> Array:
        """The value of ``node`` over elements ``[begin, end)``.

        Raises ValueError if it does not fold every member exactly once.
        """
        combine = COMBINE[op]
        needed = self.needed(node)
        uses = dict.fromkeys(needed, 0)
        for user in needed:
            if user >= self.members:
                for part in self.parts[user].tolist():
                    if part >= 0:
                        uses[part] += 1
        leaves = [part for part in needed if part < self.members]
        if len(leaves) != self.members or any(count > 1 for count in uses.values()):
            raise ValueError("the schedule does not fold every member exactly once into every chunk")
        values: dict[int, Array] = {}
        for here in needed:
            if here < self.members:
                continue
            left, right = self.parts[here].tolist()
            if right < 0:
                values[here] = element.narrowed(values.pop(left))
                continue
            operands = [
                inputs.of(part, begin, end) if part < self.members else values.pop(part) for part in (left, right)
            ]
            if self.wide[here]:
                values[here] = combine(*map(element.widened, operands))
                continue
            for at, part in enumerate((left, right)):
                if self.wide[part]:
                    operands[at] = element.narrowed(operands[at])
            # a value that was computed here is not needed any more: it is the place for the result
            own = [operand for part, operand in zip((left, right), operands, strict=True) if part >= self.members]
            values[here] = element.rounded(combine(*operands, out=own[0] if own else None))
        total = values[node] if node >= self.members else inputs.of(node, begin, end).copy()
        if self.wide[node]:
            total = element.narrowed(total)
        return finish(op, total, self.members, element)


class AllReduceOracle:
    """Expected results of all-reduces of one element type, reduction and seed, along one schedule."""

    def __init__(self, schedule: Schedule, inputs: Inputs, element: ElementType, op: str) -> None:
        self._schedule = schedule
        self._expressions = Expressions(schedule)
        self._inputs = inputs
        self._element = element
        self._op = op
        self._count = -1
        self._known: dict[bytes, Array] = {}

    def expected(self, member: int, count: int) -> Array:
        """``[count]`` result on ``member``. Members that must agree to the bit share one array."""
        if count != self._count:
            self._count = count
            self._known.clear()
        nodes = self._expressions.final[member]
        key = nodes.tobytes()
        if key not in self._known:
            bounds = self._schedule.chunk_bounds(count).tolist()
            out = np.empty(count, self._element.numpy)
            for chunk, node in enumerate(nodes.tolist()):
                for begin in range(bounds[chunk], bounds[chunk + 1], BLOCK):
                    end = min(begin + BLOCK, bounds[chunk + 1])
                    out[begin:end] = self._expressions.evaluate(node, self._inputs, self._element, self._op, begin, end)
            self._known[key] = out
        return self._known[key]


def count_wrong(result: Array, expected: Array) -> int:
    """Number of elements that differ in any bit."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return max(result.size, expected.size)
    bits = np.dtype(f"u{result.dtype.itemsize}")
    left, right = result.view(bits), expected.view(bits)
    return sum(
        int(np.count_nonzero(left[begin : begin + BLOCK] != right[begin : begin + BLOCK]))
        for begin in range(0, len(left), BLOCK)
    )
