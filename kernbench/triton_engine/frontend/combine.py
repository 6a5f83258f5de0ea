"""Combine functions of reductions, scans and ``tl.map_elementwise``, as straight lines of instructions.

They run on whole tiles in place of their scalars, so nothing in them jumps: all sides of a branch are computed and a select
takes what holds for an element. Of what is wrong on a side that an element is not on, nothing may be seen: assertions and
loops there have a *guard*, a boolean that holds where the element comes by (None: everywhere).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernbench.triton_engine.ops.registry import UnsupportedOpError

from .program import Instr, SubProgram
from .tree import Op, Region, RegionBlock
from .types import Ty

_TRUTH = Ty("i1")


class Combining:
    """Lowers the regions of one kernel's operations.

    Args:
        lowering: of the kernel: has its slots and names, and makes instructions.
    """

    def __init__(self, lowering: Any) -> None:
        self.lowering = lowering
        self.true: int | None = None

    def sub_program(self, region: Region, guarded: bool = False) -> SubProgram:
        """The region as instructions. ``guarded``: of a loop, whose first argument says which elements take this turn."""
        first = len(self.lowering.ops)
        guard = self.lowering.slot(_TRUTH) if guarded else None
        args = tuple(self.lowering.define(name, ty) for name, ty in region.blocks[0].args)
        return self._program(region, args, guard, first)

    def _program(self, region: Region, args: tuple[int, ...], guard: int | None, first: int) -> SubProgram:
        code: list[Instr] = []
        results = self._region(region, code, guard)
        args = args if guard is None else (guard, *args)
        return SubProgram(args, code, tuple(results), tuple(self.lowering.ops[first:]))

    # Branches

    def _region(self, region: Region, code: list[Instr], guard: int | None) -> list[int]:
        """Append a region; the slots that it ends with."""
        arrivals: dict[str, list[tuple[int | None, list[int]]]] = {b.label: [] for b in region.blocks}
        ends: list[tuple[int | None, list[int]]] = []
        types: list[Ty] = []
        for block in self._in_order(region):
            if block is region.blocks[0]:
                here = guard
            else:
                here = self._either([condition for condition, _ in arrivals[block.label]], code)
                chosen = self._chosen(arrivals[block.label], [ty for _, ty in block.args], code)
                for (name, _), slot in zip(block.args, chosen, strict=True):
                    self.lowering.names[name] = slot
            self._block(block, code, here)
            last = block.ops[-1]
            values = [self.lowering.use(o) for o in last.operands]
            if last.name == "cf.br":
                label, names = last.successors[0]
                arrivals[label].append((here, [self.lowering.use(n) for n in names]))
            elif last.name == "cf.cond_br":
                sides = values[0], self._not(values[0], code)
                for side, (label, names) in zip(sides, last.successors, strict=True):
                    condition = self._both(here, side, code)
                    arrivals[label].append((condition, [self.lowering.use(n) for n in names]))
            else:
                ends.append((here, values))
                types = [self.lowering.types[v] for v in values]
        return self._chosen(ends, types, code)

    def _in_order(self, region: Region) -> list[RegionBlock]:
        """The blocks, each after those that jump to it."""
        blocks = {b.label: b for b in region.blocks}
        order: list[RegionBlock] = []
        seen: dict[str, bool] = {}  # whether all that follows is in the order

        def visit(block: RegionBlock) -> None:
            seen[block.label] = False
            for label, _ in block.ops[-1].successors:
                if label not in seen:
                    visit(blocks[label])
                elif not seen[label]:
                    raise UnsupportedOpError(
                        f"kernel {self.lowering.kernel.name}: a loop of jumps in a combine function\n  at {block.ops[-1].loc}"
                    )
            seen[block.label] = True
            order.append(block)

        visit(region.blocks[0])
        return order[::-1]

    def _chosen(
        self, arrivals: list[tuple[int | None, list[int]]], types: Sequence[Ty], code: list[Instr]
    ) -> list[int]:
        """Of values by the condition under which they come, exactly one of which holds, those that come."""
        *others, (_, chosen) = arrivals
        for condition, values in reversed(others):
            assert condition is not None
            chosen = [
                self._computed("arith.select", [condition, new, old], ty, code)
                for new, old, ty in zip(values, chosen, types, strict=True)
            ]
        return chosen

    # Conditions

    def _computed(self, name: str, operands: list[int], ty: Ty, code: list[Instr]) -> int:
        names = [f"%:{slot}" for slot in operands]  # no name of the kernel's
        self.lowering.names.update(zip(names, operands, strict=True))
        result = f"%:{len(self.lowering.types)}"
        self.lowering.instr(Op(name, names, [result], [], [ty]), code)
        return int(self.lowering.use(result))

    def _everywhere(self) -> int:
        if self.true is None:
            self.true = self.lowering.slot(_TRUTH)
            self.lowering.constants[self.true] = True
        return self.true

    def _not(self, condition: int, code: list[Instr]) -> int:
        return self._computed("arith.xori", [condition, self._everywhere()], _TRUTH, code)

    def _both(self, guard: int | None, condition: int, code: list[Instr]) -> int:
        return condition if guard is None else self._computed("arith.andi", [guard, condition], _TRUTH, code)

    def _either(self, conditions: list[int | None], code: list[Instr]) -> int | None:
        first, *others = conditions
        for other in others:
            if first is None or other is None:
                return None
            first = self._computed("arith.ori", [first, other], _TRUTH, code)
        return first

    # Operations

    def _block(self, block: RegionBlock, code: list[Instr], guard: int | None) -> None:
        for op in block.ops:
            match op.name:
                case "arith.constant" | "ub.poison":
                    self.lowering.constant(op)
                case "scf.for" | "scf.while":
                    code.append(self._loop(op, guard))
                case "scf.if":
                    self._if(op, code, guard)
                case "tt.call":
                    self._call(op, code, guard)
                case _ if not ends_region(op) and not op.successors:
                    self._plain(op, code, guard)

    def _if(self, op: Op, code: list[Instr], guard: int | None) -> None:
        condition = self.lowering.use(op.operands[0])
        sides = []
        for k, region in enumerate(op.regions):
            holds = condition if k == 0 else self._not(condition, code)
            sides.append((holds, self._region(region, code, self._both(guard, holds, code))))
        for name, slot in zip(
            op.results, self._chosen(sides, op.result_types, code) if op.results else [], strict=True
        ):
            self.lowering.names[name] = slot

    def _call(self, op: Op, code: list[Instr], guard: int | None) -> None:
        callee = self.lowering.functions[op.symbol]
        saved = self.lowering.names
        values = [self.lowering.use(o) for o in op.operands]
        self.lowering.names = dict(zip((n for n, _ in callee.args), values, strict=True))
        returned = self._region(callee.body, code, guard)
        self.lowering.names = saved
        for name, slot in zip(op.results, returned, strict=True):
            self.lowering.names[name] = slot

    def _plain(self, op: Op, code: list[Instr], guard: int | None) -> None:
        """An operation without control flow. What it asserts holds, or the element is not here."""
        row = self.lowering.row(op)
        if not op.results and not row.asserts and not row.no_effect:
            raise UnsupportedOpError(
                f"kernel {self.lowering.kernel.name}: {op.name} in a combine function\n  at {op.loc}\n  {op.text}"
            )
        if row.asserts and guard is not None:
            asserted = self._computed(
                "arith.ori", [self.lowering.use(op.operands[0]), self._not(guard, code)], _TRUTH, code
            )
            name = f"%:{asserted}"
            self.lowering.names[name] = asserted
            op = Op(op.name, [name], [], [_TRUTH], [], op.attrs, op.words, text=op.text, loc=op.loc)
        self.lowering.instr(op, code)

    def _loop(self, op: Op, guard: int | None) -> Instr:
        """A loop: one instruction, whose regions are its parts (see ``ops/region_loops.py``) and first operand the guard."""
        info = self.lowering.info(op, self.lowering.row(op))
        carried = op.operand_types[2:] if op.name == "scf.for" else op.operand_types
        names = [op.attrs["iv"], *op.attrs["iter_args"]] if op.name == "scf.for" else op.attrs["iter_args"]
        first, going = len(self.lowering.ops), self.lowering.slot(_TRUTH)
        slots = tuple(self.lowering.define(n, t) for n, t in zip(names, carried, strict=True))
        info.regions = [self._program(op.regions[0], slots, going, first)]
        info.regions += [self.sub_program(region, guarded=True) for region in op.regions[1:]]
        made = self.lowering.made(info, op)
        made.args = (self._everywhere() if guard is None else guard, *made.args)
        return made


def ends_region(op: Op) -> bool:
    """Whether an operation gives what its region ends with."""
    return op.name.endswith(".return") or op.name in ("scf.yield", "scf.condition")
