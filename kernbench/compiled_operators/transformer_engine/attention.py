"""Fused attention as the package calls cuDNN: ``softmax(Q K^T) V`` and its gradients, of dense batches and of packed sequences.

Backward passes take the logarithms of the sums that they are given, which over ranks may be those over more keys than they see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.compiled_operators.transformer_engine.attention_values import AttentionCall, gradients, result_of
from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch
from kernbench.compiled_operators.transformer_engine.names import NVTE_Fused_Attn_Backend
from kernbench.cost.by_values import CallOperands
from kernbench.cost.ragged_attention import RaggedAttention, between

Tensor = torch.Tensor

_FORMATS = ("sbhd", "bshd", "thd", "bshd_2sbhd", "sbhd_2bshd", "thd_2bshd", "thd_2sbhd", "bhsd")
"""By the numbers of ``NVTE_QKV_Format``."""


def formats_of(layout: Any) -> tuple[str, str]:
    """How queries lie, and keys and values, by a member of ``NVTE_QKV_Layout``."""
    name = layout.name.removeprefix("NVTE_")
    if name.startswith("Paged"):
        raise NotImplementedError("The stand-in for transformer_engine has no attention over pages of a cache.")
    parts = name.lower().replace("2", "").replace("3", "").split("_")
    return parts[0], parts[-1]


_HOW = """float scale, float dropout, str format_q, str format_kv, int bias_type, int mask, int softmax, int left, int
right, bool bottom_right, int max_q, int max_kv"""


def _lengths(operands: CallOperands) -> list[tuple[int, int]]:
    """Of the sequences: of packed ones as far as they are known, else as long as the longest."""
    found = []
    for tensor, form, ends, most in (("q", "format_q", "ends_q", "max_q"), ("k", "format_kv", "ends_kv", "max_kv")):
        packed, known = operands[form] == "thd", operands[ends].known
        count = operands[ends].shape[0] - 1
        if packed and known is not None:
            found.append(between(known))
        elif packed:
            found.append([operands[tensor].shape[0] // max(count, 1)] * count)
        else:
            shape, places = operands[tensor].shape, operands[form]
            found.append([shape[places.index("s")]] * shape[places.index("b")])
        del most
    return list(zip(*found, strict=True))


def _work(operands: CallOperands, gradient: bool) -> RaggedAttention:
    """cuDNN's, UNVERIFIED for windows and biases, which are priced by the pairs that are seen."""
    q, k, v, left = operands["q"], operands["k"], operands["v"], operands["left"]
    heads = operands["format_q"].index("h"), operands["format_kv"].index("h")
    return RaggedAttention(
        tuple(_lengths(operands)), q.shape[heads[0]], k.shape[heads[1]], q.shape[-1], q.format,
        operands["mask"] > 1, None if left < 0 else left, "cudnn", gradient, v.shape[-1],
    )  # fmt: skip


@kernel(
    f"""attention_fwd(Tensor q, Tensor k, Tensor v, Tensor ends_q, Tensor ends_kv, Tensor? starts_q, Tensor? starts_kv,
    Tensor? bias, Tensor? offset, Tensor rng, Tensor! out, Tensor! sums, Tensor(m!)? most, str format_out, {_HOW})""",
    cost=lambda operands: _work(operands, False),
)  # fmt: skip
def _attention_fwd(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_kv: Tensor, starts_q: Tensor | None, starts_kv: Tensor | None,
    bias: Tensor | None, offset: Tensor | None, rng: Tensor, out: Tensor, sums: Tensor, most: Tensor | None, format_out: str,
    scale: float, dropout: float, format_q: str, format_kv: str, bias_type: int, mask: int, softmax: int, left: int,
    right: int, bottom_right: bool, max_q: int, max_kv: int,
) -> None:  # fmt: skip
    call = AttentionCall(
        q, k, v, ends_q, ends_kv, starts_q, starts_kv, bias, offset, rng, scale, dropout, format_q, format_kv, bias_type,
        mask, softmax, left, right, bottom_right,
    )  # fmt: skip
    result_of(call, out, sums, most, format_out)


