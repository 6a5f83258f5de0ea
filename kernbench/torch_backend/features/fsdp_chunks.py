"""The chunks of a parameter that FSDP2 shards over more ranks than it has rows.

torch makes a list with a chunk for every rank of the mesh, and takes the rank's own and the first one from it. Those that have
nothing are an empty tensor each, thousands for each parameter on thousands of ranks, and each of them an operation. They are all
the same, so one stands for all of them.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param"

_NAME = "_chunk_with_empty"

RELIES_ON = (
    Reliance(
        f"{MODULE}.{_NAME}", "it gives a list of chunks, empty ones behind those that have something",
        looked_up_by=(f"{MODULE}.FSDPParam._init_sharded_param",), parameters=("tensor", "num_chunks", "dim"),
        holds=lambda chunk: [len(each) for each in chunk(torch.ones(2), 4, 0)] == [1, 1, 0, 0],
    ),
)  # fmt: skip


def chunks(tensor: torch.Tensor, num_chunks: int, dim: int) -> list[torch.Tensor]:
    """``num_chunks`` parts of a tensor along a dimension; those that have nothing are one object."""
    found = list(torch.chunk(tensor, num_chunks, dim=dim))
    missing = num_chunks - len(found)
    return [*found, *([found[0].new_empty(0)] * missing if missing else ())]


def install(patches: Patches, module: Any) -> None:
    """Have FSDP take its chunks from there."""
    patches.set(module, _NAME, chunks)
