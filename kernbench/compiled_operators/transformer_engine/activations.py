"""Activations and their gradients, in float32: of all elements, or gated: of one half of the last dimension, times the
other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch
from kernbench.compiled_operators.transformer_engine.quantizing import quantize_result

Tensor = torch.Tensor
Curve = Callable[[Tensor], Tensor]


def _gelu_slope(x: Tensor) -> Tensor:
    factor, cubic = math.sqrt(2 / math.pi), 0.044715
    tanh = torch.tanh(factor * (x + cubic * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * factor * (1 + 3 * cubic * x * x)


def swish(alpha: float) -> tuple[Curve, Curve]:
    """``x sigmoid(alpha x)``, and its slope."""

    def slope(x: Tensor) -> Tensor:
        share = torch.sigmoid(alpha * x)
        return share + alpha * x * share * (1 - share)

    return lambda x: x * torch.sigmoid(alpha * x), slope


CURVES: dict[str, tuple[Curve, Curve]] = {
    "sigmoid": (torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x)),
    "gelu": (lambda x: F.gelu(x, approximate="tanh"), _gelu_slope),
    "qgelu": swish(1.702),
    "relu": (F.relu, lambda x: (x > 0).float()),
    "srelu": (lambda x: F.relu(x).square(), lambda x: 2 * F.relu(x)),
    "silu": swish(1.0),
}
"""Curves and their slopes, of ``transformer_engine/common/util/math.h``: GELU is that by tanh."""

PLAIN = {"gelu": "gelu", "qgelu": "qgelu", "relu": "relu", "srelu": "srelu", "silu": "silu"}
GATED = {
    "glu": "sigmoid", "geglu": "gelu", "qgeglu": "qgelu", "reglu": "relu", "sreglu": "srelu", "swiglu": "silu",
}  # fmt: skip
"""The names of the functions, and the curve of each."""


def _halves(x: Tensor, limit: float, offset: float) -> tuple[Tensor, Tensor]:
    """Of a gate; with a limit they are cut there."""
    first, second = x.chunk(2, -1)
    return (first.clamp(max=limit), second.clamp(-limit, limit) + offset) if limit else (first, second)


def _value(x: Tensor, curve: str, gated: bool, limit: float, alpha: float, offset: float) -> Tensor:
    """Of float32. With a limit the first half's curve is ``x sigmoid(alpha x)``."""
    if not gated:
        return CURVES[curve][0](x)
    first, second = _halves(x, limit, offset)
    return (swish(alpha) if limit else CURVES[curve])[0](first) * second


def _change(given: Tensor, x: Tensor, curve: str, gated: bool, limit: float, alpha: float, offset: float) -> Tensor:
    """The gradient of ``x`` for one of the value."""
    if not gated:
        return given * CURVES[curve][1](x)
    first, second = _halves(x, limit, offset)
    of, slope = swish(alpha) if limit else CURVES[curve]
    to_first, to_second = given * second * slope(first), given * of(first)
    if limit:
        raw, other = x.chunk(2, -1)
        to_first, to_second = to_first * (raw <= limit), to_second * (other.abs() <= limit)
    return torch.cat((to_first, to_second), -1)


@kernel(
    "activate(Tensor x, Tensor! out, str curve, bool gated, Tensor? scales, float limit, float alpha, float offset)",
    "x", "out", "scales",
)  # fmt: skip
def _activate(
    x: Tensor, out: Tensor, curve: str, gated: bool, scales: Tensor | None, limit: float, alpha: float, offset: float
) -> None:
    found = _value(x.float(), curve, gated, limit, alpha, offset)
    out.copy_(found if scales is None else found * scales.float().reshape(*found.shape[:-1], 1))


@kernel(
    """activate_backward(Tensor grad, Tensor x, Tensor! dx, Tensor(b!)? dbias, str curve, bool gated, Tensor? scales,
    Tensor(c!)? dscales, float limit, float alpha, float offset)""",
    "grad", "x", "dx", "dbias", "scales", "dscales",
)  # fmt: skip
def _activate_backward(
    grad: Tensor, x: Tensor, dx: Tensor, dbias: Tensor | None, curve: str, gated: bool, scales: Tensor | None,
    dscales: Tensor | None, limit: float, alpha: float, offset: float,
) -> None:  # fmt: skip
    given = grad.float()
    if dscales is not None:
        found = _value(x.float(), curve, gated, limit, alpha, offset)
        dscales.copy_((given * found).sum(-1).view(dscales.shape))
    if scales is not None:
        given = given * scales.float().reshape(*given.shape[:-1], 1)
    change = _change(given, x.float(), curve, gated, limit, alpha, offset)
    dx.copy_(change)
    if dbias is not None:
        dbias.copy_(change.reshape(-1, change.shape[-1]).sum(0))


