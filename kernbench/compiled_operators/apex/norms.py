"""Norms as ``apex._kernels``: functions of ``fused_layer_norm_cuda``, of which apex's own Python is not there either."""

from __future__ import annotations

from kernbench.compiled_operators.transformer_engine import norms
from kernbench.compiled_operators.transformer_engine.kernels import operators
from kernbench.compiled_operators.transformer_engine.names import TORCH, DType

__all__ = ["NAMES", "operators"]

NAMES = {
    "layernorm_fwd": norms.layernorm_fwd, "layernorm_bwd": norms.layernorm_bwd, "rmsnorm_fwd": norms.rmsnorm_fwd,
    "rmsnorm_bwd": norms.rmsnorm_bwd, "formats": {dtype: DType(number) for number, dtype in TORCH.items() if number < 7
    and number},
}  # fmt: skip
