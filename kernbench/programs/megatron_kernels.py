"""Fused kernels as Megatron-Core, Transformer Engine and Apex have them: one pass over memory where eager torch makes several.

Each is a ``torch.library`` operator ``megatron::NAME``, one kernel to the device; on a machine that has those libraries theirs
take their place. Gradients are operators of their own, as there. What computes them here takes no memory to speak of besides
its results, as those kernels do not; losses are computed in 32 bits, some rows at a time.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor

_ROWS = 256  # of logits that are computed at a time


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square_()


def _swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate).mul_(up)


ACTIVATIONS = {"swiglu": _swiglu, "squared_relu": _squared_relu, "gelu": _gelu}
"""By name; ``swiglu`` halves the last dimension."""


def _slope(gradient: Tensor, x: Tensor, kind: str) -> Tensor:
    """The gradient of ``x``, without memory besides."""
    found = torch.empty_like(x)
    if kind == "swiglu":
        (gate, up), (of_gate, of_up) = x.chunk(2, -1), found.chunk(2, -1)
        torch.mul(gradient, up, out=of_gate)
        torch.ops.aten.silu_backward.grad_input(of_gate, gate, grad_input=of_gate)
        torch.ops.aten.silu.out(gate, out=of_up)
        of_up.mul_(gradient)
    elif kind == "squared_relu":
        torch.clamp(x, min=0, out=found).mul_(gradient).mul_(2)
    else:
        torch.ops.aten.gelu_backward.grad_input(gradient, x, approximate="tanh", grad_input=found)
    return found


@torch.library.custom_op("megatron::activation", mutates_args=())
def activation_kernel(x: Tensor, kind: str) -> Tensor:
    """``x [..., width]`` through an entry of :data:`ACTIVATIONS`."""
    return ACTIVATIONS[kind](x)


@activation_kernel.register_fake
def _(x: Tensor, kind: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2)) if kind == "swiglu" else torch.empty_like(x)


@torch.library.custom_op("megatron::activation_backward", mutates_args=())
def activation_backward_kernel(gradient: Tensor, x: Tensor, kind: str) -> Tensor:
    """The gradient of ``x`` from that of the result."""
    return _slope(gradient, x, kind)


@activation_backward_kernel.register_fake
def _(gradient: Tensor, x: Tensor, kind: str) -> Tensor:
    return torch.empty_like(x)


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kind = kind
        return activation_kernel(x, kind)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return activation_backward_kernel(gradients[0].contiguous(), x, ctx.kind), None


def activation(x: Tensor, kind: str) -> Tensor:
    """``x [..., width]`` through an activation in one kernel."""
    found: Tensor = _Activation.apply(x, kind)
    return found


@torch.library.custom_op("megatron::weighted_activation", mutates_args=())
def weighted_activation_kernel(x: Tensor, weights: Tensor, kind: str) -> Tensor:
    """``x [rows, width]`` through an activation, each row times one of ``weights [rows]`` float32."""
    return ACTIVATIONS[kind](x).mul_(weights[:, None].to(x.dtype))


@weighted_activation_kernel.register_fake
def _(x: Tensor, weights: Tensor, kind: str) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1] // 2)) if kind == "swiglu" else torch.empty_like(x)


@torch.library.custom_op("megatron::weighted_activation_backward", mutates_args=())
def weighted_activation_backward_kernel(
    gradient: Tensor, x: Tensor, weights: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """The gradients of ``x`` and ``weights``."""
    of_weights = ACTIVATIONS[kind](x).mul_(gradient).sum(-1, dtype=torch.float32)
    return _slope(gradient * weights[:, None].to(x.dtype), x, kind), of_weights


@weighted_activation_backward_kernel.register_fake
def _(gradient: Tensor, x: Tensor, weights: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weights)


class _WeightedActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, kind: str) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.kind = kind
        return weighted_activation_kernel(x, weights, kind)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weights = ctx.saved_tensors
        return *weighted_activation_backward_kernel(gradients[0].contiguous(), x, weights, ctx.kind), None


def weighted_activation(x: Tensor, weights: Tensor, kind: str) -> Tensor:
    """``x [rows, width]`` through an activation, each row times its weight, in one kernel."""
    found: Tensor = _WeightedActivation.apply(x, weights, kind)
    return found


@torch.library.custom_op("megatron::rope", mutates_args=())
def rope_kernel(x: Tensor, angles: Tensor, back: bool) -> Tensor:
    """``x [seq, batch, heads, width]`` turned by ``angles [seq, width / 2]``, or back: halves are pairs."""
    cos, sin = (angles.cos()[:, None, None], angles.sin()[:, None, None])
    first, second = x.float().chunk(2, -1)
    if back:
        sin = -sin
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


@rope_kernel.register_fake
def _(x: Tensor, angles: Tensor, back: bool) -> Tensor:
    return x.new_empty(x.shape)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor) -> Tensor:
        ctx.save_for_backward(angles)
        return rope_kernel(x, angles, False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (angles,) = ctx.saved_tensors
        return rope_kernel(gradients[0].contiguous(), angles, True), None


def rope(x: Tensor, angles: Tensor) -> Tensor:
    """``x [seq, batch, heads, width]`` with rotary positions."""
    found: Tensor = _Rope.apply(x, angles)
    return found


@torch.library.custom_op("megatron::loss_statistics", mutates_args=())
def loss_statistics(logits: Tensor, labels: Tensor, first: int) -> Tensor:
    """``[rows, 3]`` float32 of ``logits [rows, part of the vocabulary]``: largest, sum of exponentials, the label's logit."""
    found = logits.new_empty((logits.shape[0], 3), dtype=torch.float32)
    places = labels - first
    here = (places >= 0) & (places < logits.shape[1])
    own = logits.gather(1, places.clamp(0, logits.shape[1] - 1)[:, None])[:, 0].float()
    found[:, 2] = torch.where(here, own, float("-inf"))
    for some, rows in zip(logits.split(_ROWS), found.split(_ROWS), strict=True):
        rows[:, 0] = some.amax(-1)
        rows[:, 1] = (some.float() - rows[:, :1]).exp_().sum(-1)
    return found


