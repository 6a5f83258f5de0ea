"""Activations as Triton functions of fp32 tiles, with their derivatives. ``name`` is a compile-time constant.

``gelu`` is ``x * Phi(x)``; ``gelu_tanh`` its usual approximation (Hendrycks and Gimpel, arXiv 1606.08415), written with a
sigmoid because ``(1 + tanh(u)) / 2 = sigmoid(2 u)``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernbench.errors import ConfigError

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


def check_activation(name: str | None) -> str:
    """The name for the kernels: ``""`` for none."""
    if name is not None and name not in ACTIVATIONS:
        raise ConfigError(f"activation {name!r}: expected None or one of {', '.join(ACTIVATIONS)}")
    return name or ""


@triton.jit
def activate(x, name: tl.constexpr):
    """``activation(x)``."""
    if name == "relu":
        x = tl.maximum(x, 0.0)
    elif name == "gelu":
        x = 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    elif name == "gelu_tanh":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif name == "silu":
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def derivative(x, name: tl.constexpr):
    """``activation'(x)``."""
    if name == "relu":
        x = tl.where(x > 0.0, 1.0, 0.0)
    elif name == "gelu":
        density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
        x = 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476)) + x * density
    elif name == "gelu_tanh":
        gate = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        x = gate + x * gate * (1.0 - gate) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    elif name == "silu":
        gate = tl.sigmoid(x)
        x = gate * (1.0 + x * (1.0 - gate))
    return x


@triton.jit
def activation_grad_kernel(grad_ptr, x_ptr, out_ptr, count, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr):
    """``out = grad * activation'(x)`` over flat memory."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, (grad * derivative(x, ACTIVATION)).to(out_ptr.dtype.element_ty), mask=mask)