_AS_IT_IS = (0.0, 1.702, 0.0)


def _forward(
    x: Tensor,
    curve: str,
    gated: bool,
    quantizer: object,
    scales: Tensor | None = None,
    how: tuple[float, ...] = _AS_IT_IS,
) -> Any:
    x = x.contiguous()
    out = torch.empty((*x.shape[:-1], x.shape[-1] // (1 + gated)), dtype=x.dtype, device=x.device)
    launch("activate", x, out, curve, gated, scales, *how)
    return quantize_result(out, quantizer)


def _backward(
    grad: Tensor, x: Tensor, curve: str, gated: bool, quantizer: object, *, bias: bool = False, scales: Tensor | None = None,
    with_scales: bool = False, how: tuple[float, ...] = _AS_IT_IS,
) -> tuple[Any, Tensor | None, Tensor | None]:  # fmt: skip
    grad, x = grad.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    dbias = torch.empty(x.shape[-1], dtype=grad.dtype, device=x.device) if bias else None
    dscales = torch.empty_like(scales) if with_scales and scales is not None else None
    launch("activate_backward", grad, x, dx, dbias, curve, gated, scales, dscales, *how)
    return quantize_result(dx, quantizer), dbias, dscales


def _functions() -> dict[str, Callable[..., object]]:
    """Those that differ by their curve only: ``gelu``, ``dgelu``, ``dbias_dgelu``, ``geglu``, ``dgeglu``, ..."""
    found: dict[str, Callable[..., Any]] = {}
    for gated, names in ((False, PLAIN), (True, GATED)):
        for name, curve in names.items():

            def forward(input: Tensor, quantizer: object, curve: str = curve, gated: bool = gated) -> Any:
                return _forward(input, curve, gated, quantizer)

            def backward(
                grad: Tensor, fwd_input: Tensor, quantizer: object, curve: str = curve, gated: bool = gated
            ) -> Any:
                return _backward(grad, fwd_input, curve, gated, quantizer)[0]

            def with_bias(grad: Tensor, fwd_input: Tensor, quantizer: object, curve: str = curve) -> list[Any]:
                dx, dbias, _ = _backward(grad, fwd_input, curve, False, quantizer, bias=True)
                return [dbias, dx]

            found[name], found[f"d{name}"] = forward, backward
            if not gated:
                found[f"dbias_d{name}"] = with_bias
    return found


FUNCTIONS = _functions()


def clamped_swiglu(
    input: Tensor, quantizer: object, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0
) -> Any:
    """``x sigmoid(alpha x) (y + offset)``, both halves cut at the limit."""
    return _forward(input, "silu", True, quantizer, how=(limit, alpha, glu_linear_offset))


def clamped_dswiglu(
    grad: Tensor, fwd_input: Tensor, quantizer: object, limit: float = 7.0, alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
) -> Any:  # fmt: skip
    """Its gradient."""
    return _backward(grad, fwd_input, "silu", True, quantizer, how=(limit, alpha, glu_linear_offset))[0]


def _refuse_interleaved(size: int) -> None:
    if size:
        raise NotImplementedError(
            f"The stand-in for transformer_engine has no interleaved gates (glu_interleave_size={size}): leave it out."
        )


def scaled_swiglu(input: Tensor, act_scales: Tensor, quantizer: object, glu_interleave_size: int = 0) -> Any:
    """SwiGLU, times a scale for each row."""
    _refuse_interleaved(glu_interleave_size)
    return _forward(input, "silu", True, quantizer, act_scales)


def scaled_dswiglu(
    grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: object, glu_interleave_size: int = 0,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:  # fmt: skip
    """Its gradient, and that of the scales where it is wanted."""
    _refuse_interleaved(glu_interleave_size)
    dx, _, dscales = _backward(
        grad, fwd_input, "silu", True, quantizer, scales=act_scales, with_scales=compute_scale_grad
    )
    return dx, dscales
