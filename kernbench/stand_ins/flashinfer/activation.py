"""``flashinfer.activation``: the first half of the last dimension through a function, times the second."""

from __future__ import annotations

from ._calls import Tensor, launch


def _gated(gate: str, x: Tensor, out: Tensor | None) -> Tensor:
    out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2) if out is None else out
    launch("gated", x, gate, out)
    return out


def silu_and_mul(input: Tensor, out: Tensor = None, enable_pdl: bool | None = None) -> Tensor:  # type: ignore[assignment]
    """SiLU."""
    return _gated("silu", input, out)


def gelu_tanh_and_mul(input: Tensor, out: Tensor = None, enable_pdl: bool | None = None) -> Tensor:  # type: ignore[assignment]
    """GELU by a hyperbolic tangent."""
    return _gated("gelu_tanh", input, out)


def gelu_and_mul(input: Tensor, out: Tensor = None, enable_pdl: bool | None = None) -> Tensor:  # type: ignore[assignment]
    """GELU."""
    return _gated("gelu", input, out)
