"""``fused_weight_gradient_mlp_cuda``: the gradient of a weight, added to one that is kept (``csrc/megatron`` of
github.com/NVIDIA/apex)."""

from __future__ import annotations

import torch

from kernbench.compiled_operators.transformer_engine import products  # noqa: F401  has the kernel that is launched
from kernbench.compiled_operators.transformer_engine.formats import StoredOperand
from kernbench.compiled_operators.transformer_engine.kernels import launch, operators

__all__ = ["NAMES", "operators"]

Tensor = torch.Tensor


def wgrad_gemm_accum_fp32(input: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
    """``main_grad [out, in]``, in float32, plus ``grad_output^T @ input``, both ``[.., width]``."""
    plain = str(StoredOperand())
    launch(
        "product", input, None, plain, grad_output, None, plain, [False, True], main_grad, None, None, None, False, True,
        True, False, 1.0, 1.0,
    )  # fmt: skip


wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32

NAMES = {"wgrad_gemm_accum_fp32": wgrad_gemm_accum_fp32, "wgrad_gemm_accum_fp16": wgrad_gemm_accum_fp16}
