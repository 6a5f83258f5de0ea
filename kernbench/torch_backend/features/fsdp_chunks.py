"""The chunks of a parameter that FSDP2 shards, on meshes of thousands of ranks.

torch makes a list with a chunk for every rank of the mesh, and takes the rank's own and the first one from it. Each is a view,
and where there are more ranks than rows each that has nothing is an empty tensor of its own, the result of an operation:
thousands for each parameter. Here a chunk is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import overload

import torch

from kernbench.torch_backend.gpu.tensors.placement import PLAIN
from kernbench.torch_backend.modes import plain_torch
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


class Chunks(Sequence[torch.Tensor]):
    """Parts of a tensor along a dimension, which is not empty, as ``torch.chunk`` cuts it, and empty ones behind them.

    Args:
        tensor: the whole.
        count: how many there are.
        dim: the dimension.
    """

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        self._whole = torch.chunk(tensor, 1, dim)[0]  # the host is charged for the cut, which is one view
        self._count = count
        self._dim = dim
        self._size = -(-tensor.size(dim) // count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, at: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, at: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(self._count))]
        if not -self._count <= at < self._count:
            raise IndexError(at)
        whole, begin = self._whole, at % self._count * self._size
        length = min(self._size, whole.size(self._dim) - begin)
        with plain_torch():  # what torch takes of its list is no operation
            return whole.narrow(self._dim, begin, length) if length > 0 else whole.new_empty(0)


def install(patches: Patches, module: ModuleType) -> None:
    """Have FSDP take its chunks from there."""
    stock = getattr(module, _NAME)

    def chunks(tensor: torch.Tensor, num_chunks: int, dim: int) -> Sequence[torch.Tensor]:
        if type(tensor) not in PLAIN or not tensor.size(dim):
            return stock(tensor, num_chunks, dim)
        return Chunks(tensor, num_chunks, dim)

    patches.set(module, _NAME, chunks)