@kernel(
    f"""attention_bwd(Tensor q, Tensor k, Tensor v, Tensor o, Tensor do, Tensor sums, Tensor ends_q, Tensor ends_kv,
    Tensor? starts_q, Tensor? starts_kv, Tensor? bias, Tensor? offset, Tensor rng, Tensor! dq, Tensor! dk, Tensor! dv,
    Tensor(f!)? dbias, Tensor(g!)? doffset, str format_out, str format_dout, str format_dq, str format_dkv, {_HOW})""",
    cost=lambda operands: _work(operands, True),
)  # fmt: skip
def _attention_bwd(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, do: Tensor, sums: Tensor, ends_q: Tensor, ends_kv: Tensor,
    starts_q: Tensor | None, starts_kv: Tensor | None, bias: Tensor | None, offset: Tensor | None, rng: Tensor, dq: Tensor,
    dk: Tensor, dv: Tensor, dbias: Tensor | None, doffset: Tensor | None, format_out: str, format_dout: str, format_dq: str,
    format_dkv: str, scale: float, dropout: float, format_q: str, format_kv: str, bias_type: int, mask: int, softmax: int,
    left: int, right: int, bottom_right: bool, max_q: int, max_kv: int,
) -> None:  # fmt: skip
    call = AttentionCall(
        q, k, v, ends_q, ends_kv, starts_q, starts_kv, bias, offset, rng, scale, dropout, format_q, format_kv, bias_type,
        mask, softmax, left, right, bottom_right,
    )  # fmt: skip
    gradients(call, o, do, sums, (format_out, format_dout, format_dq, format_dkv), (dq, dk, dv, dbias, doffset))


def _shape_in(like: Tensor, form: str, width: int, other: str) -> tuple[int, ...]:
    """Of a tensor as it would lie in another format."""
    if form == other or "t" in (form[0], other[0]):
        return (*like.shape[:-1], width)
    sizes = dict(zip(form, like.shape, strict=True)) | {"d": width}
    return tuple(sizes[each] for each in other)


def _plain(tensor: torch.Tensor) -> Tensor:
    if not isinstance(tensor, torch.Tensor) or hasattr(tensor, "_fp8_dtype"):
        raise NotImplementedError(
            "The stand-in for transformer_engine has no attention in eight bits: leave out fp8_dpa and fp8_mha of the recipe."
        )
    return tensor


def get_fused_attn_backend(params: Any) -> tuple[Any, str]:
    """Which kernels there are for a call of these properties (the package's ``FusedAttentionParams``), and why there
    are none: for 16 bits, and heads whose widths are multiples of 8."""
    why = ""
    if int(params.qkv_dtype) not in (5, 6):
        why = "the stand-in for transformer_engine has fused attention of 16 bits only"
    elif params.head_dim_qk % 8 or params.head_dim_v % 8:
        why = "the widths of heads are no multiples of 8"
    elif params.qkv_layout.name.startswith("NVTE_Paged"):
        why = "the stand-in for transformer_engine has no attention over pages of a cache"
    backend = NVTE_Fused_Attn_Backend.NVTE_No_Backend if why else NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen
    return backend, why


def fused_attn_fwd(
    max_seqlen_q: int, max_seqlen_kv: int, is_training: bool, attn_scale: float, p_dropout: float, set_zero: bool,
    qkv_layout: object, o_format: Any, qkv_scale_inv_format: object, bias_type: Any, attn_mask_type: Any, softmax_type: Any,
    window_size: Sequence[int], bottom_right_diagonal: bool, cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, Q: Any, K: Any,
    V: Any, fake_dtype: torch.dtype, cu_seqlens_q_padded: Tensor | None, cu_seqlens_kv_padded: Tensor | None,
    page_table_k: Tensor | None, page_table_v: Tensor | None, s_quantizer: Any, o_quantizer: Any, Bias: Tensor | None,
    SoftmaxOffset: Tensor | None, rng_gen: Any, rng_elts_per_thread: int, return_max_logit: bool, cuda_graph: bool,
) -> list[Tensor]:  # fmt: skip
    """The result, the logarithms of the sums (``[batch, heads, queries, 1]``, of packed sequences ``[queries, heads,
    1]``), the largest scores where they are wanted, the state of the generator, the bias and the offsets where there
    are any."""
    q, k, v = _plain(Q), _plain(K), _plain(V)
    form_q, form_kv = formats_of(qkv_layout)
    form_o = _FORMATS[int(o_format)]
    out = torch.empty(_shape_in(q, form_q, v.shape[-1], form_o), dtype=fake_dtype, device=q.device)
    if form_o == "thd":
        out.zero_()
    heads = q.shape[form_q.index("h")]
    size = (
        (q.shape[0], heads, 1) if form_q == "thd"
        else (q.shape[form_q.index("b")], heads, q.shape[form_q.index("s")], 1)
    )  # fmt: skip
    sums = torch.empty(size, dtype=torch.float32, device=q.device)
    most = torch.empty_like(sums) if return_max_logit else None
    rng = (
        torch.randint(1 << 62, (2,), device=q.device, generator=rng_gen) if p_dropout
        else torch.zeros(2, dtype=torch.int64, device=q.device)
    )  # fmt: skip
    bias = Bias if int(bias_type) in (1, 2) else None
    offset = SoftmaxOffset if int(softmax_type) == 2 else None
    launch(
        "attention_fwd", q, k, v, cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded, bias, offset, rng,
        out, sums, most, form_o, attn_scale, p_dropout if is_training else 0.0, form_q, form_kv, int(bias_type),
        int(attn_mask_type), int(softmax_type), *window_size, bottom_right_diagonal, max_seqlen_q, max_seqlen_kv,
    )  # fmt: skip
    further = [sums, most, rng, bias, SoftmaxOffset if int(softmax_type) else None]
    return [out, *(each for each in further if each is not None)]


