"""What a program's matrix products look like before it runs: tiles, where operands come from, who needs the sums."""

from __future__ import annotations

from kernbench.cost.tile_products import TileProduct

from .program import BasicBlock, Instr, Program


def tile_products(program: Program) -> list[list[TileProduct]]:
    """The products of each block. Those of scaled operands are left out."""
    return [[_product(i, block, program) for i in block.instrs if i.info.row.plain_product] for block in program.blocks]


def _product(instr: Instr, block: BasicBlock, program: Program) -> TileProduct:
    info = instr.info
    left = info.operand_types[0]
    made = {slot: i for i in block.instrs for slot in i.results}
    (one, turned), (other, flipped) = (_loaded(slot, made) for slot in instr.args[:2])
    sums = instr.args[2]
    needed = any(instr.results[0] in i.args for i in block.instrs if not i.info.row.product)
    changed = sums in made and not made[sums].info.row.product
    return TileProduct(
        info.index, left.elem, info.ty.shape[-2], info.ty.shape[-1], left.shape[-1], program.threads,
        str(info.attrs.get("inputPrecision", "tf32")), (one, other), (turned, flipped), needed or changed,
    )  # fmt: skip


def _loaded(slot: int, made: dict[int, Instr]) -> tuple[int, bool]:
    """Number of the load of the same block whose result ``slot`` is, or -1; and whether it is turned."""
    turned = False
    while (instr := made.get(slot)) is not None:
        if instr.info.row.loads:
            return instr.info.index, turned
        if not instr.info.row.recasts:
            break
        turned ^= instr.info.row.turns
        slot = instr.args[0]
    return -1, turned


def waiting_operands(program: Program) -> tuple[int, int]:
    """Bytes of shared memory of a program: of operands that a loop loads, one trip's, and of those that are loaded once.

    A left operand that is computed stays in registers.
    """
    every = {slot: i for block in program.blocks for i in block.instrs for slot in i.results}
    home = {i.info.index: block.index for block in program.blocks for i in block.instrs}
    staged: dict[int, int] = {}
    once: dict[int, int] = {}
    for block in program.blocks:
        for instr in block.instrs:
            if not instr.info.row.plain_product:
                continue
            for side, slot in enumerate(instr.args[:2]):
                ty = instr.info.operand_types[side]
                load, _ = _loaded(slot, every)
                nbytes = ty.numel * ty.itemsize
                if load >= 0 and home[load] == block.index:
                    staged[load] = nbytes
                elif load >= 0:
                    once[load] = nbytes
                elif side:
                    once[-instr.info.index] = nbytes
    return sum(staged.values()), sum(once.values())
