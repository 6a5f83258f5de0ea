"""The product at the heart of the parallel layers, with its communication hidden behind it.

Forward ``Y = act(X W^T + b)``. Backward has two products, ``dX = dZ W`` and ``dW = dZ^T X``. Only dX concerns other ranks, so
it is computed first and its all-reduce (with sequence parallelism: reduce-scatter) travels while dW is computed; the
all-gather of X that sequence parallelism needs for dW travels while dX is computed (Korthikanti et al., arXiv 2205.05198,
section 4.2.2).
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.errors import ConfigError
from kernbench.tp import comm
from kernbench.tp.comm import Group
from kernbench.tp.kernels.gemm import activation_grad, gemm
from kernbench.tp.mappings import needs_autograd, requires_grad
from kernbench.tp.parallel_state import get_tensor_model_parallel_group


def _gather(tensor: torch.Tensor, group: Group, *, async_op: bool = False) -> tuple[torch.Tensor, Any]:
    """All members' ``[s, ...]`` as ``[size * s, ...]``, and the Work of an asynchronous gather."""
    output = tensor.new_empty((tensor.size(0) * comm.group_size(group), *tensor.shape[1:]))
    return output, comm.all_gather_into_tensor(output, tensor.contiguous(), group=group, async_op=async_op)


def _forward(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    keep_pre_activation: bool,
    gather_group: Group | None,
    reduce_group: Group | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``[..., in] -> [..., out]`` and what the activation was applied to, ``[rows, out]``, if it is to be kept."""
    total = inputs if gather_group is None else _gather(inputs, gather_group)[0]
    rows = total.reshape(-1, total.size(-1))
    output = rows.new_empty((*total.shape[:-1], weight.size(0)))  # no view, so that a caller may write into it
    flat = output.view(-1, weight.size(0))
    pre = torch.empty_like(flat) if activation and keep_pre_activation else None
    gemm(rows, weight.t(), bias=bias, activation=activation, pre_activation=pre, out=flat)
    if reduce_group is not None:
        comm.all_reduce(output, group=reduce_group)
    return output, pre


class LinearWithAsyncCommunication(torch.autograd.Function):
    """Megatron-Core's ``LinearWithGradAccumulationAndAsyncCommunication``, on the Triton gemm."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str | None,
        allreduce_dgrad: bool,
        sequence_parallel: bool,
        reduce_output: bool,
        group: Group,
    ) -> torch.Tensor:
        """``[..., out]`` activations; see the class."""
        output, pre = _forward(
            inputs,
            weight,
            bias,
            activation,
            True,
            group if sequence_parallel else None,
            group if reduce_output else None,
        )
        ctx.save_for_backward(inputs, weight, pre)
        ctx.has_bias, ctx.activation = bias is not None, activation
        ctx.allreduce_dgrad, ctx.sequence_parallel, ctx.group = allreduce_dgrad, sequence_parallel, group
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        """Gradients of input, weight and bias; what is communicated overlaps what is computed."""
        inputs, weight, pre = ctx.saved_tensors
        need_input, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad = grad_output.reshape(-1, grad_output.size(-1))
        if pre is not None:
            grad = activation_grad(grad.contiguous(), pre, ctx.activation)

        total, gathering = inputs, None
        if ctx.sequence_parallel and need_weight:
            total, gathering = _gather(inputs, ctx.group, async_op=True)

        grad_input = grad_weight = grad_bias = reducing = None
        if need_input:
            shape = (*grad_output.shape[:-1], weight.size(1))
            grad_input = gemm(grad, weight).view(shape)
            if ctx.sequence_parallel:
                whole = grad_input
                grad_input = whole.new_empty(inputs.shape)
                reducing = comm.reduce_scatter_tensor(grad_input, whole, group=ctx.group, async_op=True)
            elif ctx.allreduce_dgrad:
                reducing = comm.all_reduce(grad_input, group=ctx.group, async_op=True)
        if gathering is not None:
            gathering.wait()
        if need_weight:
            grad_weight = gemm(grad.t(), total.reshape(-1, total.size(-1)))
        if ctx.has_bias and need_bias:
            grad_bias = grad.sum(dim=0)
        if reducing is not None:
            reducing.wait()
        return grad_input, grad_weight, grad_bias, None, None, None, None, None


def linear_with_async_communication(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    allreduce_dgrad: bool = False,
    sequence_parallel: bool = False,
    reduce_output: bool = False,
    group: Group | None = None,
) -> torch.Tensor:
    """``activation(inputs @ weight.T + bias)``.

    Args:
        inputs: ``[..., in]``; with ``sequence_parallel`` this rank's part ``[s / size, ..., in]``.
        weight: ``[out, in]``.
        bias: ``[out]``.
        activation: epilogue of the gemm.
        allreduce_dgrad: sum the input's gradient over the group, as a column-parallel layer must.
        sequence_parallel: gather the input's first dimension before, reduce-scatter its gradient after.
        reduce_output: sum the output over the group, as a row-parallel layer must; its gradient is the same on all ranks.
        group: default: this rank's tensor parallel group.

    Returns:
        ``[..., out]``; with ``sequence_parallel`` of the whole sequence.
    """
    group = get_tensor_model_parallel_group() if group is None else group
    if comm.group_size(group) == 1:
        allreduce_dgrad = sequence_parallel = reduce_output = False
    communicates = allreduce_dgrad or sequence_parallel or reduce_output
    tensors = (inputs, weight) if bias is None else (inputs, weight, bias)
    wanted = needs_autograd if communicates else requires_grad
    if any(wanted(tensor) for tensor in tensors):
        result: torch.Tensor = LinearWithAsyncCommunication.apply(
            inputs, weight, bias, activation, allreduce_dgrad, sequence_parallel, reduce_output, group
        )
        return result
    return _forward(
        inputs, weight, bias, activation, False, group if sequence_parallel else None, group if reduce_output else None
    )[0]


def linear_with_grad_accumulation_and_async_allreduce(
    input: torch.Tensor,  # Megatron-Core's name
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gradient_accumulation_fusion: bool = False,
    allreduce_dgrad: bool = False,
    sequence_parallel: bool = False,
    *,
    tp_group: Group | None = None,
) -> torch.Tensor:
    """Megatron-Core's entry point to :func:`linear_with_async_communication`.

    ``gradient_accumulation_fusion`` must be False: gradients accumulate in ``.grad``, as autograd does it.
    """
    if gradient_accumulation_fusion:
        raise ConfigError("gradient_accumulation_fusion: gradients accumulate in .grad here, there is no fused buffer")
    return linear_with_async_communication(
        input, weight, bias, allreduce_dgrad=allreduce_dgrad, sequence_parallel=sequence_parallel, group=tp_group
    )
