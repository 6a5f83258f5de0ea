"""How DTensor may shard the CPU's attention, which stands for the GPU's kernels.

``F.scaled_dot_product_attention`` of DTensors on a GPU comes to a kernel that DTensor has rules for. A simulated GPU's
tensors are CPU tensors, and the CPU's kernel has none. Its rules are the GPU kernels': everything replicated, heads sharded,
or the batch sharded.

Relies on: ``op_strategy_funcs`` and ``op_to_schema_info`` of DTensor's sharding propagator being dictionaries by operator,
and ``expand_to_full_mesh_op_strategy`` taking outputs' placements before inputs', those of keywords last.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernbench.torch_backend.patches import Patches

MODULE = "torch.distributed.tensor"

_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: 2,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 3,
}
"""Operators, and how many outputs they have. All tensors are ``[batch, heads, ...]``, but for a mask of fewer dimensions."""


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


def install(patches: Patches, module: Any) -> None:
    """Add the rules, where torch has none."""
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    propagator = module.DTensor._op_dispatcher.sharding_propagator
    missing = {op: count for op, count in _ATTENTION.items() if op not in propagator.op_strategy_funcs}
    strategies = {op: functools.partial(_strategy, count) for op, count in missing.items()}
    infos = {op: RuntimeSchemaInfo(100) for op in missing}
    patches.set(propagator, "op_strategy_funcs", {**propagator.op_strategy_funcs, **strategies})
    patches.set(propagator, "op_to_schema_info", {**propagator.op_to_schema_info, **infos})
