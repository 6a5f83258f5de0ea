"""Recurrent cells: on a GPU two products and one kernel, ``_thnn_fused_gru_cell`` or ``_thnn_fused_lstm_cell``; of CPU tensors
torch composes them of a dozen operators.

``torch.gru_cell`` and ``torch.lstm_cell``, which ``nn.GRUCell`` and ``nn.LSTMCell`` call, are replaced and choose for tensors
on simulated GPUs as they would there (aten/src/ATen/native/RNN.cpp). What CPUs have no kernel for is given one
(:func:`register`); gradients are torch's own formulas of these operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.gpu.tensors.placement import is_on_gpu
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

Tensor = torch.Tensor

_NAMES = (
    "_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward", "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl",
)  # fmt: skip

RELIES_ON = (
    Reliance("torch", "programs call them by these names", has=("gru_cell", "lstm_cell")),
    Reliance("torch._VF", "`nn.GRUCell` and `nn.LSTMCell` call these", has=("gru_cell", "lstm_cell")),
    *(Reliance(f"torch.ops.aten.{name}.default", "what a GPU runs of a recurrent cell", has=("_schema",)) for name in _NAMES),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Let torch choose as on a GPU."""
    for module in (torch, torch._VF):
        patches.set(module, "gru_cell", _gru(module.gru_cell))
        patches.set(module, "lstm_cell", _lstm(module.lstm_cell))


def register(library: Any) -> None:
    """Give the CPU the kernels that only a GPU has; ``library``: of ``aten``, for the key ``CPU``."""
    for name, kernel in zip(_NAMES, (gru_cell, gru_cell_backward, lstm_cell, lstm_cell_backward), strict=True):
        library.impl(name, kernel)


def _gru(stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(stock)
    def gru_cell(
        input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Tensor:
        if not (is_on_gpu(input) and _match(input, hx, w_ih, w_hh, 3)):
            return stock(input, hx, w_ih, w_hh, b_ih, b_hh)
        gates = input @ w_ih.t(), hx @ w_hh.t()
        found: Tensor = torch.ops.aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]
        return found

    return gru_cell


def _lstm(stock: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    @functools.wraps(stock)
    def lstm_cell(
        input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if not (is_on_gpu(input) and len(hx) == 2 and _match(input, hx[0], w_ih, w_hh, 4)):
            return stock(input, hx, w_ih, w_hh, b_ih, b_hh)
        gates = input @ w_ih.t(), hx[0] @ w_hh.t()
        found = torch.ops.aten._thnn_fused_lstm_cell(*gates, hx[1], b_ih, b_hh)
        return found[0], found[1]

    return lstm_cell


def _match(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, gates: int) -> bool:
    """Whether sizes and formats go together: torch refuses others in its own words."""
    if not all(isinstance(each, Tensor) and each.dim() == 2 for each in (input, hx, w_ih, w_hh)):
        return False
    hidden = hx.size(1)
    sizes = (
        (w_ih.size(0), gates * hidden), (w_ih.size(1), input.size(1)), (w_hh.size(0), gates * hidden),
        (w_hh.size(1), hidden), (input.size(0), hx.size(0)),
    )  # fmt: skip
    return all(a == b for a, b in sizes)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _gates(from_input: Tensor, from_hidden: Tensor, biases: tuple[Tensor | None, Tensor | None], count: int) -> Any:
    """The parts of both sums, each with its bias, in 32 bits at least."""
    summed = [
        _wide(part) if bias is None else _wide(part) + _wide(bias)
        for part, bias in zip((from_input, from_hidden), biases, strict=True)
    ]
    return [part.chunk(count, 1) for part in summed]


def gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The next state, and what its gradient needs: reset, update, candidate, the state before, the candidate's hidden part."""
    (ir, iz, ic), (hr, hz, hc) = _gates(input_gates, hidden_gates, (input_bias, hidden_bias), 3)
    reset, update = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    candidate = (ic + reset * hc).tanh()
    state = candidate + update * (_wide(hx) - candidate)
    return state.to(hx.dtype), torch.cat((reset, update, candidate, _wide(hx), hc), 1).to(hx.dtype)


def gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    """Gradients of the gates of the input and of the state, of the state, and of both biases."""
    reset, update, candidate, before, hidden = _wide(workspace).chunk(5, 1)
    grad = _wide(grad_hy)
    of_candidate = grad * (1 - update) * (1 - candidate * candidate)
    of_update = grad * (before - candidate) * (1 - update) * update
    of_reset = of_candidate * hidden * (1 - reset) * reset
    dtype = grad_hy.dtype
    given = torch.cat((of_reset, of_update, of_candidate), 1).to(dtype)
    kept = torch.cat((of_reset, of_update, of_candidate * reset), 1).to(dtype)
    biases = (given.sum(0), kept.sum(0)) if has_bias else (None, None)
    return given, kept, (grad * update).to(dtype), *biases


def lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The next state and cell, and the gates, which the gradient needs."""
    ours, theirs = _gates(input_gates, hidden_gates, (input_bias, hidden_bias), 4)
    sums = [a + b for a, b in zip(ours, theirs, strict=True)]
    let, keep, new, out = sums[0].sigmoid(), sums[1].sigmoid(), sums[2].tanh(), sums[3].sigmoid()
    cell = keep * _wide(cx) + let * new
    dtype = input_gates.dtype
    return (out * cell.tanh()).to(dtype), cell.to(dtype), torch.cat((let, keep, new, out), 1).to(dtype)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of the gates, of the cell before, and of the bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    let, keep, new, out = _wide(workspace).chunk(4, 1)
    through = _wide(cy).tanh()
    of_state = torch.zeros_like(through) if grad_hy is None else _wide(grad_hy)
    of_cell = of_state * out * (1 - through * through)
    if grad_cy is not None:
        of_cell = of_cell + _wide(grad_cy)
    parts = (
        of_cell * new * (1 - let) * let, of_cell * _wide(cx) * (1 - keep) * keep, of_cell * let * (1 - new * new),
        of_state * through * (1 - out) * out,
    )  # fmt: skip
    gates = torch.cat(parts, 1).to(workspace.dtype)
    return gates, (of_cell * keep).to(cx.dtype), gates.sum(0) if has_bias else None
