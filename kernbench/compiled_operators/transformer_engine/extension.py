"""The names of ``transformer_engine_torch``: this module is what a program imports by that name.

What is not here says so when it is asked for, and what to do instead.
"""

from __future__ import annotations

from typing import Any

from kernbench.compiled_operators.transformer_engine import (
    activations,
    attention,
    kernels,
    multi_tensor,
    names,
    norms,
    permutation,
    products,
    quantizing,
    rope,
    routing,
    sequences,
    small,
    softmax,
)

operators = kernels.operators

_MODULES = (
    activations, attention, multi_tensor, names, norms, permutation, products, quantizing, rope, routing, sequences,
    small, softmax,
)  # fmt: skip

_MISSING = {
    "fused_topk_with_score_function_qb": "routers that balance by quantiles: leave out qb_histogram",
    "ep_": "expert parallelism by NCCL EP: use all_to_all",
    "copy_data_ptrs": "the fused MLP of groups: use GroupedLinear",
    "splits_to_offsets_multi": "grouped quantized tensors: use GroupedLinear with a list of weights",
    "mxfp8_scaling_": "optimizers that shard weights of eight bits: keep weights in 16 bits (without fp8_model_init)",
    "fp8_block_scaling_": "optimizers that shard weights of eight bits: keep weights in 16 bits (without fp8_model_init)",
    "thd_copy_valid": "attention over ranks by all_gather of packed sequences: use cp_comm_type p2p or a2a",
    "multi_tensor_transpose": "attention in eight bits: leave out fp8_dpa and fp8_mha of the recipe",
    "multi_tensor_pad": "attention in eight bits: leave out fp8_dpa and fp8_mha of the recipe",
    "grouped_swizzle": "grouped quantized tensors: use GroupedLinear with a list of weights",
    "situglu": "SiTU-GLU: compute it with torch",
    "dsituglu": "SiTU-GLU: compute it with torch",
    "scaled_": "this activation with scales: multiply by them with torch",
    "nvfp4": "NVFP4: use a recipe of eight bits",
    "nvshmem": "NVSHMEM: use torch.distributed",
    "group_": "grouped quantized tensors: use GroupedLinear with a list of weights",
    "bgrad_group": "grouped quantized tensors: use GroupedLinear with a list of weights",
    "te_general_grouped_gemm_for": "grouped quantized tensors: use GroupedLinear with a list of weights",
    "grouped_mlp": "the fused MLP of groups: use GroupedLinear",
    "fa_prepare": "layouts for FlashAttention: use fused attention",
    "copy_to_kv_cache": "caches of keys and values",
    "newton_schulz": "Newton-Schulz iterations by cuSolverMp: use torch",
    "cusolvermp": "Newton-Schulz iterations by cuSolverMp: use torch",
}


def _public() -> dict[str, object]:
    found: dict[str, Any] = dict(activations.FUNCTIONS)
    for module in _MODULES:
        found |= {
            name: value for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        }  # fmt: skip
    return found


def missing(name: str) -> Any:
    """Raises AttributeError, with what to do."""
    why = next((text for start, text in _MISSING.items() if name.startswith(start)), "")
    raise AttributeError(
        f"the stand-in for transformer_engine_torch has no {name}"
        + (f", for it has no {why}" if why else "")
        + "; what it "
        'has is listed by: kernbench stand-ins transformer_engine. docs/plugins.md, "How to add an operator"',
        name=name,
    )


NAMES = {**_public(), "__getattr__": missing}
"""All of them."""
