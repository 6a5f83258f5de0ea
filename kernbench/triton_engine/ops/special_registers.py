"""Special registers: which thread of which program of which grid an instruction is executed by.

Inline PTX reads them as ``%tid.x``; ``extern_elementwise`` calls ``llvm.nvvm.read.ptx.sreg.tid.x``, which is the same.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

#: What differs between the threads of a program, as assembly says it.
OF_THREADS = re.compile(r"%(?:tid|laneid|warpid|lanemask_\w+)\b")
_INTRINSIC = re.compile(r"llvm\.nvvm\.read\.ptx\.sreg\.([\w.]+)")
_AMD = {f"llvm.amdgcn.workitem.id.{axis}": f"tid.{axis}" for axis in "xyz"} | {
    f"llvm.amdgcn.workgroup.id.{axis}": f"ctaid.{axis}" for axis in "xyz"
}


def register_of(symbol: str) -> str | None:
    """The register that an LLVM intrinsic reads, as assembly says it (``%tid.x``); None: it reads none."""
    if symbol in _AMD:
        return f"%{_AMD[symbol]}"
    match = _INTRINSIC.fullmatch(symbol)
    if match is None:
        return None
    name = match[1].replace("lanemask.", "lanemask_")
    return f"%{name}"


def special_registers(
    ids: np.ndarray, grid: tuple[int, int, int], thread: np.ndarray, threads: int, warp: int
) -> dict[str, Any]:
    """The registers by name, of programs ``ids`` and threads ``thread`` (arrays that broadcast to one shape).

    Args:
        threads: how many a program has.
        warp: how many a warp has.
    """
    gx, gy, gz = grid
    lane = thread % warp
    below = (1 << lane.astype(np.uint64)) - np.uint64(1)
    here = np.uint64(1) << lane.astype(np.uint64)
    full = np.uint64((1 << warp) - 1)
    return {
        "%tid.x": thread, "%tid.y": 0, "%tid.z": 0, "%ntid.x": threads, "%ntid.y": 1, "%ntid.z": 1,
        "%ctaid.x": ids % gx, "%ctaid.y": ids // gx % gy, "%ctaid.z": ids // (gx * gy),
        "%nctaid.x": gx, "%nctaid.y": gy, "%nctaid.z": gz,
        "%smid": ids, "%nsmid": gx * gy * gz, "%laneid": lane, "%warpid": thread // warp, "%nwarpid": threads // warp,
        "%warpsize": warp, "WARP_SZ": warp, "%gridid": 0,
        "%lanemask_eq": here, "%lanemask_lt": below, "%lanemask_le": below | here,
        "%lanemask_ge": full & ~below, "%lanemask_gt": full & ~(below | here),
        "%globaltimer": 0, "%globaltimer_lo": 0, "%globaltimer_hi": 0, "%clock": 0, "%clock64": 0,
    }  # fmt: skip


#: The names of those that there are.
KNOWN_REGISTERS = frozenset(special_registers(np.zeros(1, np.int64), (1, 1, 1), np.zeros(1, np.int64), 32, 32))
