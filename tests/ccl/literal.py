"""A schedule run literally, every transfer of every round one by one: what the quick ways to values are held against."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from kernbench.ccl.expressions import WIDE_DTYPES
from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.schedule import Schedule, Way


def run_rounds(
    schedule: Schedule, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], op: ReduceOp
) -> None:
    """All-reduce ``inputs`` into ``outputs``, ``members`` tensors ``[count]`` each."""
    for target, result in zip(outputs, literal_run(schedule, inputs, op), strict=True):
        target.copy_(torch.cat(result[: schedule.chunks]))
        op.finish(target, schedule.members)


def literal_run(schedule: Schedule, inputs: Sequence[torch.Tensor], op: ReduceOp) -> list[list[torch.Tensor]]:
    """``[members][slots]`` what each chunk holds after the last round, rounded to the inputs' dtype."""
    bounds = schedule.chunk_bounds(inputs[0].numel()).tolist()
    narrow = inputs[0].dtype
    nothing = torch.empty(0, dtype=narrow)
    held = [
        [*(source[begin:end].clone() for begin, end in pairwise(bounds)), *([nothing] * len(schedule.scratch))]
        for source in inputs
    ]
    columns = list(
        zip(
            schedule.src.tolist(), schedule.dst.tolist(), schedule.chunk.tolist(), schedule.to_chunk.tolist(),
            schedule.reduces.tolist(), (schedule.way == Way.LOCAL).tolist(), strict=True,
        )
    )  # fmt: skip
    for begin, end in pairwise(schedule.rounds.tolist()):
        rows = columns[begin:end]
        # everything that a round sends is read before anything is written; what leaves a member is rounded
        sent = [held[src][chunk] if local else held[src][chunk].to(narrow) for src, _, chunk, _, _, local in rows]
        for arriving, (_, dst, _, chunk, reduces, local) in zip(sent, rows, strict=True):
            if not reduces:
                held[dst][chunk] = arriving
                continue
            kept = WIDE_DTYPES.get(narrow, narrow) if local else narrow
            out = torch.empty(arriving.shape, dtype=kept)
            op.combine(arriving.to(kept), held[dst][chunk].to(kept), out)
            held[dst][chunk] = out
    return [[chunk.to(narrow) for chunk in member] for member in held]
