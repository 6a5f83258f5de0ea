"""Recurrent layers: on a GPU one operator of cuDNN's for all layers, directions and steps; of CPU tensors torch composes them
of operators for each step.

``torch.lstm``, ``gru``, ``rnn_tanh`` and ``rnn_relu``, which ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` call, are replaced and call
``_cudnn_rnn`` for tensors on simulated GPUs (aten/src/ATen/native/cudnn/RNN.cpp), unless ``torch.backends.cudnn.enabled`` is
off. The CPU is given a kernel of it and of its gradient (:func:`register`), whose values are those of :mod:`.recurrence`; as on
hardware the gradient has none of its own, and takes a layer that was in training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernbench.cost.recurrent_shapes import GATES, GRU, LSTM, RELU, TANH, reserve_bytes
from kernbench.torch_backend.gpu.kernels.recurrence import Layers, States, Weights
from kernbench.torch_backend.gpu.tensors.placement import is_on_gpu
from kernbench.torch_backend.kernel_registrations import replace_kernels
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

Tensor = torch.Tensor

_MODES = {"lstm": LSTM, "gru": GRU, "rnn_tanh": TANH, "rnn_relu": RELU}
_OPERATORS = ("_cudnn_rnn", "_cudnn_rnn_backward")

RELIES_ON = (
    Reliance("torch", "programs call them by these names", has=tuple(_MODES)),
    Reliance("torch._VF", "`nn.LSTM`, `nn.GRU` and `nn.RNN` call these", has=tuple(_MODES)),
    *(Reliance(f"torch.ops.aten.{name}.default", "what a GPU runs of recurrent layers", has=("_schema",))
      for name in _OPERATORS),
    Reliance("torch._C._functorch.is_functorch_wrapped_tensor", "vmap's tensors are C++'s own business",
             holds=lambda is_wrapped: not is_wrapped(torch.ones(1))),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Let torch choose as on a GPU."""
    for module in (torch, torch._VF):
        for name, mode in _MODES.items():
            patches.set(module, name, _chooses(getattr(module, name), mode))


def register(library: Any) -> None:
    """Give the CPU the kernels that only a GPU has; ``library``: of ``aten``, for the key ``CPU``."""
    library.impl("_cudnn_rnn", recurrent_layers)
    library.impl("_cudnn_rnn_backward", recurrent_layers_backward)


def register_shapes(library: Any) -> None:
    """Say what they give, without values; ``library``: of ``aten``, for the key ``Meta``."""
    library.impl("_cudnn_rnn_backward", _backward_shapes)
    replace_kernels(library, {"_cudnn_rnn": _shapes})


