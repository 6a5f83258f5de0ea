"""Graphs that run as they are written, with an estimate of what fusion would make of them.

Operations that Inductor would write one kernel for, element by element or reducing, are taken together as long as they go over
the same number of elements. Such a group is one launch; it reads what was made before it, and writes what outlives it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernbench.cost.operator import Kind, Model
from kernbench.cost.operators import find
from kernbench.cost.work import Cost
from kernbench.simulation.memory.storages import Block
from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._dynamo.backends.common.aot_autograd", "it makes a forward and a backward graph", parameters=("kwargs",)),
    Reliance("torch._functorch.aot_autograd.make_boxed_func", "its graphs are called with a list", parameters=("f",)),
    Reliance("torch._functorch.partitioners.min_cut_rematerialization_partition", "what is kept for backward is chosen by it"),
)  # fmt: skip

_FUSED = (Kind.COMPUTE, Kind.TRANSFER)  # the latter: casts


def compile_(graph: Any, inputs: Sequence[object]) -> Callable[..., Any]:
    """A function that runs a graph, and its backward, operation by operation, and takes the time of fused groups."""
    try:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.aot_autograd import make_boxed_func
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        def compiler(module: Any, example: object) -> Any:
            return make_boxed_func(_estimated(module))

        backend = aot_autograd(
            fw_compiler=compiler, bw_compiler=compiler, partition_fn=min_cut_rematerialization_partition,
            keep_inference_input_mutations=True,
        )  # fmt: skip
        return backend(graph, inputs)
    except Exception:  # what AOTAutograd cannot trace either runs eagerly, backward operation by operation
        return _estimated(graph)


def _estimated(module: Callable[..., object]) -> Callable[..., Any]:
    def run(*args: object) -> Any:
        mine = current_device()
        if mine is None:
            return module(*args)
        groups = _Groups(mine)
        main = next(
            (mine.index_of(block.memory.sip) for each in args if (block := _block(each)) is not None), mine.index
        )
        with mine.counted_from(main), mine.diverting(groups.take):
            result = module(*args)
        groups.close()
        return result

    return run


def _block(value: object) -> Block | None:
    return block_of(value) if isinstance(value, torch.Tensor) else None


class _Groups:
    """Takes operations, and enqueues one kernel for each group of those that would be fused.

    Args:
        device: whose they are.
    """

    def __init__(self, device: RankDevice) -> None:
        self._device = device
        self._elements = 0
        self._names: list[str] = []
        self._read: dict[int, Any] = {}
        self._made: dict[int, tuple[Any, Any]] = {}

    def take(self, name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], cost: Cost) -> None:
        """One more operation."""
        row = find(name)
        if row is None or row.kind not in _FUSED or row.model is not Model.TRAFFIC:
            self.close()
            self._device.enqueue(name, cost)
            return
        elements = max((each.numel() for each in (*inputs, *outputs)), default=0)
        if self._names and elements != self._elements:
            self.close()
        self._elements = elements
        self._names.append(name)
        for each in inputs:
            key = _memory(each)
            if key not in self._made:
                self._read[key] = (tuple(each.shape), each.dtype)
        for each in outputs:
            self._made[_memory(each)] = weakref.ref(each.untyped_storage()), (tuple(each.shape), each.dtype)

    def close(self) -> None:
        """Enqueue what was taken together."""
        if not self._names:
            return
        kept = [(shape, dtype) for alive, (shape, dtype) in self._made.values() if alive() is not None]
        cost = self._device.simulation.op_costs.of("aten::add", tuple(self._read.values()), tuple(kept))  # by its bytes
        self._device.enqueue("fused_" + "_".join(dict.fromkeys(self._names)), cost)
        self._names, self._read, self._made = [], {}, {}


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
