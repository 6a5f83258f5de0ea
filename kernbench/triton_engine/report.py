"""What a waiting execution waits for, in the words of the kernel's source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .lift.program import Branch, Instr
from .values import Ptr, lane_array

if TYPE_CHECKING:
    from .machine import Batch, Execution


_MOST_WORDS = 8


def describe_wait(x: Execution) -> str:
    """One paragraph per waiting batch: programs, source line, address, value seen, value wanted."""
    lines = [f"kernel {x.launches[0].name or x.program.name} waits for memory that nobody writes"]
    for b in x.batches:
        lines += ["  " + line for line in _describe_batch(x, b)]
    return "\n".join(lines)


def _describe_batch(x: Execution, b: Batch) -> list[str]:
    out = [b.describe_lanes(None)]
    launches = {x.launches[r].where for r in ([b.rank] if b.rank_index is None else np.unique(b.rank_index).tolist())}
    out += [f"  launched at {w}" for w in sorted(launches) if w]
    found = _watched(x, b)
    if found is None:
        return out
    instr, wanted = found
    out.append(f"  at {instr.info.loc}: {instr.info.name}")
    if instr.info.name == "tt.elementwise_inline_asm":
        return out if b.watched is None else out + _words(x, b.watched.astype(np.int64), torch.int32, "")
    pointer = b.env[instr.args[0]]
    if isinstance(pointer, Ptr) and pointer.den is None and not instr.info.operand_types[0].shape:
        out += _addresses(x, b, pointer, instr, wanted)
    return out


def _watched(x: Execution, b: Batch) -> tuple[Instr, str] | None:
    """The instruction whose result decides the loop that the batch came round in, and what it is compared with."""
    for code in x.program.blocks[b.pc :]:
        reads = [i for i in code.instrs if i.info.name in ("tt.load", "tt.atomic_cas", "tt.atomic_rmw")]
        asm = [i for i in code.instrs if i.info.name == "tt.elementwise_inline_asm"]
        if not reads and not asm:
            if isinstance(code.term, Branch):
                continue
            return None
        chosen = (reads or asm)[-1]
        wanted = ""
        for i in code.instrs:
            if i.info.name == "arith.cmpi" and set(i.args) & set(chosen.results):
                other = next((a for a in i.args if a not in chosen.results), None)
                value = b.env[other] if other is not None else None
                # the loop goes on while the comparison holds
                holds = {"eq": "!=", "ne": "==", "slt": ">=", "sle": ">", "sgt": "<=", "sge": "<"}
                wanted = f"{holds.get(i.info.words[0], i.info.words[0])} {value}" if value is not None else ""
        return chosen, wanted
    return None


def _addresses(x: Execution, b: Batch, pointer: Ptr, instr: Instr, wanted: str) -> list[str]:
    from .ops.memory import operand_dtype

    kind = operand_dtype(instr.info.operand_types[0].pointee)
    address = x.addresses(b, pointer, ()).numpy()
    return _words(x, address, kind, f", wants {wanted}" if wanted else "")


def _words(x: Execution, addresses: np.ndarray, kind: torch.dtype, wanted: str) -> list[str]:
    """What the words are, and what they hold."""
    out: list[str] = []
    for address in np.unique(addresses)[:_MOST_WORDS]:
        allocation: Any = x.find(int(address))
        if allocation is None:
            continue
        element = (int(address) - allocation.base) // kind.itemsize
        value = allocation.flat(kind)[element].item()
        out.append(f"  waits on element {element} of {allocation.describe()}: sees {value}{wanted}")
    return out


__all__ = ["describe_wait", "lane_array"]
