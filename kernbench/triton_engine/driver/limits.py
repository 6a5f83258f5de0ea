"""How much shared memory a kernel needs, derived from TTIR; and the refusal of what a GPU would refuse.

Launches compile to TTIR only, so the compiler has not said how much shared memory a kernel takes. It is dominated by the
operands of matrix products that wait in it, once per pipeline stage; that sum is known from TTIR. Only where it comes near what
the device has is the kernel compiled in full, which decides (0.3-2 s once; Triton's cache keeps the answer).
"""

from __future__ import annotations

from typing import Any

from kernbench.cost.kernel_time import Resources, occupancy
from kernbench.triton_engine.frontend.program import Instr, Program

from .pipeline import compile_for, options_of
from .resources import current_device

#: Share of the device's shared memory above which the bound is not trusted.
_NEAR = 0.75

MOST_BLOCKS = 65_535
"""Blocks of a grid along y and z, of NVIDIA's GPUs."""

_MOST_ALONG_X = 2**31 - 1


def shared_bound(program: Program, num_stages: int) -> int:
    """Bytes of shared memory for the operands of matrix products, in the block of the program that needs most."""
    most = 0
    for code in program.blocks:
        made = {r: instr for instr in code.instrs for r in instr.results}
        waiting: dict[int, int] = {}
        for instr in code.instrs:
            if not instr.info.row.product:
                continue
            most = max(most, 4 * instr.info.ty.numel)  # the result changes its layout before it is stored
            for slot, ty in zip(instr.args, instr.info.operand_types, strict=True):
                if len(ty.shape) < 2 or ty == instr.info.ty:
                    continue
                source, loaded = _source(slot, made)
                size = ty.numel * ty.itemsize if loaded is None else loaded.info.ty.numel * loaded.info.ty.itemsize
                waiting[source] = size * (1 if loaded is None else max(1, num_stages))
        most = max(most, sum(waiting.values()))
    return most


def _source(slot: int, made: dict[int, Instr]) -> tuple[int, Instr | None]:
    """The slot that an operand is a form of, and the load that made it, if one of this block did."""
    while (instr := made.get(slot)) is not None:
        if instr.info.row.loads:
            return slot, instr
        if not instr.info.row.recasts:
            break
        slot = instr.args[0]
    return slot, None


def compiled_in_full(metadata: object) -> bool:
    """Whether a kernel was compiled beyond TTIR."""
    return not hasattr(metadata, "kernbench_ttir")


def refuse_what_does_not_fit(launcher: Any) -> None:
    """Raise what Triton raises on a GPU for a kernel that needs more shared memory than a block may have.

    Raises:
        triton.runtime.errors.OutOfResources: as autotuning expects of a configuration that cannot run.
    """
    metadata = launcher.metadata
    available = current_device().pe.tcm_per_block
    if compiled_in_full(metadata) or shared_bound(launcher.program, metadata.num_stages) <= _NEAR * available:
        return  # compiled in full: Triton has looked itself
    shared = _compiled_shared(launcher)
    if shared > available:
        from triton.runtime.errors import OutOfResources

        raise OutOfResources(shared, available, "shared memory")


def refuse_grid(launcher: Any, grid: tuple[int, int, int]) -> None:
    """Raise what CUDA says, through Triton, of a grid that is larger than it launches.

    A cooperative launch takes as many blocks as the device holds at a time; what bounds it here is their threads and the shared
    memory of a kernel that was compiled in full.

    Raises:
        RuntimeError: nothing is launched.
    """
    metadata = launcher.metadata
    if metadata.target.backend == "cuda" and (grid[0] > _MOST_ALONG_X or max(grid[1:]) > MOST_BLOCKS):
        raise RuntimeError(
            f"Triton Error [CUDA]: invalid argument: kernel {metadata.name} has a grid of {grid}, and a GPU launches "
            f"{_MOST_ALONG_X} blocks at most along x and {MOST_BLOCKS} along y and z"
        )
    if not is_cooperative(metadata):
        return
    shared = metadata.shared if compiled_in_full(metadata) else 0
    device = current_device()
    needs = Resources(1, 0, shared, metadata.num_warps, metadata.num_stages, getattr(metadata, "num_ctas", 1) or 1)
    most = device.pes * occupancy(needs, device)[0]
    if (blocks := grid[0] * grid[1] * grid[2]) > most:
        raise RuntimeError(
            f"Triton Error [{metadata.target.backend.upper()}]: too many blocks in cooperative launch: kernel {metadata.name} "
            f"has {blocks} blocks, and {device.name} holds {most} of {metadata.num_warps} warps at a time: make the grid "
            "smaller, or launch without launch_cooperative_grid"
        )


def is_cooperative(metadata: Any) -> bool:
    """Whether all blocks of a launch are to run at a time."""
    return bool(getattr(metadata, "launch_cooperative_grid", False))


def _compiled_shared(launcher: Any) -> int:
    """Bytes of shared memory by the compiler; 0 if it fails beyond TTIR, which says nothing of memory."""
    from triton.compiler import compile as compile_

    try:
        with compile_for("full"):
            full = compile_(launcher.src, target=launcher.metadata.target, options=options_of(launcher.metadata))
    except Exception:
        return 0
    return int(full.metadata.shared)