def _chooses(stock: Callable[..., Any], mode: int) -> Callable[..., Any]:
    is_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor

    @functools.wraps(stock)
    def layers(*args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 9 or not torch.backends.cudnn.enabled:
            return stock(*args, **kwargs)
        packed = isinstance(args[1], Tensor) and (mode == LSTM or isinstance(args[2], Tensor))
        if packed:
            input, sizes, states, weights, _, count, dropout, train, bidirectional = args
            first = False
        else:
            input, states, weights, _, count, dropout, train, bidirectional, first = args
            sizes = None
        hx, cx = states if mode == LSTM else (states, None)
        given = [input, hx, *([] if cx is None else [cx]), *weights]
        if not any(map(is_on_gpu, given)) or any(map(is_wrapped, given)) or len({each.dtype for each in given}) > 1:
            return stock(*args)  # which refuses several formats in its own words
        _check_devices(input, (hx, cx), weights)
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            input, hx, cx = (None if each is None else each.to(dtype) for each in (input, hx, cx))
            weights = [each.to(dtype) for each in weights]
        each = len(weights) // (count * (2 if bidirectional else 1))
        hidden = weights[1].size(0) // GATES[mode]
        found = torch.ops.aten._cudnn_rnn(
            input, list(weights), each, None, hx, cx, mode, hidden, hx.size(2) if each % 2 else 0, count, first, dropout,
            train, bidirectional, [] if sizes is None else sizes.tolist(), None,
        )  # fmt: skip
        return found[:3] if mode == LSTM else found[:2]

    return layers


def _check_devices(input: Tensor, states: Sequence[Tensor | None], weights: Sequence[Tensor]) -> None:
    """As torch compares them (aten/src/ATen/native/RNN.h)."""
    for role, tensors in (("hidden", states), ("parameter", weights)):
        for each in tensors:
            if each is not None and each.device != input.device:
                raise RuntimeError(
                    f"Input and {role} tensors are not at the same device, found input tensor at {input.device} and {role} "
                    f"tensor at {each.device}"
                )


class _Call:
    """The arguments that a call and its gradient share.

    Attributes:
        steps: sequences of each step.
        rows: the input, ``[rows, I]``, step after step.
    """

    def __init__(
        self, input: Tensor, weight: Sequence[Tensor], stride: int, mode: int, count: int, first: bool, dropout: float,
        train: bool, bidirectional: bool, sizes: Sequence[int],
    ) -> None:  # fmt: skip
        self.shape, self.first, self.packed = input.shape, first, bool(sizes)
        if not sizes:
            input = input.transpose(0, 1) if first else input
        self.steps = list(sizes) or [input.shape[1]] * input.shape[0]
        self.rows = input if sizes else input.reshape(-1, input.shape[-1])
        self.sides = 2 if bidirectional else 1
        parts = [Weights.of(weight[at : at + stride]) for at in range(0, len(weight), stride)]
        self.dropout = dropout if train else 0.0
        layers = [parts[at * self.sides : (at + 1) * self.sides] for at in range(count)]
        self.layers = Layers(mode, layers, self.steps, self.dropout)

    def whole(self, rows: Tensor) -> Tensor:
        """Rows as the program has them."""
        if self.packed:
            return rows
        found = rows.view(len(self.steps), self.steps[0] if self.steps else 0, -1)
        return found.transpose(0, 1).contiguous() if self.first else found

    def of_program(self, tensor: Tensor) -> Tensor:
        """The rows of what the program gives."""
        if self.packed:
            return tensor
        return (tensor.transpose(0, 1) if self.first else tensor).reshape(-1, tensor.shape[-1])

    def masks(self, reserve: Tensor, width: int) -> list[Tensor]:
        """Which elements stay behind each layer but the last one: the first bytes of the reserve, one for each."""
        if not self.dropout:
            return []
        rows = self.rows.shape[0]
        count = len(self.layers.weights) - 1
        return [*reserve[: count * rows * width].view(count, rows, width)] if count else []


def recurrent_layers(
    input: Tensor, weight: list[Tensor], weight_stride0: int, weight_buf: Tensor | None, hx: Tensor, cx: Tensor | None,
    mode: int, hidden_size: int, proj_size: int, num_layers: int, batch_first: bool, dropout: float, train: bool,
    bidirectional: bool, batch_sizes: list[int], dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Outputs ``[steps, batch, directions R]`` as the input lies, the last states, what the gradient needs, an empty buffer."""
    call = _Call(
        input, weight, weight_stride0, mode, num_layers, batch_first, dropout, train, bidirectional, batch_sizes
    )
    out, state, cell, reserve, buffer = _shapes(
        input, weight, weight_stride0, weight_buf, hx, cx, mode, hidden_size, proj_size, num_layers, batch_first, dropout,
        train, bidirectional, batch_sizes, dropout_state,
    )  # fmt: skip
    masks = call.masks(reserve, hx.shape[2] * call.sides)
    for each in masks:
        each.bernoulli_(1 - dropout)
    found, last = call.layers.forward(call.rows, States(hx, cx), masks)
    out.copy_(call.whole(found))
    state.copy_(last.hidden)
    if last.cell is not None:
        cell.copy_(last.cell)
    return out, state, cell, reserve, buffer


def recurrent_layers_backward(
    input: Tensor, weight: list[Tensor], weight_stride0: int, weight_buf: Tensor, hx: Tensor, cx: Tensor | None,
    output: Tensor, grad_output: Tensor | None, grad_hy: Tensor | None, grad_cy: Tensor | None, mode: int, hidden_size: int,
    proj_size: int, num_layers: int, batch_first: bool, dropout: float, train: bool, bidirectional: bool,
    batch_sizes: list[int], dropout_state: Tensor | None, reserve: Tensor, output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor]]:  # fmt: skip
    """Gradients of input, states and weights, of what ``output_mask`` says. Raises RuntimeError if the layers were not in
    training."""
    if not train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    call = _Call(
        input, weight, weight_stride0, mode, num_layers, batch_first, dropout, train, bidirectional, batch_sizes
    )
    masks = call.masks(reserve, hx.shape[2] * call.sides)
    found, last = call.layers.forward(call.rows, States(hx, cx), masks)
    given = torch.zeros_like(found) if grad_output is None else call.of_program(grad_output).to(found.dtype)
    after = States(
        torch.zeros_like(last.hidden) if grad_hy is None else grad_hy.to(found.dtype),
        None if last.cell is None else torch.zeros_like(last.cell) if grad_cy is None else grad_cy.to(found.dtype),
    )
    of_x, before, of_weights = call.layers.backward(given, after, masks)
    dtype = input.dtype
    return (
        call.whole(of_x).to(dtype) if output_mask[0] else None,
        before.hidden.to(dtype) if output_mask[1] else None,
        before.cell.to(dtype) if output_mask[2] and before.cell is not None else None,
        [each.to(dtype) for each in of_weights] if output_mask[3] else [],
    )


def _shapes(
    input: Tensor, weight: list[Tensor], weight_stride0: int, weight_buf: Tensor | None, hx: Tensor, cx: Tensor | None,
    mode: int, hidden_size: int, proj_size: int, num_layers: int, batch_first: bool, dropout: float, train: bool,
    bidirectional: bool, batch_sizes: list[int], dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """What :func:`recurrent_layers` gives, without values."""
    sides = 2 if bidirectional else 1
    width = (proj_size or hidden_size) * sides
    rows = input.shape[0] if batch_sizes else input.shape[0] * input.shape[1]
    most = rows * num_layers * sides * hidden_size * input.element_size()
    kept = reserve_bytes(mode, most, rows * (num_layers - 1) * width if dropout else 0) if train else 0
    return (
        input.new_empty((*input.shape[:-1], width)), hx.new_empty(hx.shape), hx.new_empty((0,) if cx is None else cx.shape),
        input.new_empty(kept, dtype=torch.uint8), input.new_empty(0),
    )  # fmt: skip


def _backward_shapes(
    input: Tensor, weight: list[Tensor], weight_stride0: int, weight_buf: Tensor, hx: Tensor, cx: Tensor | None,
    *others: Any,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor]]:  # fmt: skip
    wanted = others[-1]
    return (
        input.new_empty(input.shape) if wanted[0] else None,
        hx.new_empty(hx.shape) if wanted[1] else None,
        cx.new_empty(cx.shape) if wanted[2] and cx is not None else None,
        [each.new_empty(each.shape) for each in weight] if wanted[3] else [],
    )