@loss_statistics.register_fake
def _(logits: Tensor, labels: Tensor, first: int) -> Tensor:
    return logits.new_empty((logits.shape[0], 3), dtype=torch.float32)


@torch.library.custom_op("megatron::loss_gradient", mutates_args=("logits",))
def loss_gradient(logits: Tensor, statistics: Tensor, labels: Tensor, first: int) -> Tensor:
    """Losses ``[rows]`` float32 from ``statistics [parts, rows, 3]``; ``logits`` become the gradient of their sum."""
    largest = statistics[..., 0].amax(0)
    total = (statistics[..., 1] * (statistics[..., 0] - largest).exp()).sum(0)
    for some, most, whole in zip(logits.split(_ROWS), largest.split(_ROWS), total.split(_ROWS), strict=True):
        some.copy_((some.float() - most[:, None]).exp_().div_(whole[:, None]))
    places = (labels - first)[:, None]
    here = (places >= 0) & (places < logits.shape[1])
    logits.scatter_add_(1, places.clamp(0, logits.shape[1] - 1), -here.to(logits.dtype))
    return total.log() + largest - statistics[..., 2].amax(0)


@loss_gradient.register_fake
def _(logits: Tensor, statistics: Tensor, labels: Tensor, first: int) -> Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.float32)


@torch.library.custom_op("megatron::scale_rows_", mutates_args=("x",))
def scale_rows_(x: Tensor, scales: Tensor) -> None:
    """``x [rows, width]``, each row times one of ``scales [rows]``, in place."""
    x.mul_(scales[:, None])


@scale_rows_.register_fake
def _(x: Tensor, scales: Tensor) -> None:
    return None


@torch.library.custom_op("megatron::permute", mutates_args=())
def permute(x: Tensor, places: Tensor) -> Tensor:
    """The rows ``places [n]`` of ``x [rows, width]``: ``[n, width]``."""
    return x[places]


@permute.register_fake
def _(x: Tensor, places: Tensor) -> Tensor:
    return x.new_empty((places.shape[0], x.shape[1]))


@torch.library.custom_op("megatron::unpermute", mutates_args=())
def unpermute(x: Tensor, places: Tensor, rows: int) -> Tensor:
    """``[rows, width]``: row ``n`` of ``x [n, width]`` is added to row ``places[n]``."""
    return x.new_zeros((rows, x.shape[1]), dtype=torch.float32).index_add_(0, places, x.float()).to(x.dtype)


@unpermute.register_fake
def _(x: Tensor, places: Tensor, rows: int) -> Tensor:
    return x.new_empty((rows, x.shape[1]))


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = x.shape[0]
        return permute(x, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return unpermute(gradients[0].contiguous(), ctx.saved_tensors[0], ctx.rows), None


class _Unpermuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(places)
        return unpermute(x, places, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return permute(gradients[0].contiguous(), ctx.saved_tensors[0]), None, None


def permuted(x: Tensor, places: Tensor) -> Tensor:
    """The rows ``places`` of ``x``."""
    found: Tensor = _Permuted.apply(x, places)
    return found


def unpermuted(x: Tensor, places: Tensor, rows: int) -> Tensor:
    """Rows of ``x`` added up at ``places`` of ``rows``."""
    found: Tensor = _Unpermuted.apply(x, places, rows)
    return found
