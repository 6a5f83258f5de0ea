"""Functional collectives whose C++ asks a group for a C++ backend, where the group is a class of Python's.

C++ calls the methods of such a group for most functional collectives. These it carries out by its base class, which has no
backend to give them to ("No backend type associated with device type cpu"); here they call the group's methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.distributed_c10d

from kernbench.torch_backend.process_groups.group_class import STOCK
from kernbench.torch_backend.relies_on import Reliance

c10d: Any = torch.distributed.distributed_c10d
_bindings: Any = torch._C._distributed_c10d

RELIES_ON = (
    Reliance("torch._C._distributed_c10d._register_work", "wait_tensor of a tensor waits for the work noted for it"),
    Reliance("torch.distributed.distributed_c10d._resolve_process_group", "groups are known by name"),
    Reliance(
        "torch.ops._c10d_functional.all_gather_into_tensor_out", "it gathers into `out`",
        holds=lambda op: [each.name for each in op.default._schema.arguments]
        == ["input", "group_size", "group_name", "out"],
    ),
    Reliance(
        "torch.ops._c10d_functional.batch_p2p_ops", "it posts messages, each by its place in these lists",
        holds=lambda op: [each.name for each in op.default._schema.arguments]
        == ["op_list", "peer_list", "tag_list", "tensors", "group_name"],
    ),
)  # fmt: skip


def _group_with(method: str, group: Any) -> Any:
    """The group of a name, or the group itself, if its class has a ``method`` of its own; else None."""
    if isinstance(group, str):
        group = c10d._resolve_process_group(group)
    return group if getattr(type(group), method, None) is not getattr(STOCK, method, None) else None


def _all_gather_into_tensor_out(
    input: torch.Tensor, group_size: int, group_name: Any, *, out: torch.Tensor
) -> torch.Tensor:
    group = _group_with("all_gather_single", group_name)
    if group is None:
        stock: torch.Tensor = torch.ops._c10d_functional.all_gather_into_tensor_out(
            input, group_size, group_name, out=out
        )
        return stock
    _bindings._register_work(out, group.all_gather_single(out, input.contiguous()))
    return out


def _batch_p2p_ops(
    op_list: list[str], peer_list: list[int], tag_list: list[int], tensors: list[torch.Tensor], group_name: str
) -> list[torch.Tensor]:
    """What is received, and a tensor without elements for each that is sent; to be waited for one by one."""
    group = _group_with("_get_backend", group_name)
    counts = {len(op_list), len(peer_list), len(tag_list), len(tensors)}
    if group is None or len(counts) > 1 or not op_list:
        stock: list[torch.Tensor] = torch.ops._c10d_functional.batch_p2p_ops(
            op_list, peer_list, tag_list, tensors, group_name
        )
        return stock
    results = []
    for op, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors, strict=True):
        if op == "isend":
            result, work = tensor.new_empty(0), group.send([tensor], peer, tag)
            _bindings._register_work(tensor, work)
        elif op == "irecv":
            result, work = tensor, group.recv([tensor], peer, tag)
        else:
            raise RuntimeError(f"Unsupported async op {op}")
        _bindings._register_work(result, work)
        results.append(result)
    return results


KERNELS: dict[str, Callable[..., object]] = {
    "_c10d_functional::all_gather_into_tensor_out": _all_gather_into_tensor_out,
    "_c10d_functional::batch_p2p_ops": _batch_p2p_ops,
}
"""What carries out these operators, by name."""
