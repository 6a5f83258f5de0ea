"""``flashinfer.prefill``: attention of several queries of each sequence. Logarithms of sums are to the base 2."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ._calls import Cache, Format, Tensor, dtype_of, factor, halves, launch, refuse, refuse_positions
from ._wrappers import PlannedAttention, Wrapper, how, scales


def single_prefill_with_kv_cache(
    q: Tensor, k: Tensor, v: Tensor, scale_q: Tensor | None = None, scale_k: Tensor | None = None,
    scale_v: Tensor | None = None, o_dtype: torch.dtype | None = None, custom_mask: Tensor | None = None,
    packed_custom_mask: Tensor | None = None, causal: bool = False, kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: float | None = None,
    window_left: int = -1, logits_soft_cap: float | None = None, rope_scale: float | None = None,
    rope_theta: float | None = None, backend: str = "auto", return_lse: bool = False,
    kv_cache_sf: tuple[Tensor, Tensor] | None = None, k_scale: float | None = None, v_scale: float | None = None,
) -> Any:  # fmt: skip
    """Of one sequence: ``q [queries, heads, size]``, keys and values ``[keys, heads, size]``."""
    name = "single_prefill_with_kv_cache"
    refuse(
        name,
        scale_q=scale_q,
        scale_k=scale_k,
        scale_v=scale_v,
        packed_custom_mask=packed_custom_mask,
        kv_cache_sf=kv_cache_sf,
    )
    refuse_positions(name, pos_encoding_mode)
    if kv_layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=dtype_of(o_dtype, q.dtype), device=q.device)
    sums = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device) if return_lse else None
    ends = torch.tensor([0, len(k)], dtype=torch.int32).to(q.device, non_blocking=True)
    launch(
        "attend", q, k, v, None, len(q), ends, None, None, None if custom_mask is None else custom_mask.flatten(),
        (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale) * factor(k_scale), factor(v_scale), causal, window_left,
        logits_soft_cap or 0.0, out, sums,
    )  # fmt: skip
    return out if sums is None else (out, sums)


single_prefill_with_kv_cache_return_lse = functools.partial(single_prefill_with_kv_cache, return_lse=True)


def _refuse_items(name: str, **given: object) -> None:
    refuse(f"{name}.plan", **given)


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    """Of packed queries over caches in pages."""

    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None, paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None, paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None, mask_indptr_buf: Tensor | None = None, backend: str = "auto",
        jit_args: list[Any] | None = None, jit_kwargs: dict[str, Any] | None = None, variant_owns_mask: bool = False,
    ) -> None:  # fmt: skip
        refuse(type(self).__name__, jit_args=jit_args, variant_owns_mask=variant_owns_mask)
        super().__init__(float_workspace_buffer, kv_layout, backend, use_cuda_graph, {
            "qo_indptr_buf": qo_indptr_buf, "paged_kv_indptr_buf": paged_kv_indptr_buf,
            "paged_kv_indices_buf": paged_kv_indices_buf, "paged_kv_last_page_len_buf": paged_kv_last_page_len_buf,
            "custom_mask_buf": custom_mask_buf,
        })  # fmt: skip

    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None, packed_custom_mask: Tensor | None = None, causal: bool = False,
        pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: float | None = None,
        window_left: int = -1, logits_soft_cap: float | None = None, rope_scale: float | None = None,
        rope_theta: float | None = None, q_data_type: Format = "float16", kv_data_type: Format | None = None,
        o_data_type: Format | None = None, non_blocking: bool = True, prefix_len_ptr: Tensor | None = None,
        token_pos_in_items_ptr: Tensor | None = None, token_pos_in_items_len: int = 0,
        max_item_len_ptr: Tensor | None = None, seq_lens: Tensor | None = None, seq_lens_q: Tensor | None = None,
        block_tables: Tensor | None = None, max_token_per_sequence: int | None = None, max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None, disable_split_kv: bool = False, uniform_q_len: int | None = None,
    ) -> None:  # fmt: skip
        """Set what :meth:`run` does; ends of queries and pages are read on the host, as the package's does."""
        _refuse_items(
            self._name, prefix_len_ptr=prefix_len_ptr, token_pos_in_items_ptr=token_pos_in_items_ptr,
            max_item_len_ptr=max_item_len_ptr,
        )  # fmt: skip
        for each in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len):
            each.to("cpu")
        scale, cap, dtype = how(
            f"{self._name}.plan", pos_encoding_mode, sm_scale, head_dim_qk, logits_soft_cap, q_data_type, o_data_type
        )
        self._plan = PlannedAttention(
            self._kept("qo_indptr_buf", qo_indptr), self._kept("paged_kv_indptr_buf", paged_kv_indptr),
            self._kept("paged_kv_indices_buf", paged_kv_indices),
            self._kept("paged_kv_last_page_len_buf", paged_kv_last_page_len), self._mask(custom_mask, packed_custom_mask),
            dtype_of(q_data_type, torch.float16), dtype, scale, causal, window_left, cap,
        )  # fmt: skip

    begin_forward = plan

    def run(
        self, q: Tensor, paged_kv_cache: Cache, *args: object, q_scale: float | Tensor | None = None,
        k_scale: float | Tensor | None = None, v_scale: float | Tensor | None = None, out: Tensor | None = None,
        lse: Tensor | None = None, return_lse: bool = False, lse_base: str = "log2", lse_layout: str = "NH",
        enable_pdl: bool | None = None, window_left: int | None = None, sinks: Tensor | None = None,
        kv_cache_sf: object = None, skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None, uses_spcompress: bool | None = None,
    ) -> Any:  # fmt: skip
        """Attention of ``q [all queries, heads, size]``."""
        refuse(
            f"{self._name}.run", further_arguments=args, sinks=sinks, kv_cache_sf=kv_cache_sf,
            skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor, uses_spcompress=uses_spcompress,
            lse_base=lse_base != "log2" and lse_base, lse_layout=lse_layout != "NH" and lse_layout,
        )  # fmt: skip
        scale, of_values = scales(q_scale, k_scale, v_scale)
        keys, values = halves(paged_kv_cache, self._kv_layout)
        return self._attend(q, keys, values, out, lse, return_lse, scale, of_values, window_left)

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(
        self, q: Tensor, paged_kv_cache: Cache, causal: bool = False, pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False, k_scale: float | None = None, v_scale: float | None = None,
        window_left: int = -1, logits_soft_cap: float | None = None, sm_scale: float | None = None,
        rope_scale: float | None = None, rope_theta: float | None = None,
    ) -> Any:  # fmt: skip
        """Run with another way to attend than was planned."""
        self._replan(pos_encoding_mode, causal, window_left, logits_soft_cap, sm_scale, q.shape[-1])
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale)

    def forward_return_lse(
        self, q: Tensor, paged_kv_cache: Cache, causal: bool = False, pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False, k_scale: float | None = None, v_scale: float | None = None,
        window_left: int = -1, logits_soft_cap: float | None = None, sm_scale: float | None = None,
        rope_scale: float | None = None, rope_theta: float | None = None,
    ) -> Any:  # fmt: skip
        """The same, with the logarithms of sums."""
        self._replan(pos_encoding_mode, causal, window_left, logits_soft_cap, sm_scale, q.shape[-1])
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale, return_lse=True)


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """Of packed queries over packed keys."""

    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None, kv_indptr_buf: Tensor | None = None, custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None, backend: str = "auto", jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None, variant_owns_mask: bool = False,
    ) -> None:  # fmt: skip
        refuse(type(self).__name__, jit_args=jit_args, variant_owns_mask=variant_owns_mask)
        super().__init__(float_workspace_buffer, kv_layout, backend, use_cuda_graph, {
            "qo_indptr_buf": qo_indptr_buf, "kv_indptr_buf": kv_indptr_buf, "custom_mask_buf": custom_mask_buf,
        })  # fmt: skip

    def plan(
        self, qo_indptr: Tensor, kv_indptr: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
        head_dim_vo: int | None = None, custom_mask: Tensor | None = None, packed_custom_mask: Tensor | None = None,
        causal: bool = False, pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, window_left: int = -1,
        logits_soft_cap: float | None = None, sm_scale: float | None = None, rope_scale: float | None = None,
        rope_theta: float | None = None, q_data_type: Format = "float16", kv_data_type: Format | None = None,
        o_data_type: Format | None = None, non_blocking: bool = True, prefix_len_ptr: Tensor | None = None,
        token_pos_in_items_ptr: Tensor | None = None, token_pos_in_items_len: int = 0,
        max_item_len_ptr: Tensor | None = None, fixed_split_size: int | None = None, disable_split_kv: bool = False,
        seq_lens: Tensor | None = None, seq_lens_q: Tensor | None = None, max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None, v_indptr: Tensor | None = None, o_indptr: Tensor | None = None,
        uniform_q_len: int | None = None,
    ) -> None:  # fmt: skip
        """Set what :meth:`run` does."""
        _refuse_items(
            self._name, prefix_len_ptr=prefix_len_ptr, token_pos_in_items_ptr=token_pos_in_items_ptr,
            max_item_len_ptr=max_item_len_ptr, v_indptr=v_indptr, o_indptr=o_indptr,
        )  # fmt: skip
        for each in (qo_indptr, kv_indptr):
            each.to("cpu")
        scale, cap, dtype = how(
            f"{self._name}.plan", pos_encoding_mode, sm_scale, head_dim_qk, logits_soft_cap, q_data_type, o_data_type
        )
        self._plan = PlannedAttention(
            self._kept("qo_indptr_buf", qo_indptr), self._kept("kv_indptr_buf", kv_indptr), None, None,
            self._mask(custom_mask, packed_custom_mask), dtype_of(q_data_type, torch.float16), dtype, scale, causal,
            window_left, cap,
        )  # fmt: skip

    begin_forward = plan

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, *args: object, q_scale: float | None = None, k_scale: float | None = None,
        v_scale: float | None = None, o_scale: float | None = None, out: Tensor | None = None, lse: Tensor | None = None,
        return_lse: bool = False, lse_base: str = "log2", lse_layout: str = "NH", enable_pdl: bool | None = None,
        kv_cache_sf: object = None,
    ) -> Any:  # fmt: skip
        """Attention of ``q [all queries, heads, size]`` over ``k``, ``v`` ``[all keys, heads, size]``."""
        refuse(
            f"{self._name}.run", further_arguments=args, kv_cache_sf=kv_cache_sf, o_scale=o_scale,
            lse_base=lse_base != "log2" and lse_base, lse_layout=lse_layout != "NH" and lse_layout,
        )  # fmt: skip
        if self._kv_layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        scale, of_values = scales(q_scale, k_scale, v_scale)
        return self._attend(q, k, v, out, lse, return_lse, scale, of_values, None)

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False, window_left: int = -1, logits_soft_cap: float | None = None,
        sm_scale: float | None = None, rope_scale: float | None = None, rope_theta: float | None = None,
    ) -> Any:  # fmt: skip
        """Run with another way to attend than was planned."""
        self._replan(pos_encoding_mode, causal, window_left, logits_soft_cap, sm_scale, q.shape[-1])
        return self.run(q, k, v)

    def forward_return_lse(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False, window_left: int = -1, logits_soft_cap: float | None = None,
        sm_scale: float | None = None, rope_scale: float | None = None, rope_theta: float | None = None,
    ) -> Any:  # fmt: skip
        """The same, with the logarithms of sums."""
        self._replan(pos_encoding_mode, causal, window_left, logits_soft_cap, sm_scale, q.shape[-1])
        return self.run(q, k, v, return_lse=True)
