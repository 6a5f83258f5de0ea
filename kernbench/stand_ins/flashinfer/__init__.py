"""A stand-in for ``flashinfer``: attention over pages, norms, activations, rotary embedding, sampling: kernels by definition.

How a kernel is chosen and launched (``backend``, ``enable_pdl``, ``use_fp16_qk_reduction``, split sizes) changes nothing here.
"""

from .activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from .cascade import merge_state, merge_state_in_place, merge_states
from .decode import (
    BatchDecodeWithPagedKVCacheWrapper,
    CUDAGraphBatchDecodeWithPagedKVCacheWrapper,
    fast_decode_plan,
    single_decode_with_kv_cache,
)
from .norm import fused_add_rmsnorm, gemma_fused_add_rmsnorm, gemma_rmsnorm, layernorm, rmsnorm
from .page import append_paged_kv_cache, get_batch_indices_positions, get_seq_lens
from .prefill import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    single_prefill_with_kv_cache,
    single_prefill_with_kv_cache_return_lse,
)
from .rope import (
    apply_llama31_rope,
    apply_llama31_rope_inplace,
    apply_llama31_rope_pos_ids,
    apply_llama31_rope_pos_ids_inplace,
    apply_rope,
    apply_rope_inplace,
    apply_rope_pos_ids,
    apply_rope_pos_ids_inplace,
    apply_rope_with_cos_sin_cache,
    apply_rope_with_cos_sin_cache_inplace,
)
from .sampling import (
    min_p_sampling_from_probs,
    sampling_from_logits,
    sampling_from_probs,
    softmax,
    top_k_mask_logits,
    top_k_renorm_probs,
    top_k_sampling_from_probs,
    top_k_top_p_sampling_from_logits,
    top_k_top_p_sampling_from_probs,
    top_p_renorm_probs,
    top_p_sampling_from_probs,
)

__version__ = "0.7.2.post1"

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper",
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper", "append_paged_kv_cache", "apply_llama31_rope",
    "apply_llama31_rope_inplace", "apply_llama31_rope_pos_ids", "apply_llama31_rope_pos_ids_inplace", "apply_rope",
    "apply_rope_inplace", "apply_rope_pos_ids", "apply_rope_pos_ids_inplace", "apply_rope_with_cos_sin_cache",
    "apply_rope_with_cos_sin_cache_inplace", "fast_decode_plan", "fused_add_rmsnorm", "gelu_and_mul",
    "gelu_tanh_and_mul", "gemma_fused_add_rmsnorm", "gemma_rmsnorm", "get_batch_indices_positions", "get_seq_lens",
    "layernorm", "merge_state", "merge_state_in_place", "merge_states", "min_p_sampling_from_probs", "rmsnorm",
    "sampling_from_logits", "sampling_from_probs", "silu_and_mul", "single_decode_with_kv_cache",
    "single_prefill_with_kv_cache", "single_prefill_with_kv_cache_return_lse", "softmax", "top_k_mask_logits",
    "top_k_renorm_probs", "top_k_sampling_from_probs", "top_k_top_p_sampling_from_logits",
    "top_k_top_p_sampling_from_probs", "top_p_renorm_probs", "top_p_sampling_from_probs",
]  # fmt: skip