def fused_attn_bwd(
    max_seqlen_q: int, max_seqlen_kv: int, attn_scale: float, p_dropout: float, set_zero: bool, qkv_layout: object,
    o_format: Any, do_format: Any, dqkv_layout: Any, qkv_scale_inv_format: Any, do_scale_inv_format: Any, bias_type: Any,
    attn_mask_type: Any, softmax_type: Any, window_size: Sequence[int], bottom_right_diagonal: bool, deterministic: bool,
    cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, Q: Any, K: Any, V: Any, O: Any, dO: Any, fake_dtype: torch.dtype,  # noqa: E741
    Aux_CTX_Tensors: Sequence[Tensor], cu_seqlens_q_padded: Tensor | None, cu_seqlens_kv_padded: Tensor | None,
    s_quantizer: Any, dp_quantizer: Any, dqkv_quantizer: Any, cuda_graph: bool,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of queries, keys and values, of the bias and of the softmax's offsets; packed as ``dqkv_layout`` says."""
    q, k, v, o, do = (_plain(each) for each in (Q, K, V, O, dO))
    form_q, form_kv = formats_of(qkv_layout)
    to_q, to_kv = formats_of(dqkv_layout)
    sums, rng, *further = Aux_CTX_Tensors
    bias = further.pop(0) if int(bias_type) in (1, 2) else None
    offset = further.pop(0) if int(softmax_type) else None
    shapes = [
        _shape_in(q, form_q, q.shape[-1], to_q), _shape_in(k, form_kv, k.shape[-1], to_kv),
        _shape_in(v, form_kv, v.shape[-1], to_kv),
    ]  # fmt: skip
    dq, dk, dv = _packed(dqkv_layout.name.removeprefix("NVTE_").lower(), shapes, fake_dtype, q.device)
    for form, made in ((to_q, (dq,)), (to_kv, (dk, dv))):
        for each in made if form == "thd" else ():
            each.zero_()
    dbias = torch.empty_like(bias) if bias is not None else None
    doffset = torch.empty_like(offset) if offset is not None else None
    learnt = offset if int(softmax_type) == 2 else None
    launch(
        "attention_bwd", q, k, v, o, do, sums, cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded, bias,
        learnt, rng, dq, dk, dv, dbias, doffset, _FORMATS[int(o_format)], _FORMATS[int(do_format)], to_q, to_kv, attn_scale,
        p_dropout, form_q, form_kv, int(bias_type), int(attn_mask_type), int(softmax_type), *window_size,
        bottom_right_diagonal, max_seqlen_q, max_seqlen_kv,
    )  # fmt: skip
    return [dq, dk, dv, dbias, doffset]


def _packed(layout: str, shapes: list[tuple[int, ...]], dtype: torch.dtype, device: Any) -> list[Tensor]:
    """Room for three gradients; parts of one tensor where the layout says so (``sb3hd``, ``sbhd_sbh2d``)."""
    parts = layout.split("_")
    last = parts[-1]
    count = 3 if "3" in last else 2 if "2" in last else 0
    apart = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes[: 3 - count]]
    if not count:
        return apart
    at = last.index(str(count)) - len(last)
    like = list(shapes[-1])
    like.insert(len(like) + at + 1, count)
    return [*apart, *torch.empty(like, dtype=dtype, device=device).unbind(at)]
