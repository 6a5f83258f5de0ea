"""The communication between parallel and replicated regions, each with its adjoint as backward.

Shoeybi et al., *Megatron-LM* (arXiv 1909.08053, section 3), call the first pair f and g: f is the identity forward and an
all-reduce backward, g the other way round. Korthikanti et al., *Reducing Activation Recomputation* (arXiv 2205.05198,
section 4.2.2), replace them by an all-gather and a reduce-scatter over the sequence, each the other's adjoint.

| function | forward | backward |
|---|---|---|
| copy_to_tensor_model_parallel_region (f) | identity | all-reduce |
| reduce_from_tensor_model_parallel_region (g) | all-reduce | identity |
| scatter_to_tensor_model_parallel_region | split the last dimension | all-gather it |
| gather_from_tensor_model_parallel_region | all-gather the last dimension | split it |
| scatter_to_sequence_parallel_region | split the first dimension | all-gather it |
| gather_from_sequence_parallel_region | all-gather the first dimension | reduce-scatter it (or split) |
| reduce_scatter_to_sequence_parallel_region | reduce-scatter the first dimension | all-gather it |
| all_gather_last_dim_from_tensor_parallel_region | all-gather the last dimension | reduce-scatter it |
| reduce_scatter_last_dim_to_tensor_parallel_region | reduce-scatter the last dimension | all-gather it |

``group`` defaults to this rank's tensor parallel group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.tp import comm
from kernbench.tp.comm import Group
from kernbench.tp.parallel_state import get_tensor_model_parallel_group
from kernbench.tp.utils import divide, split_tensor_along_last_dim

Move = Callable[[torch.Tensor, Group], torch.Tensor]

# -- what moves ------------------------------------------------------------------------------------------------------


def _identity(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    return tensor


def _all_reduce(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    tensor = tensor.clone(memory_format=torch.contiguous_format)  # autograd may still need, or share, the input
    comm.all_reduce(tensor, group=group)
    return tensor


def _split_first(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    rows = divide(tensor.size(0), comm.group_size(group), f"first (sequence) dimension of {tuple(tensor.shape)}")
    return tensor.narrow(0, comm.group_rank(group) * rows, rows).contiguous()


def _gather_first(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    output = tensor.new_empty((tensor.size(0) * comm.group_size(group), *tensor.shape[1:]))
    comm.all_gather_into_tensor(output, tensor.contiguous(), group=group)
    return output


def _reduce_scatter_first(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    rows = divide(tensor.size(0), comm.group_size(group), f"first (sequence) dimension of {tuple(tensor.shape)}")
    output = tensor.new_empty((rows, *tensor.shape[1:]))
    comm.reduce_scatter_tensor(output, tensor.contiguous(), group=group)
    return output


def _split_last(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    return split_tensor_along_last_dim(tensor, comm.group_size(group))[comm.group_rank(group)].contiguous()


def _gather_last(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    size = comm.group_size(group)
    stacked = _gather_first(tensor.unsqueeze(0), group)  # [size, ..., n]
    return stacked.movedim(0, -2).reshape(*tensor.shape[:-1], size * tensor.size(-1))


def _reduce_scatter_last(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    parts = split_tensor_along_last_dim(tensor, comm.group_size(group))
    return _reduce_scatter_first(torch.stack(tuple(parts)), group).squeeze(0)


# -- autograd --------------------------------------------------------------------------------------------------------


class _Region(torch.autograd.Function):
    """Any row of the table."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, move: Move, adjoint: Move, group: Group) -> torch.Tensor:
        ctx.adjoint, ctx.group = adjoint, group
        return tensor.view_as(tensor) if move is _identity else move(tensor, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.adjoint(grad, ctx.group), None, None, None


def requires_grad(tensor: torch.Tensor) -> bool:
    """Whether autograd records what is done with ``tensor``."""
    return torch.is_grad_enabled() and tensor.requires_grad


def needs_autograd(tensor: torch.Tensor) -> bool:
    """:func:`requires_grad`, for what moves between ranks: an error where a gradient could not."""
    wanted = requires_grad(tensor)
    if wanted and not comm.can_differentiate():
        raise KernbenchError(
            f"rank {comm.world_rank()}: autograd through a collective needs isolation='carrier'. Greenlet ranks are for "
            "forward-only programs: use torch tensors that do not require gradients, or spawn with isolation='carrier'."
        )
    return wanted


def _apply(tensor: torch.Tensor, move: Move, adjoint: Move, group: Group | None) -> torch.Tensor:
    group = get_tensor_model_parallel_group() if group is None else group
    if comm.group_size(group) == 1:
        return tensor
    if not needs_autograd(tensor):
        return move(tensor, group)
    result: torch.Tensor = _Region.apply(tensor, move, adjoint, group)
    return result


def copy_to_tensor_model_parallel_region(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """f: the identity; the gradients of all members are summed."""
    return _apply(input_, _identity, _all_reduce, group)


def reduce_from_tensor_model_parallel_region(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """g: the sum over the members. The input keeps its value (Megatron-Core overwrites it)."""
    return _apply(input_, _all_reduce, _identity, group)


def scatter_to_tensor_model_parallel_region(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """This member's part ``[..., n / size]`` of ``[..., n]``."""
    return _apply(input_, _split_last, _gather_last, group)


def gather_from_tensor_model_parallel_region(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """``[..., size * n]`` of every member's ``[..., n]``."""
    return _apply(input_, _gather_last, _split_last, group)


def scatter_to_sequence_parallel_region(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """This member's part ``[s / size, ...]`` of ``[s, ...]``."""
    return _apply(input_, _split_first, _gather_first, group)


def gather_from_sequence_parallel_region(
    input_: torch.Tensor, tensor_parallel_output_grad: bool = True, group: Group | None = None
) -> torch.Tensor:
    """``[size * s, ...]`` of every member's ``[s, ...]``.

    Args:
        tensor_parallel_output_grad: members compute different things with the result, so their gradients are summed
            (reduce-scatter). If False they compute the same, and each takes its part of the gradient.
    """
    return _apply(input_, _gather_first, _reduce_scatter_first if tensor_parallel_output_grad else _split_first, group)


def reduce_scatter_to_sequence_parallel_region(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """This member's part ``[s / size, ...]`` of the sum of all ``[s, ...]``."""
    return _apply(input_, _reduce_scatter_first, _gather_first, group)


def all_gather_last_dim_from_tensor_parallel_region(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """``[..., size * n]`` of every member's ``[..., n]``; gradients of all members are summed."""
    return _apply(input_, _gather_last, _reduce_scatter_last, group)


def reduce_scatter_last_dim_to_tensor_parallel_region(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """This member's part ``[..., n / size]`` of the sum of all ``[..., n]``."""
    return _apply(input_, _reduce_scatter_last, _gather_last, group)
