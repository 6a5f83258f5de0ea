"""Which instructions of a run become which native functions, for values of given kinds.

A run is a stretch of a block without effects. What is index arithmetic and masks has been evaluated before, as the interpreter
does it; left are the instructions that depend on a tensor. Those of one shape make a group, unless something that is not native
(a scalar that is spread over a tile) stands between: then there are several, one after the other. Every result has the shape
that the interpreter would give it, so all that follows finds the same values in the same form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kernbench.triton_engine.frontend.program import Instr
from kernbench.triton_engine.frontend.types import Ty

from . import function
from .group import FusedGroup
from .text import REGISTERS, IrText


@dataclass(frozen=True)
class Varying:
    """Which dimensions vary: of the lanes, those with flags that are false; of the tile, those with sizes other than 1.

    ``affine``: they are those of integers that are affine, of which there is no tensor.
    """

    lanes: tuple[bool, ...]
    tile: tuple[int, ...]
    affine: bool = False


#: What a value is when a plan is made: the dimensions of a tensor or of affine integers, a boolean, "number", or "other".
Kind: TypeAlias = "Varying | bool | str"


@dataclass(frozen=True)
class Arranged:
    """An instruction left to the interpreter, on the slots that its operands stand for."""

    fn: Callable[..., Any]
    args: tuple[int, ...]
    result: int


@dataclass(frozen=True)
class FusionPlan:
    """What to do, in order; at last slots that are others by another name."""

    steps: tuple[Arranged | FusedGroup, ...]
    copies: tuple[tuple[int, int], ...]


def native(instr: Instr) -> bool:
    """Whether an instruction has a form to the bit for its types."""
    info = instr.info
    if info.row.native is None or len(instr.results) != 1 or info.regions:
        return False
    if any(t.elem not in REGISTERS for t in (*info.operand_types, info.ty)):
        return False
    return info.row.native(info, IrText(), [f"%x{k}" for k in range(len(instr.args))]) is not None


class _Planner:
    """A plan in the making, instruction by instruction."""

    def __init__(self, kinds: dict[int, Kind], types: Sequence[Ty], kept: frozenset[int]) -> None:
        self.known = kinds
        self.types = types
        self.kept = kept
        #: The slot that a slot stands for.
        self.stands: dict[int, int] = {}
        #: When a slot is there: odd where a group makes it, even otherwise.
        self.time: dict[int, int] = {}
        self.place: dict[int, Varying] = {}
        self.groups: dict[tuple[int, Varying], list[tuple[Instr, tuple[int, ...]]]] = defaultdict(list)
        self.arranged: dict[int, list[Arranged]] = defaultdict(list)
        self.copies: list[tuple[int, int]] = []

    def source(self, slot: int) -> int:
        return self.stands.get(slot, slot)

    def stand_for(self, slot: int, other: int) -> None:
        self.stands[slot] = other
        if slot in self.kept:
            self.copies.append((slot, other))

    def add(self, instr: Instr) -> bool:
        """Find a place for an instruction; False where the interpreter's result is not of a kind that is known."""
        result, args = instr.results[0], tuple([self.source(a) for a in instr.args])
        row = instr.info.row
        kinds = [self.known[a] for a in args]
        if native(instr):
            picked = None if row.picks is None else row.picks(kinds)
            if picked is None:
                return self.compute(instr, result, args, kinds)
            self.stand_for(result, args[picked])
            return True
        kind: Kind = "other"
        if row.reshapes is not None:
            kind = kinds[0]
            if not isinstance(kind, Varying) or kind.affine:
                return False
            kind = Varying(kind.lanes, row.reshapes(instr.info, kind.tile))
            if kind == kinds[0]:
                self.stand_for(result, args[0])
                return True
        time = max([t + t % 2 for t in (self.time.get(a, 0) for a in args)], default=0)
        self.known[result], self.time[result] = kind, time
        self.arranged[time].append(Arranged(instr.fn, args, result))
        return True

    def compute(self, instr: Instr, result: int, args: tuple[int, ...], kinds: list[Kind]) -> bool:
        """Put an instruction into the group of its result's shape."""
        dims = [kind for kind in kinds if isinstance(kind, Varying)]
        if "other" in kinds or all(d.affine for d in dims):
            return False
        if len({len(d.lanes) for d in dims}) != 1 or len({len(d.tile) for d in dims}) != 1:
            return False
        lanes = tuple([all(column) for column in zip(*[d.lanes for d in dims], strict=True)])
        place = Varying(lanes, tuple([max(column) for column in zip(*[d.tile for d in dims], strict=True)]))
        time = 1
        for a in args:
            t = self.time.get(a, 0)
            time = max(time, t if self.place.get(a) == place else t + 2 if t % 2 else t + 1)
        self.known[result] = self.place[result] = place
        self.time[result] = time
        self.groups[time, place].append((instr, args))
        return True

    def finish(self) -> FusionPlan:
        """The steps in order."""
        readers: dict[int, set[object]] = defaultdict(set)
        for key, members in self.groups.items():
            for _, args in members:
                for a in args:
                    readers[a].add(key)
        for several in self.arranged.values():
            for one in several:
                for a in one.args:
                    readers[a].add("arranged")
        for _, other in self.copies:
            readers[other].add("copies")
        steps: list[tuple[int, Arranged | FusedGroup]] = []
        for key, members in self.groups.items():
            steps.append((key[0], self.group(key, members, readers)))
        for time, several in self.arranged.items():
            steps += [(time, one) for one in several]
        steps.sort(key=lambda pair: pair[0])
        return FusionPlan(tuple([step for _, step in steps]), tuple(self.copies))

    def group(
        self, key: tuple[int, Varying], members: list[tuple[Instr, tuple[int, ...]]], readers: dict[int, set[Any]]
    ) -> FusedGroup:
        inputs: dict[int, int] = {}
        at = {instr.results[0]: k for k, (instr, _) in enumerate(members)}
        steps: list[function.NativeLine] = []
        for instr, args in members:
            refs = [at[a] if a in at else ~inputs.setdefault(a, len(inputs)) for a in args]
            steps.append(function.NativeLine(instr.info, tuple(refs)))
        outputs = [r for r in at if r in self.kept or readers[r] - {key}]
        place = key[1]
        free = {
            a: k for k, a in enumerate(inputs) if self.known[a] == place and readers[a] == {key} and a not in self.kept
        }
        dying = {
            args[n]
            for instr, args in members
            for n in instr.info.reusable
            if args[n] == instr.args[n]  # not one that the operand only stands for
        }
        over: list[int | None] = []
        for r in outputs:
            chosen = next((a for a in free if a in dying and self.types[a].elem == self.types[r].elem), None)
            over.append(None if chosen is None else free.pop(chosen))
        late = len(outputs) == 1 and members[at[outputs[0]]][0].info.late
        shape = function.Formula(
            tuple([self.types[a].elem for a in inputs]), tuple(steps), tuple([at[r] for r in outputs])
        )
        return FusedGroup(shape, place.lanes, place.tile, tuple(inputs), tuple(outputs), tuple(over), late)


def make_plan(
    instrs: Sequence[Instr], kinds: dict[int, Kind], types: Sequence[Ty], kept: frozenset[int]
) -> FusionPlan | None:
    """A plan for the instructions that depend on tensors, in order; None where one is not possible.

    ``kinds``: of the slots that they find; ``kept``: the slots that are read after them.
    """
    planner = _Planner(dict(kinds), types, kept)
    return planner.finish() if all(planner.add(instr) for instr in instrs) else None
