"""What a waiting execution waits for, in the words of the kernel's source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .batch import Batch
from .binding import Binding
from .frontend.program import Branch, Instr
from .frontend.types import memory_dtype
from .values import Ptr

_MOST_WORDS = 8


def describe_wait(binding: Binding, batches: Sequence[Batch]) -> str:
    """One paragraph per waiting batch: programs, source line, address, value seen, value wanted."""
    lines = [f"kernel {binding.launches[0].name or binding.program.name} waits for memory that no program writes"]
    for batch in batches:
        lines += ["  " + line for line in _describe_batch(binding, batch)]
    return "\n".join(lines)


def _describe_batch(binding: Binding, batch: Batch) -> list[str]:
    out = [batch.describe_lanes(None)]
    launches = {
        binding.launches[r].where
        for r in ([batch.rank] if batch.rank_index is None else np.unique(batch.rank_index).tolist())
    }
    out += [f"  launched at {w}" for w in sorted(launches) if w]
    found = _watched(binding, batch)
    if found is None:
        return out
    instr, wanted = found
    out.append(f"  at {instr.info.loc}: {instr.info.name}")
    if instr.info.row.waits:
        return out if batch.watched is None else out + _words(binding, batch.watched.astype(np.int64), torch.int32, "")
    pointer = batch.env[instr.args[0]]
    if isinstance(pointer, Ptr) and pointer.scattered is None and not instr.info.operand_types[0].shape:
        out += _addresses(binding, batch, pointer, instr, wanted)
    return out


def _watched(binding: Binding, batch: Batch) -> tuple[Instr, str] | None:
    """The instruction whose result decides the loop that the batch came round in, and what it is compared with."""
    for code in binding.program.blocks[batch.pc :]:
        reads = [i for i in code.instrs if i.info.row.reads]
        if not reads:
            if isinstance(code.term, Branch):
                continue
            return None
        chosen = next((i for i in reversed(reads) if not i.info.row.waits), reads[-1])
        wanted = ""
        for i in code.instrs:
            if i.info.row.compares and set(i.args) & set(chosen.results):
                other = next((a for a in i.args if a not in chosen.results), None)
                value = batch.env[other] if other is not None else None
                # the loop goes on while the comparison holds
                holds = {"eq": "!=", "ne": "==", "slt": ">=", "sle": ">", "sgt": "<=", "sge": "<"}
                wanted = f"{holds.get(i.info.words[0], i.info.words[0])} {value}" if value is not None else ""
        return chosen, wanted
    return None


def _addresses(binding: Binding, batch: Batch, pointer: Ptr, instr: Instr, wanted: str) -> list[str]:
    kind = memory_dtype(instr.info.operand_types[0].pointee)
    address = binding.addresses(batch, pointer, ()).numpy()
    return _words(binding, address, kind, f", wants {wanted}" if wanted else "")


def _words(binding: Binding, addresses: np.ndarray, kind: torch.dtype, wanted: str) -> list[str]:
    """What the words are, and what they hold."""
    out: list[str] = []
    for address in np.unique(addresses)[:_MOST_WORDS]:
        allocation: Any = binding.find(int(address))
        if allocation is None:
            continue
        element = (int(address) - allocation.base) // kind.itemsize
        value = allocation.flat(kind)[element].item()
        out.append(f"  waits on element {element} of {allocation.describe()}: sees {value}{wanted}")
        if binding.checks is not None and (told := binding.checks.history(allocation, element * kind.itemsize)):
            out.append(f"    {told}")
    return out
