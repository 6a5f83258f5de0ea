"""How DTensor may shard the CPU's attention, which stands for the GPU's kernels.

``F.scaled_dot_product_attention`` of DTensors on a GPU comes to a kernel that DTensor has rules for. A simulated GPU's
tensors are CPU tensors, and the CPU's kernel has none. Its rules are the GPU kernels': everything replicated, heads sharded,
or the batch sharded.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.tensor"

_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: 2,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 3,
}
"""Operators, and how many outputs they have. All tensors are ``[batch, heads, ...]``, but for a mask of fewer dimensions."""


def _returns(count: int, op: Any) -> bool:
    return len([each for each in op._schema.returns if "Tensor" in str(each.type)]) == count


RELIES_ON = (
    Reliance(
        "torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator", "its tables, by operator, say how to shard",
        has=("op_strategy_funcs", "op_to_schema_info"),
        holds=lambda propagator: all(
            isinstance(table, dict) for table in (propagator.op_strategy_funcs, propagator.op_to_schema_info)
        ),
    ),
    Reliance("torch.distributed.tensor._op_schema.RuntimeSchemaInfo", "rules are kept by an operator's arguments"),
    Reliance(
        "torch.distributed.tensor._ops.utils.expand_to_full_mesh_op_strategy",
        "it takes placements of outputs before inputs', those of keywords last",
        parameters=("mesh", "op_schema", "single_mesh_dim_strategies"),
    ),
    *(Reliance(f"torch.ops.{op}", "attention on the CPU comes to it", holds=functools.partial(_returns, count))
      for op, count in _ATTENTION.items()),
)  # fmt: skip


def _strategy(outputs: int, op_schema: Any) -> Any:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    tensors = len(op_schema.args_strategy)
    masks = [each.strategies[0].output_spec.shape for each in op_schema.kwargs_strategy]
    ways: list[list[Any]] = [[Replicate()] * (outputs + tensors + len(masks))]
    for dim in (1, 0):
        if all(len(shape) < 4 or shape[dim] == 1 for shape in masks):  # a keyword is not given another placement
            ways.append([Shard(dim)] * (outputs + tensors) + [Replicate()] * len(masks))
    return expand_to_full_mesh_op_strategy(op_schema.get_mesh_from_args(), op_schema, ways, input_index=outputs)


def install(patches: Patches, module: ModuleType) -> None:
    """Add the rules, where torch has none."""
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    propagator = module.DTensor._op_dispatcher.sharding_propagator
    missing = {op: count for op, count in _ATTENTION.items() if op not in propagator.op_strategy_funcs}
    strategies = {op: functools.partial(_strategy, count) for op, count in missing.items()}
    infos = {op: RuntimeSchemaInfo(100) for op in missing}
    patches.set(propagator, "op_strategy_funcs", {**propagator.op_strategy_funcs, **strategies})
    patches.set(propagator, "op_to_schema_info", {**propagator.op_to_schema_info, **infos})
