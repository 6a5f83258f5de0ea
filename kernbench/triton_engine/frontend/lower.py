"""The tree of operations -> a flat :class:`Program`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernbench.triton_engine.ops.registry import OpDef, UnsupportedOpError, lookup

from . import analysis
from .combine import Combining, ends_region
from .meetings import mark_meetings
from .parse import parse_module
from .program import (
    BasicBlock,
    Branch,
    ForBack,
    ForHead,
    Instr,
    Jump,
    LoopInfo,
    OpInfo,
    Program,
    Return,
)
from .reach import reach
from .tree import Function, Op, Region, RegionBlock
from .types import Ty


class _Lowering:
    def __init__(self, functions: dict[str, Function], ttir: str, backend: str, threads: int, warp_size: int) -> None:
        self.functions = functions
        self.kernel = next((f for f in functions.values() if f.public), next(iter(functions.values())))
        self.blocks: list[BasicBlock] = []
        self.types: list[Ty | None] = []
        self.constants: dict[int, object] = {}
        self.ops: list[OpInfo] = []
        self.names: dict[str, int] = {}
        self.ttir = ttir
        self.backend = backend
        self.threads = threads
        self.warp_size = warp_size
        self.combining = Combining(self)

    # Slots and blocks

    def slot(self, ty: Ty | None) -> int:
        self.types.append(ty)
        return len(self.types) - 1

    def define(self, name: str, ty: Ty) -> int:
        self.names[name] = slot = self.slot(ty)
        return slot

    def use(self, name: str) -> int:
        return self.names[name]

    def block(self) -> BasicBlock:
        code = BasicBlock(len(self.blocks))
        self.blocks.append(code)
        return code

    # Lowering

    def run(self) -> Program:
        args = [(self.define(name, ty), ty) for name, ty in self.kernel.args]
        first = self.block()
        end = self.region_blocks(self.kernel.body, first, on_return=None)
        end.term = Return()
        program = Program(
            name=self.kernel.name,
            blocks=self.blocks,
            n_slots=len(self.types),
            args=args,
            constants=self.constants,
            ops=self.ops,
            widest=max((t.numel for t in self.types if t is not None), default=1),
            ttir=self.ttir,
            threads=self.threads,
            warp_size=self.warp_size,
        )
        mark_meetings(program)
        analysis.finish(program, self.types)
        program.reach = reach(program)
        return program

    def region_blocks(
        self, region: Region, code: BasicBlock, on_return: list[tuple[Jump, list[int]]] | None
    ) -> BasicBlock:
        """Lower the blocks of a region into ``code`` and after; returns the block where control ends.

        ``on_return`` collects the jumps of ``tt.return`` in an inlined function; None means the kernel itself.
        """
        entries: dict[str, BasicBlock] = {}
        pending: list[tuple[str, Jump]] = []
        arg_slots = {}
        for block in region.blocks[1:]:
            arg_slots[block.label] = [self.define(name, ty) for name, ty in block.args]
        last = code
        for i, block in enumerate(region.blocks):
            if i:
                code = self.block()
            entries[block.label] = code
            last = self.block_ops(block, code, on_return, pending, arg_slots)
        for label, jump in pending:
            jump.target = entries[label].index
        return last

    def block_ops(
        self,
        block: RegionBlock,
        code: BasicBlock,
        on_return: Any,
        pending: list[tuple[str, Jump]],
        arg_slots: dict[str, list[int]],
    ) -> BasicBlock:
        for op in block.ops:
            match op.name:
                case "arith.constant" | "ub.poison":
                    self.constant(op)
                case "scf.for":
                    code = self.scf_for(op, code, on_return)
                case "scf.if":
                    code = self.scf_if(op, code, on_return)
                case "scf.while":
                    code = self.scf_while(op, code, on_return)
                case "tt.call":
                    code = self.call(op, code)
                case "cf.br":
                    code.term = self.branch_to(op.successors[0], pending, arg_slots)
                case "cf.cond_br":
                    then, other = (self.branch_to(s, pending, arg_slots) for s in op.successors)
                    code.term = Branch(self.use(op.operands[0]), then, other)
                case "tt.return" if on_return is None:
                    code.term = Return()
                case "tt.return":
                    code.term = jump = Jump(-1)
                    on_return.append((jump, [self.use(o) for o in op.operands]))
                case _ if not ends_region(op):  # what ends a region is read by the code that lowers the region
                    if self.row(op).no_effect and self.meets(op):
                        code.barriers.add(len(code.instrs))
                    self.instr(op, code.instrs)
                    code.meets = code.meets or self.meets(op)
        return code

    def meets(self, op: Op) -> bool:
        """Whether all threads of a program come to an operation together: it has tiles, or is a barrier."""
        meets = self.row(op).meets
        types = [*op.result_types, *(self.types[self.use(o)] for o in op.operands)]
        return any(t is not None and t.shape for t in types) or (meets is not None and meets(op.attrs))

    def branch_to(
        self, successor: tuple[str, list[str]], pending: list[tuple[str, Jump]], arg_slots: dict[str, list[int]]
    ) -> Jump:
        label, values = successor
        jump = Jump(-1, tuple(zip(arg_slots.get(label, []), (self.use(v) for v in values), strict=True)))
        pending.append((label, jump))
        return jump

    def constant(self, op: Op) -> None:
        ty = op.result_types[0]
        value = op.attrs.get("value", 0)  # ub.poison may be anything
        if isinstance(value, np.ndarray):
            value = torch.tensor(value.tolist()).to(ty.dtype)
        elif ty.is_float and not isinstance(value, torch.Tensor):
            value = _rounded(float(value), ty)
        elif ty.elem == "i1":
            value = bool(value)
        self.constants[self.define(op.results[0], ty)] = value

    def info(self, op: Op, row: OpDef) -> OpInfo:
        info = OpInfo(
            index=len(self.ops),
            name=op.name,
            row=row,
            attrs=op.attrs,
            words=op.words,
            groups=[len(g) for g in op.groups],
            operand_types=[t for t in (self.types[self.use(o)] for o in op.operands) if t is not None],
            result_types=op.result_types,
            loc=op.loc,
            text=op.text,
            kernel=self.kernel.name,
            backend=self.backend,
            threads=self.threads,
            warp_size=self.warp_size,
        )
        self.ops.append(info)
        return info

    def row(self, op: Op) -> OpDef:
        row = lookup(op.name)
        if row is None:
            raise UnsupportedOpError(
                f"kernel {self.kernel.name}: operation {op.name} is not supported\n  at {op.loc}\n  {op.text}"
            )
        return row

    def instr(self, op: Op, code: list[Instr]) -> None:
        """Append an operation without control flow."""
        row = self.row(op)
        if row.no_effect:
            return
        info = self.info(op, row)
        info.regions = [self.combining.sub_program(r) for r in op.regions]
        code.append(self.made(info, op))

    def made(self, info: OpInfo, op: Op) -> Instr:
        """The instruction of an operation, its results defined."""
        args = tuple(self.use(o) for o in op.operands)
        results = tuple(self.define(r, t) for r, t in zip(op.results, op.result_types, strict=True))
        return Instr(info, info.row.build, args, results)

    # Control flow

    def scf_for(self, op: Op, code: BasicBlock, on_return: Any) -> BasicBlock:
        loop = LoopInfo(op.loc)
        lower, upper, step = (self.use(o) for o in op.operands[:3])
        inits = [self.use(o) for o in op.operands[3:]]
        iv_ty = op.operand_types[0]
        iv = self.define(op.attrs["iv"], iv_ty)
        carried = [self.define(n, t) for n, t in zip(op.attrs["iter_args"], op.result_types, strict=True)]
        head = self.block()
        code.term = Jump(head.index, ((iv, lower), *zip(carried, inits, strict=True)))
        body = self.block()
        last = self.region_blocks(op.regions[0], body, on_return)
        yields = [self.use(o) for o in op.regions[0].blocks[-1].ops[-1].operands] if carried else []
        last.term = ForBack(iv, step, head.index, tuple(zip(carried, yields, strict=True)))
        after = self.block()
        head.term = ForHead(iv, upper, step, body.index, after.index, bool(op.attrs.get("unsigned")), loop)
        for name, slot in zip(op.results, carried, strict=True):
            self.names[name] = slot
        return after

    def scf_if(self, op: Op, code: BasicBlock, on_return: Any) -> BasicBlock:
        results = [self.define(r, t) for r, t in zip(op.results, op.result_types, strict=True)]
        ends: list[Jump] = []
        entries: list[BasicBlock] = []
        for region in op.regions:
            entry = self.block()
            entries.append(entry)
            last = self.region_blocks(region, entry, on_return)
            yields = [self.use(o) for o in region.blocks[-1].ops[-1].operands] if results else []
            jump = Jump(-1, tuple(zip(results, yields, strict=True)))
            last.term = jump
            ends.append(jump)
        join = self.block()
        for jump in ends:
            jump.target = join.index
        other = entries[1].index if len(entries) > 1 else join.index
        code.term = Branch(self.use(op.operands[0]), Jump(entries[0].index), Jump(other))
        return join

    def scf_while(self, op: Op, code: BasicBlock, on_return: Any) -> BasicBlock:
        loop = LoopInfo(op.loc)
        inits = [self.use(o) for o in op.operands]
        before_args = [self.define(n, t) for n, t in zip(op.attrs["iter_args"], op.operand_types, strict=True)]
        before = self.block()
        code.term = Jump(before.index, tuple(zip(before_args, inits, strict=True)))
        last = self.region_blocks(op.regions[0], before, on_return)
        condition = op.regions[0].blocks[-1].ops[-1]
        cond, *passed = (self.use(o) for o in condition.operands)
        after_args = [self.define(n, t) for n, t in op.regions[1].blocks[0].args]
        results = [self.define(r, t) for r, t in zip(op.results, op.result_types, strict=True)]
        body = self.block()
        end = self.region_blocks(op.regions[1], body, on_return)
        yields = [self.use(o) for o in op.regions[1].blocks[-1].ops[-1].operands]
        end.term = Jump(before.index, tuple(zip(before_args, yields, strict=True)), loop)
        exit_ = self.block()
        last.term = Branch(
            cond,
            Jump(body.index, tuple(zip(after_args, passed, strict=True))),
            Jump(exit_.index, tuple(zip(results, passed, strict=True))),
        )
        return exit_

    def call(self, op: Op, code: BasicBlock) -> BasicBlock:
        """Inline a call: Triton functions do not recurse."""
        callee = self.functions.get(op.symbol)
        if callee is None:
            raise UnsupportedOpError(f"kernel {self.kernel.name}: call of unknown function {op.symbol}\n  at {op.loc}")
        results = [self.slot(t) for t in op.result_types]
        values = [self.use(o) for o in op.operands]
        saved, self.names = self.names, {}
        self.names.update({name: slot for (name, _), slot in zip(callee.args, values, strict=True)})
        returns: list[tuple[Jump, list[int]]] = []
        entry = self.block()
        code.term = Jump(entry.index)
        self.region_blocks(callee.body, entry, returns)
        after = self.block()
        for jump, slots in returns:
            jump.target = after.index
            jump.moves = tuple(zip(results, slots, strict=True))
        self.names = saved
        for name, slot in zip(op.results, results, strict=True):
            self.names[name] = slot
        return after


def _rounded(value: float, ty: Ty) -> float:
    """``value`` as the type holds it. By numpy where that can: a torch operation here would count as one of the rank that
    happens to launch the kernel first."""
    if ty.elem == "f64":
        return value
    if ty.elem in ("f32", "f16"):
        with np.errstate(over="ignore"):
            return float(np.float32(value) if ty.elem == "f32" else np.float16(value))
    if ty.elem == "bf16" and np.isfinite(value):
        bits = int(np.float32(value).view(np.uint32))
        bits += 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
        return float(np.uint32(bits & 0xFFFF0000).view(np.float32))
    return float(torch.tensor(value, dtype=ty.dtype).to(torch.float64))


def lower_ttir(ttir: str, backend: str = "cuda", warps: int = 4, warp_size: int = 32) -> Program:
    """Lift printed TTIR to a program. ``backend``: the target's, ``cuda`` or ``hip``. ``warps``: those of one program.

    Raises:
        UnsupportedOpError: an operation is not implemented; names it and its source line.
    """
    functions = parse_module(ttir)
    return _Lowering(functions, ttir, backend, warps * warp_size, warp_size).run()
