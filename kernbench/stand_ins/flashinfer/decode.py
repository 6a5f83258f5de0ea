"""``flashinfer.decode``: attention of one query of each sequence, or of a few. Logarithms of sums are to the base 2."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ._calls import Cache, Format, Tensor, dtype_of, factor, halves, launch, refuse, refuse_positions
from ._wrappers import PlannedAttention, Wrapper, how, scales

_POSITIONAL = (
    "pos_encoding_mode", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type", "o_data_type", "data_type",
    "sm_scale", "rope_scale", "rope_theta", "non_blocking", "block_tables", "seq_lens", "fixed_split_size",
    "disable_split_kv", "q_len_per_req",
)  # fmt: skip
"""What callers may give behind the page's size without its name."""


def single_decode_with_kv_cache(
    q: Tensor, k: Tensor, v: Tensor, kv_layout: str = "NHD", pos_encoding_mode: str = "NONE",
    use_tensor_cores: bool = False, q_scale: float | None = None, k_scale: float | None = None,
    v_scale: float | None = None, window_left: int = -1, logits_soft_cap: float | None = None,
    sm_scale: float | None = None, rope_scale: float | None = None, rope_theta: float | None = None,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """Of one query ``[heads, size]``."""
    refuse_positions("single_decode_with_kv_cache", pos_encoding_mode)
    if kv_layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    out = torch.empty(q.shape[0], v.shape[-1], dtype=q.dtype, device=q.device)
    sums = torch.empty(q.shape[0], dtype=torch.float32, device=q.device) if return_lse else None
    ends = torch.tensor([0, len(k)], dtype=torch.int32).to(q.device, non_blocking=True)
    launch(
        "attend", q[None], k, v, None, 1, ends, None, None, None,
        (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale) * factor(q_scale, k_scale), factor(v_scale), False,
        window_left, logits_soft_cap or 0.0, out[None], None if sums is None else sums[None],
    )  # fmt: skip
    return out if sums is None else (out, sums)


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    """Of a batch over caches in pages."""

    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
        use_tensor_cores: bool = False, paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None, paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto", jit_args: list[Any] | None = None,
    ) -> None:  # fmt: skip
        refuse(type(self).__name__, jit_args=jit_args)
        self._use_tensor_cores = use_tensor_cores
        super().__init__(float_workspace_buffer, kv_layout, backend, use_cuda_graph, {
            "paged_kv_indptr_buffer": paged_kv_indptr_buffer, "paged_kv_indices_buffer": paged_kv_indices_buffer,
            "paged_kv_last_page_len_buffer": paged_kv_last_page_len_buffer,
        })  # fmt: skip

    @property
    def use_tensor_cores(self) -> bool:
        """Which kernel was asked for; both have the same values here."""
        return self._use_tensor_cores

    def plan(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int,
        page_size: int, *deprecated_positional_args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Set what :meth:`run` does; the ends of the pages are read on the host, as the package's does."""
        if len(deprecated_positional_args) > len(_POSITIONAL):
            raise TypeError(f"{self._name}.plan() accepts at most {len(_POSITIONAL)} arguments after page_size")
        given = dict(zip(_POSITIONAL, deprecated_positional_args, strict=False))
        self._set(indptr, indices, last_page_len, head_dim, **given, **kwargs)

    def _set(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, head_dim: int, *, pos_encoding_mode: str = "NONE",
        window_left: int = -1, window_right: int = 0, logits_soft_cap: float | None = None,
        q_data_type: Format | None = "float16", kv_data_type: Format | None = None, o_data_type: Format | None = None,
        data_type: Format | None = None, sm_scale: float | None = None, rope_scale: float | None = None,
        rope_theta: float | None = None, non_blocking: bool = True, block_tables: Tensor | None = None,
        seq_lens: Tensor | None = None, fixed_split_size: int | None = None, disable_split_kv: bool = False,
        q_len_per_req: int = 1, is_causal: bool | None = None, host_ends: Tensor | None = None,
    ) -> None:  # fmt: skip
        refuse(f"{self._name}.plan", window_right=window_right)
        if host_ends is None:
            for each in (indptr, last_page_len):
                each.to("cpu")
        scale, cap, dtype = how(
            f"{self._name}.plan", pos_encoding_mode, sm_scale, head_dim, logits_soft_cap,
            data_type if q_data_type is None else q_data_type, o_data_type,
        )  # fmt: skip
        given = dtype_of(data_type if q_data_type is None else q_data_type, torch.float16)
        causal = q_len_per_req > 1 if is_causal is None else is_causal
        self._plan = PlannedAttention(
            None, self._kept("paged_kv_indptr_buffer", indptr), self._kept("paged_kv_indices_buffer", indices),
            self._kept("paged_kv_last_page_len_buffer", last_page_len), None, given, dtype, scale, causal, window_left, cap,
            q_len_per_req,
        )  # fmt: skip

    begin_forward = plan

    def run(
        self, q: Tensor, paged_kv_cache: Cache, *args: object, q_scale: float | None = None, k_scale: float | None = None,
        v_scale: float | None = None, out: Tensor | None = None, lse: Tensor | None = None, return_lse: bool = False,
        enable_pdl: bool | None = None, window_left: int | None = None, sinks: Tensor | None = None,
        q_len_per_req: int | None = None, skip_softmax_threshold_scale_factor: float | None = None, kv_cache_sf: object = None,
    ) -> Any:  # fmt: skip
        """Attention of ``q [batch, heads, size]``."""
        refuse(
            f"{self._name}.run", further_arguments=args, sinks=sinks, kv_cache_sf=kv_cache_sf,
            skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor,
        )  # fmt: skip
        scale, of_values = scales(q_scale, k_scale, v_scale)
        keys, values = halves(paged_kv_cache, self._kv_layout)
        return self._attend(q, keys, values, out, lse, return_lse, scale, of_values, window_left)

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(
        self, q: Tensor, paged_kv_cache: Cache, pos_encoding_mode: str = "NONE", q_scale: float | None = None,
        k_scale: float | None = None, v_scale: float | None = None, window_left: int = -1,
        logits_soft_cap: float | None = None, sm_scale: float | None = None, rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:  # fmt: skip
        """Run with another way to attend than was planned."""
        self._replan(pos_encoding_mode, None, window_left, logits_soft_cap, sm_scale, q.shape[-1])
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)

    def forward_return_lse(
        self, q: Tensor, paged_kv_cache: Cache, pos_encoding_mode: str = "NONE", q_scale: float | None = None,
        k_scale: float | None = None, v_scale: float | None = None, window_left: int = -1,
        logits_soft_cap: float | None = None, sm_scale: float | None = None, rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:  # fmt: skip
        """The same, with the logarithms of sums."""
        self._replan(pos_encoding_mode, None, window_left, logits_soft_cap, sm_scale, q.shape[-1])
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=True)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """The same for a CUDA graph, with its buffers."""

    def __init__(
        self, workspace_buffer: Tensor, indptr_buffer: Tensor, indices_buffer: Tensor, last_page_len_buffer: Tensor,
        kv_layout: str = "NHD", use_tensor_cores: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            workspace_buffer, kv_layout, True, use_tensor_cores, indptr_buffer, indices_buffer, last_page_len_buffer
        )


def fast_decode_plan(
    self: BatchDecodeWithPagedKVCacheWrapper, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int,
    num_kv_heads: int, head_dim: int, page_size: int, pos_encoding_mode: str = "NONE", window_left: int = -1,
    logits_soft_cap: float | None = None, q_data_type: Format | None = None, kv_data_type: Format | None = None,
    data_type: Format | None = None, sm_scale: float | None = None, rope_scale: float | None = None,
    rope_theta: float | None = None, non_blocking: bool = True, fixed_split_size: int | None = None,
    disable_split_kv: bool = False, q_len_per_req: int = 1, global_override_indptr_cpu: Tensor | None = None,
) -> None:  # fmt: skip
    """A plan that takes the pages' ends from the host where the caller has them there, and reads nothing back."""
    self._set(
        indptr, indices, last_page_len, head_dim, pos_encoding_mode=pos_encoding_mode, window_left=window_left,
        logits_soft_cap=logits_soft_cap, q_data_type=q_data_type, kv_data_type=kv_data_type, data_type=data_type,
        sm_scale=sm_scale, q_len_per_req=q_len_per_req, host_ends=global_override_indptr_cpu,
    )  # fmt: skip
