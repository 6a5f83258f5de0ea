"""SGLang's kernels: values against definitions in numpy, double precision; what it compiles while it runs, by names in C++."""

from __future__ import annotations

import math
import re
import sys
import time
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import kernbench
from kernbench.compiled_operators.operators import Operators
from kernbench.compiled_operators.sglang import kernels, library
from kernbench.compiled_operators.sglang.compiling import load_by_definition, loaded, name_of
from kernbench.compiled_operators.sglang.ending import ask_before_killing
from kernbench.compiled_operators.sglang.lengths import tell_lengths
from kernbench.compiled_operators.sglang.prefixes import prefer_python
from kernbench.compiled_operators.sglang.requests import carry_times, observe
from kernbench.trace.serving_figures import serving_result
from tests.stand_ins.arrays import DTYPES, close, drawn, numbers
from tests.stand_ins.test_vllm import (
    LENGTHS,
    PAGE,
    QUERIES,
    _gelu,
    _gelu_tanh,
    _paged,
    _silu,
    attended,
    left_by_weak_references,
)

# as sglang-kernel 0.4.10's wheel has them in its libraries
SCHEMAS = {
    "common": """
rmsnorm(Tensor! output, Tensor input, Tensor weight, float eps, bool enable_pdl) -> ()
fused_add_rmsnorm(Tensor! input, Tensor! residual, Tensor weight, float eps, bool enable_pdl) -> ()
gemma_rmsnorm(Tensor! output, Tensor input, Tensor weight, float eps, bool enable_pdl) -> ()
gemma_fused_add_rmsnorm(Tensor! input, Tensor! residual, Tensor weight, float eps, bool enable_pdl) -> ()
silu_and_mul(Tensor! out, Tensor input) -> ()
gelu_tanh_and_mul(Tensor! out, Tensor input) -> ()
gelu_and_mul(Tensor! out, Tensor input) -> ()
rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, bool is_neox) -> ()
topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor gating_output, bool renormalize, float moe_softcapping,
  Tensor? correction_bias) -> ()
topk_sigmoid(Tensor! topk_weights, Tensor! topk_indices, Tensor gating_output, bool renormalize, Tensor?
  correction_bias) -> ()
moe_sum(Tensor input, Tensor! output) -> ()
moe_sum_reduce(Tensor input, Tensor output, float routed_scaling_factor) -> ()
moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, Tensor! sorted_token_ids, Tensor! experts_ids,
  Tensor! num_tokens_post_pad, Tensor! cumsum_buffer, bool pad_sorted_token_ids, bool ignore_invalid_expert) -> ()
top_k_renorm_probs(Tensor probs, Tensor! renorm_probs, Tensor? maybe_top_k_arr, int top_k_val) -> ()
top_p_renorm_probs(Tensor probs, Tensor! renorm_probs, Tensor? maybe_top_p_arr, float top_p_val) -> ()
weak_ref_tensor(Tensor tensor) -> Tensor
int8_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype, Tensor? bias) -> Tensor
fp8_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype, Tensor? bias) -> Tensor
sgl_per_token_quant_fp8(Tensor input, Tensor! output_q, Tensor! output_s) -> ()
sgl_per_token_group_quant_8bit(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, float fp8_min,
  float fp8_max, bool scale_ue8m0) -> ()
""",
    "flash": """
fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor(a!)? out, Tensor? cu_seqlens_q, Tensor?
  cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k,
  Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, Tensor?
  seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, float? softmax_scale, bool is_causal, int
  window_size_left, int window_size_right, int attention_chunk, float softcap, bool is_rotary_interleaved, Tensor?
  scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, Tensor? sinks, Tensor? sparse_mask_fine, bool
  only_qv) -> (Tensor(a!), Tensor, Tensor, Tensor)
""",
}


@pytest.fixture(scope="module", autouse=True)
def operators() -> None:
    """Of the schemas above, as a library of the package would define them; and those that are compiled."""
    for name, schemas in SCHEMAS.items():
        known = getattr(library, name)
        operators = Operators("kernbench_test_sgl", schemas=re.split(r"\n(?=\w)", schemas.strip()))
        operators.values, operators.shapes, operators.costs = known.values, known.shapes, known.costs
        operators.programs = known.programs
        operators.define("sgl_kernel 0.4.10")
    kernels.operators.define("sglang 0.5.23")


def op(name: str) -> Any:
    return getattr(torch.ops.kernbench_test_sgl, name)


def compiled(cpp: str) -> Any:
    """The function that a program has of a kernel, by its name in C++ with template arguments."""
    return loaded(kernels.COMPILED, ["a.cuh"], [("run", cpp)]).run


def _normed(rows: Any, weight: Any, plus: float = 0.0) -> Any:
    return np.stack([row / math.sqrt(np.mean(row * row) + 1e-5) * (weight + plus) for row in rows])


@DTYPES
def test_norms(dtype: torch.dtype) -> None:
    x, residual, weight = drawn(3, 8, dtype=dtype), drawn(3, 8, seed=2, dtype=dtype), drawn(8, seed=3, dtype=dtype)
    out, total = torch.empty_like(x), numbers(x) + numbers(residual)
    for name, plus in (("rmsnorm", 0.0), ("gemma_rmsnorm", 1.0)):
        op(name)(out, x, weight, 1e-5, True)
        close(out, _normed(numbers(x), numbers(weight), plus))
    for name, plus in (("fused_add_rmsnorm", 0.0), ("gemma_fused_add_rmsnorm", 1.0)):
        given, left = x.clone(), residual.clone()
        op(name)(given, left, weight, 1e-5, True)
        close(left, total)
        close(given, _normed(total, numbers(weight), plus))


@DTYPES
@pytest.mark.parametrize("cpp", [
    "RMSNormKernel<8, true, bf16_t>::run", "RMSNormWarpKernel<8, true, bf16_t>::run", "HFRMSNormKernel<8, true, bf16_t>::run",
])  # fmt: skip
def test_compiled_norms(cpp: str, dtype: torch.dtype) -> None:
    x, weight = drawn(3, 8, dtype=dtype), drawn(8, seed=3, dtype=dtype)
    out = torch.empty_like(x)
    compiled(cpp)(x, weight, out, 1e-5)
    close(out, _normed(numbers(x), numbers(weight)))


def test_where_a_norm_is_rounded() -> None:
    """A template argument says that it is before the weights are multiplied, as transformers has it."""
    x, weight = drawn(1, 8, dtype=torch.bfloat16), torch.full((8,), 1.0078125, dtype=torch.bfloat16)
    found = {}
    for rounded in ("true", "false"):
        found[rounded] = x.clone()
        compiled(f"FusedAddRMSNormKernel<{rounded}, bf16_t>::run")(found[rounded], torch.zeros_like(x), weight, 1e-5)
    once = torch.from_numpy(_normed(numbers(x), numbers(weight))).bfloat16()
    first = torch.from_numpy(_normed(numbers(x), np.ones(8))).bfloat16().double()
    assert torch.equal(found["false"], once)
    assert torch.equal(found["true"], (first * weight.double()).bfloat16())
    assert not torch.equal(found["true"], found["false"])


def test_norms_of_heads() -> None:
    qkv, weights = drawn(3, 5, 4), [drawn(4, seed=2), drawn(4, seed=3)]
    q, k = qkv[:, :3], qkv[:, 3:]
    wanted = [_normed(numbers(each).reshape(-1, 4), numbers(w)) for each, w in zip((q, k), weights, strict=True)]
    compiled("QKNormKernel<4, true, bf16_t, true>::run")(q, k, *weights, 1e-5)
    for each, result in zip((q, k), wanted, strict=True):
        close(each, result.reshape(each.shape))


@DTYPES
@pytest.mark.parametrize("kernel", ["compiled", "library"])
def test_rows_in_eight_bits_and_their_products(kernel: str, dtype: torch.dtype) -> None:
    x, weight = drawn(5, 32, dtype=dtype), drawn(16, 32, seed=2, dtype=dtype)
    x[1] = 0
    quantise = compiled("per_token_quant_fp8<bf16_t>") if kernel == "compiled" else op("sgl_per_token_quant_fp8")
    found = []
    for rows in (x, weight):
        stored, scales = torch.empty_like(rows, dtype=torch.float8_e4m3fn), torch.full((len(rows), 1), 7.0)
        quantise(rows, stored, scales)
        close(scales, np.abs(numbers(rows)).max(-1, keepdims=True) / 448)
        near(stored.float() * scales, numbers(rows), float(scales.max()) / 512)
        found += [stored, scales]
    (a, a_scales, b, b_scales), bias = found, drawn(16, seed=3, dtype=dtype)
    given = op("fp8_scaled_mm")(a, b.t(), a_scales, b_scales, dtype, bias)
    assert given.dtype == dtype
    wanted = (numbers(a) * numbers(a_scales)) @ (numbers(b) * numbers(b_scales)).T + numbers(bias)
    close(given, wanted)
    whole = torch.arange(-8, 8, dtype=torch.int8).view(4, 4)
    given = op("int8_scaled_mm")(whole, whole.t(), torch.full((4, 1), 0.5), torch.arange(1.0, 5)[:, None], dtype, None)
    close(given, 0.5 * numbers(whole) @ numbers(whole).T * np.arange(1.0, 5))


def near(found: Any, wanted: Any, step: float) -> None:
    """To what eight bits hold: three of a fraction, or a step of the smallest numbers."""
    np.testing.assert_allclose(numbers(found), wanted, rtol=1 / 16, atol=step)


def test_one_scale_in_eight_bits() -> None:
    x, stored, scale = drawn(40), torch.empty(40, dtype=torch.float8_e4m3fn), torch.zeros(1)
    compiled("per_tensor_quant_fp8<false, fp32_t>")(x, stored, scale)
    largest = np.abs(numbers(x)).max() / 448
    close(scale, [largest])
    found = torch.zeros(1)
    compiled("per_tensor_absmax_fp8<fp32_t>")(x, found)
    assert torch.equal(found, scale)
    given = torch.full((1,), 2 * largest)
    compiled("per_tensor_quant_fp8<true, fp32_t>")(x, stored, given)
    assert given.item() == pytest.approx(2 * largest)
    near(stored.float() * given, numbers(x), float(given) / 512)


@pytest.mark.parametrize("most", [448, 127])
def test_groups_in_eight_bits(most: int) -> None:
    dtype = torch.int8 if most == 127 else torch.float8_e4m3fn
    x, gate = drawn(3, 64), drawn(3, 64, seed=2)
    gated = np.vectorize(_silu)(numbers(gate)) * numbers(x)
    plain = ["fp32_t", "fp8_e4m3_t", 32, "false", "true", "true", "false", "false"]
    of_gates = [*plain[:6], "true", "false"]
    v2 = (x[:0], 32, False, False, False, 6, 1, False, 2, 3, 0, 1)
    calls: list[tuple[Any, Any]] = [
        (lambda q, s: compiled(f"PerTokenGroupQuantFlatKernel<{', '.join(map(str, plain))}>::run")(x, q, s), numbers(x)),
        (lambda q, s: compiled("PerTokenGroupQuant8bitV2Kernel<fp32_t, int8_t, false>::run")(x, q, s, *v2), numbers(x)),
        (lambda q, s: op("sgl_per_token_group_quant_8bit")(x, q, s, 32, 1e-10, -most, most, False), numbers(x)),
        (lambda q, s: compiled(f"PerTokenGroupQuantFlatKernel<{', '.join(map(str, of_gates))}>::run")(
            torch.cat((gate, x), -1), q, s), gated),
    ]  # fmt: skip
    for call, wanted in calls:
        stored, scales = torch.empty(3, 64, dtype=dtype), torch.empty(3, 2)
        call(stored, scales)
        groups = wanted.reshape(3, 2, 32)
        close(scales, np.abs(groups).max(-1) / most)
        step = float(scales.max()) / (1 if most == 127 else 512)
        near(stored.float() * scales.repeat_interleave(32, -1), wanted, step)
    packed = compiled(f"PerTokenGroupQuantFlatKernel<{', '.join(map(str, [*plain[:3], 'true', *plain[4:]]))}>::run")
    with pytest.raises(NotImplementedError, match="powers of two"):
        packed(x, stored, scales)


@DTYPES
@pytest.mark.parametrize(("name", "of"), [("silu", _silu), ("gelu", _gelu), ("gelu_tanh", _gelu_tanh)])
def test_gated_activations(name: str, of: Any, dtype: torch.dtype) -> None:
    x, out = drawn(5, 6, dtype=dtype), torch.empty(5, 3, dtype=dtype)
    wanted = np.vectorize(of)(numbers(x)[:, :3]) * numbers(x)[:, 3:]
    op(f"{name}_and_mul")(out, x)
    close(out, wanted)
    for cpp in ("run_activation", "run_activation_with_rounding"):
        out.zero_()
        compiled(f"ActivationKernel<bf16_t, true>::{cpp}")(x, out, name, *([0.0] if "rounding" in cpp else []))
        close(out, wanted)


def test_activations_of_experts_elsewhere_and_of_what_fills_up_stay() -> None:
    x, experts = drawn(6, 4), torch.tensor([2, -1, 0], dtype=torch.int32)
    wanted = np.vectorize(_silu)(numbers(x)[:, :2]) * numbers(x)[:, 2:]
    out = torch.full((6, 2), 7.0)
    compiled("ActivationKernel<fp32_t, true>::run_activation_filtered")(x, out, experts, 2, "silu")
    close(out, np.where(np.isin(np.arange(6), (2, 3))[:, None], 7.0, wanted))
    out, tokens = torch.full((6, 2), 7.0), torch.tensor([0, 9, 1, 2, 3, 3], dtype=torch.int32)
    run = compiled("ActivationKernel<fp32_t, true>::run_activation_sorted_filtered")
    run(x, out, experts, 2, tokens, torch.tensor([5], dtype=torch.int32), 4, "silu")
    close(out, np.where(np.isin(np.arange(6), (1, 2, 3, 5))[:, None], 7.0, wanted))


def test_limits_of_an_activation() -> None:
    x, out = torch.tensor([[9.0, -9.0, 9.0, -9.0]]), torch.empty(1, 2)
    compiled("ActivationKernel<fp32_t, true>::run_activation_with_rounding")(x, out, "silu", 2.0)
    close(out, [[_silu(2.0) * 2.0, _silu(-9.0) * -2.0]])


def _turned(x: Any, table: Any, positions: list[int], halves: bool) -> Any:
    found, width = x.copy(), table.shape[1]
    for token, position in enumerate(positions):
        for pair in range(width // 2):
            cos, sin = table[position, pair], table[position, width // 2 + pair]
            one, other = (pair, pair + width // 2) if halves else (2 * pair, 2 * pair + 1)
            found[token, :, one] = x[token, :, one] * cos - x[token, :, other] * sin
            found[token, :, other] = x[token, :, other] * cos + x[token, :, one] * sin
    return found


@DTYPES
@pytest.mark.parametrize("halves", [True, False])
def test_rotary_embedding(halves: bool, dtype: torch.dtype) -> None:
    positions, angles = torch.tensor([3, 0, 7]), numbers(drawn(10, 3, seed=5))
    table = torch.from_numpy(np.concatenate([np.cos(angles), np.sin(angles)], -1)).float()
    qkv = drawn(3, 7, 6, dtype=dtype)
    parts, places = (4, 2, 1), torch.tensor([5, 1, 2])
    q, k, v = qkv.clone().split(parts, 1)
    wanted = [_turned(numbers(each), numbers(table), positions.tolist(), halves) for each in (q, k)]
    template = f"<{str(halves).lower()}, 6, true, bf16_t, bf16_t>"
    compiled(f"FusedRopeKernel{template}::run")(q, k, table, positions)
    for each, result in zip((q, k), wanted, strict=True):
        close(each, result)
    q, k, v = qkv.split(parts, 1)
    v = torch.cat((v, v), 1)
    k_cache, v_cache = torch.zeros(8, 12, dtype=dtype), torch.zeros(8, 12, dtype=dtype)
    compiled(f"FusedRopeKernel{template}::run_fused")(q, k, v, k_cache, v_cache, table, positions, places)
    close(q, wanted[0])
    close(k_cache[places], wanted[1].reshape(3, -1))
    assert torch.equal(v_cache[places], v.flatten(1))
    assert not k_cache[[0, 3, 4, 6, 7]].any()
    assert not v_cache[[0, 3, 4, 6, 7]].any()
    wide = drawn(3, 2 * 8, seed=6, dtype=dtype)
    expected = numbers(wide).reshape(3, 2, 8)
    expected[..., :6] = _turned(expected[..., :6], numbers(table), positions.tolist(), halves)
    for run in (compiled("RotaryEmbeddingKernel::run"), op("rotary_embedding")):
        given = wide.clone()
        run(positions, given, None, 8, table, halves)
        close(given, expected.reshape(3, -1))


def test_rows_of_a_cache() -> None:
    k, v, places = drawn(4, 6), drawn(4, 2, seed=2), torch.tensor([3, 0, 1, 2], dtype=torch.int32)
    caches = torch.zeros(5, 6), torch.zeros(5, 2)
    run = compiled("StoreKVCacheKernel<24, 8, 32, true>::run")
    run(k, v, *caches, places, 5, 0)
    for cache, given in zip(caches, (k, v), strict=True):
        assert torch.equal(
            cache, torch.stack([torch.zeros_like(given[0]), given[2], given[3], given[0], torch.zeros_like(given[0])])
        )
    with pytest.raises(IndexError, match="outside of a cache of 3 rows"):
        run(k, v, *caches, places, 3, 0)


def test_last_places() -> None:
    out = torch.empty(3, dtype=torch.int64)
    compiled("ClampPosition<int64_t>::run")(out, torch.tensor([5, 1, 0]))
    assert out.tolist() == [4, 0, 0]


def test_experts() -> None:
    gates, bias = drawn(4, 6), torch.tensor([0.0, 5.0, 0.0, 0.0, 0.0, 0.0])
    weights, chosen, work = torch.empty(4, 2), torch.empty(4, 2, dtype=torch.int32), torch.empty(24)
    for renormalize, cap, given in ((False, 0.0, None), (True, 0.0, None), (True, 0.5, None), (False, 0.0, bias)):
        for run in (op("topk_softmax"), compiled("topk_softmax<fp32_t>")):
            more = [] if run is op("topk_softmax") else [work]
            run(weights, chosen, gates, *more, renormalize, cap, given)
            for token, row in enumerate(numbers(gates)):
                scores = cap * np.tanh(row / cap) if cap else row
                scores = scores if given is None else scores + numbers(given)
                shares = np.exp(scores) / np.exp(scores).sum()
                best = sorted(range(6), key=lambda e: -shares[e])[:2]
                assert chosen[token].tolist() == best
                close(weights[token], shares[best] / (shares[best].sum() if renormalize else 1))
    op("topk_sigmoid")(weights, chosen, gates, True, bias)
    for token, row in enumerate(numbers(gates)):
        shares = 1 / (1 + np.exp(-row))
        best = sorted(range(6), key=lambda e: -(shares[e] + bias[e].item()))[:2]
        assert chosen[token].tolist() == best
        close(weights[token], shares[best] / shares[best].sum())
    rows, out = drawn(4, 2, 3), torch.empty(4, 3)
    op("moe_sum")(rows, out)
    close(out, numbers(rows).sum(1))
    op("moe_sum_reduce")(rows, out, 0.5)
    close(out, numbers(rows).sum(1) / 2)


def test_probabilities_of_the_best_tokens() -> None:
    probs = torch.tensor([[0.5, 0.1, 0.3, 0.1], [0.25, 0.25, 0.4, 0.1]])
    out = torch.empty_like(probs)
    op("top_k_renorm_probs")(probs, out, torch.tensor([2, 1], dtype=torch.int32), 0)
    close(out, [[0.625, 0, 0.375, 0], [0, 0, 1, 0]])
    op("top_k_renorm_probs")(probs, out, None, 3)
    close(out, [[0.5, 0.1, 0.3, 0.1], [0.25 / 0.9, 0.25 / 0.9, 0.4 / 0.9, 0]])  # of equal ones both stay
    op("top_p_renorm_probs")(probs, out, None, 0.6)
    close(out, [[0.625, 0, 0.375, 0], [0.25 / 0.9, 0.25 / 0.9, 0.4 / 0.9, 0]])
    op("top_p_renorm_probs")(probs, out, torch.tensor([0.4, 0.39]), 0.0)
    close(out, [[1, 0, 0, 0], [0, 0, 1, 0]])


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor, used: torch.Tensor, table: torch.Tensor,
    out: torch.Tensor | None = None, scale: float = 1.0, chunk: int = 0, sinks: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    """Causal, over pages."""
    none = [None] * 8
    return op("fwd")(
        q, k, v, None, None, None, out, ends, None, None, None, used, 5, None, table, *none, scale, True, -1, 0, chunk, 0.0,
        True, None, 0, None, 0, sinks, None, False,
    )  # fmt: skip


@pytest.mark.parametrize("sinks", [False, True])
def test_attention_over_pages(sinks: bool) -> None:
    """A row of the table says nothing behind the pages that are used."""
    q, k, v, ends, lengths, table = _paged()
    scale, sink = 8**-0.5, drawn(4, seed=9) if sinks else None
    wanted = np.zeros((7, 4, 8))
    for at, (begin, length) in enumerate(zip(ends.tolist(), LENGTHS, strict=False)):
        rows = [(table[at, j // PAGE].item(), j % PAGE) for j in range(length)]
        keys, values = (np.stack([numbers(cache)[page, place] for page, place in rows]) for cache in (k, v))
        wanted[begin : begin + QUERIES[at]] = attended(
            numbers(q)[begin : begin + QUERIES[at]], keys, values, scale=scale, causal=True, left=-1, softcap=0.0,
            sink=None if sink is None else numbers(sink),
        )[0]  # fmt: skip
    for at, length in enumerate(LENGTHS):
        table[at, -(-length // PAGE) :] = 1 << 30

    def by_table(out: torch.Tensor | None, chunk: int = 0) -> Any:
        return attend(q, k, v, ends, lengths, table, out, scale, chunk, sink)

    close(by_table(None)[0], wanted)
    out = torch.empty_like(q)
    by_table(out)
    close(out, wanted)
    with pytest.raises(NotImplementedError, match="no attention_chunk"):
        by_table(None, 4)


def _taken(run: Any) -> float:
    """Seconds that the GPU takes."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def test_costs_are_of_what_is_moved() -> None:
    """A store moves rows that have a place, and a rotation its queries and keys twice; each is one kernel."""

    def work(rank: int, taken: list[float]) -> None:
        rows, width = 1 << 14, 1 << 10
        k = torch.empty(rows, width, device="cuda", dtype=torch.bfloat16)
        cache = torch.empty(2 * rows, width, device="cuda", dtype=torch.bfloat16)
        table, heads = torch.empty(64, 128, device="cuda"), k.view(rows, 8, 128)
        places = torch.ones(rows, dtype=torch.int32)
        places[rows // 2 :] = 0
        placed, at = places.cuda(), torch.zeros(rows, dtype=torch.int64, device="cuda")
        store = compiled("StoreKVCacheKernel<1, 1, 32, true>::run")
        rotate = compiled("FusedRopeKernel<true, 128, true, bf16_t, bf16_t>::run")
        taken += [_taken(partial(store, k, k, cache, cache, placed, 2 * rows, skipped)) for skipped in (5, 0)]
        taken.append(_taken(partial(rotate, heads, heads, table, at)))

    taken: list[float] = []
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(work, args=(taken,), nprocs=1)
        assert not ctx.simulation.op_costs.unmodelled.operators
    every, half, rotation = taken
    assert every == pytest.approx(rotation, rel=0.1)
    assert half < 0.75 * every


# -- what is compiled while it runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cpp", "name", "template"), [
    ("RotaryEmbeddingKernel::run", "RotaryEmbeddingKernel::run", []),
    ("topk_softmax<fp32_t>", "topk_softmax", ["fp32_t"]),
    ("FusedRopeKernel<true, -128, Pair<bf16_t, 2>>::run", "FusedRopeKernel::run", [True, -128, "Pair<bf16_t, 2>"]),
    ("&some::name<f(1, 2)>::run", "&some::name<f(1, 2)>::run", []),
])  # fmt: skip
def test_names_in_cpp(cpp: str, name: str, template: list[Any]) -> None:
    assert name_of(cpp) == (name, template)


def test_kernels_without_a_stand_in() -> None:
    """One fails to be loaded, as where there is no compiler; of several one is refused when it is called."""
    with pytest.raises(RuntimeError, match=r"sglang: Strange::run \(a.cuh\) is compiled from CUDA sources"):
        compiled("Strange<1>::run")
    both = loaded(kernels.COMPILED, ["a.cuh"], [("good", "ClampPosition<int64_t>::run"), ("bad", "Strange::run")])
    both.good(torch.empty(1, dtype=torch.int64), torch.tensor([3]))
    with pytest.raises(RuntimeError, match="Strange::run"):
        both.bad(1)


def test_sources_for_the_host_are_compiled() -> None:
    module: Any = ModuleType("loader")
    module.load_jit = lambda *marks, **how: (marks, how)
    load_by_definition(module)
    assert module.load_jit("corpus", cpp_files=["a.cpp"]) == (("corpus",), {"cpp_files": ["a.cpp"]})


# -- what the engine does -------------------------------------------------------------------------------------------------


def test_prefixes_are_kept_in_python() -> None:
    module: Any = SimpleNamespace(_rust_fallback_reason=lambda params: params)
    prefer_python(module)
    assert module._rust_fallback_reason("it is not there") == "it is not there"
    assert "simulated device" in module._rust_fallback_reason(None)


def test_lengths_are_those_of_the_host() -> None:
    """Of a batch that is filled up to the size of its graph; of a part of what is kept for all graphs."""

    class FlashAttentionBackend:
        def __init__(self) -> None:
            self.kept = torch.zeros(8, dtype=torch.int32, device="cuda")
            self.forward_metadata = SimpleNamespace(cache_seqlens_int32=self.kept[:4])

        def init_forward_metadata_out_graph(self, batch: Any, in_capture: bool = False) -> str:
            self.kept += torch.empty(8, device="cuda").int()  # of which nothing is known
            return "as it was"

    def decode(rank: int, taken: list[float]) -> None:
        backend, q = FlashAttentionBackend(), torch.empty(4, 32, 128, device="cuda", dtype=torch.bfloat16)
        cache = torch.empty(1 << 16, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
        ends, table = (
            torch.arange(5, dtype=torch.int32).cuda(),
            torch.zeros(4, 1 << 13, dtype=torch.int32, device="cuda"),
        )
        for lengths in (None, [8192, 8192, 8192, 8192], [8192, 1], [1, 1]):
            given = None if lengths is None else torch.tensor(lengths)
            assert backend.init_forward_metadata_out_graph(SimpleNamespace(seq_lens_cpu=given)) == "as it was"
            used = backend.forward_metadata.cache_seqlens_int32
            taken.append(_taken(partial(attend, q, cache, cache, ends, used, table)))

    tell_lengths(SimpleNamespace(FlashAttentionBackend=FlashAttentionBackend))  # type: ignore[arg-type]
    taken: list[float] = []
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(decode, args=(taken,), nprocs=1)
    unknown, full, quarter, none = taken
    assert unknown == pytest.approx(full, rel=0.1)
    assert none < 0.75 * quarter < 0.5 * full


def test_an_engine_asks_its_schedulers_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    alive = [2]

    def collect() -> list[int]:
        alive[0] -= 1
        return [1] * max(alive[0] + 1, 0)

    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.io_struct", SimpleNamespace(ShutdownReq=lambda: "end"))
    monkeypatch.setitem(
        sys.modules, "sglang.srt.managers.tokenizer_manager", SimpleNamespace(collect_scheduler_processes=collect)
    )
    monkeypatch.setattr("time.sleep", lambda seconds: said.append(seconds))

    class Engine:
        tokenizer_manager = SimpleNamespace(
            _dispatch_to_scheduler=said.append,
            _subprocess_watchdog=SimpleNamespace(stop=lambda: said.append("no watch")),
        )

        def shutdown(self) -> None:
            said.append("kills")

    ask_before_killing(SimpleNamespace(Engine=Engine))  # type: ignore[arg-type]
    Engine().shutdown()
    assert said == ["no watch", "end", 0.1, "kills"]
    said.clear()
    Engine().shutdown()  # again, at the end of the program: there are none
    assert said == ["kills"]


class _Request(SimpleNamespace):
    def finished(self) -> bool:
        return len(self.output_ids) == 2


def test_requests_and_steps_are_reported() -> None:
    """When they were made, by the process that sends them; each batch with its tokens; each request's end, once."""

    class APIServerReqTimeStats:
        def __init__(self, at: float) -> None:
            self.created_time = at

        def __getstate__(self) -> dict[str, object]:
            return {"enable_metrics": False}

    class Scheduler:
        def __init__(self) -> None:
            self.waiting_queue: list[Any] = []
            self.token_to_kv_pool_allocator = SimpleNamespace(size=100, available_size=lambda: 60)

        def handle_generate_request(self, request: Any) -> None:
            self.waiting_queue.append(request)

        def process_batch_result(self, batch: Any, result: Any) -> None:
            self.waiting_queue.clear()
            for each in batch.reqs:
                each.output_ids += result

    carry_times(SimpleNamespace(APIServerReqTimeStats=APIServerReqTimeStats))  # type: ignore[arg-type]
    observe(SimpleNamespace(Scheduler=Scheduler))  # type: ignore[arg-type]
    kept = APIServerReqTimeStats(0.5).__getstate__()
    assert kept == {"created_time": 0.5, "enable_metrics": False}

    def engine(rank: int) -> None:
        scheduler, requests = Scheduler(), []
        time.sleep(1.0)
        for name, times in (
            ("0123456789abcdef" * 2, SimpleNamespace(**kept)),
            ("fedcba9876543210" * 2, SimpleNamespace()),
        ):
            scheduler.handle_generate_request(SimpleNamespace(rid=name, input_ids=[1] * 5, time_stats=times))
            requests.append(_Request(rid=name, output_ids=[]))
        for extends, tokens in ((True, []), (True, [1]), (False, [2]), (False, [])):
            time.sleep(0.25)
            mode = SimpleNamespace(is_extend=lambda extends=extends: extends)
            batch = SimpleNamespace(reqs=requests, forward_mode=mode, extend_num_tokens=5 if extends else None)
            scheduler.process_batch_result(batch, tokens)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(engine, nprocs=1)
        result = serving_result(ctx.simulation.requests, 1)
    assert result is not None
    steps = [(each.prefill_tokens, each.decode_tokens, each.running, each.blocks_used) for each in result.of_steps]
    assert steps == [(5, 0, 2, 40), (5, 0, 2, 40), (0, 2, 2, 40)]
    found = {each.name: each for each in result.of_requests}
    assert list(found) == ["request", "request (2)"]
    assert [(each.prompt_tokens, each.generated_tokens, each.ended) for each in found.values()] == [(5, 2, True)] * 2
    assert [each.arrived for each in found.values()] == pytest.approx([0.5, 1.0], abs=1e-3)
    assert [each.first_token for each in found.values()] == pytest.approx([1.5, 1.5], abs=1e-3)


@pytest.mark.parametrize("data", [True, False])
def test_weak_references_of_graphs_hold_nothing(data: bool) -> None:
    assert left_by_weak_references(op("weak_ref_tensor"), data) == 1024


@pytest.mark.parametrize(("ignored", "places", "experts", "ends"), [
    (False, [3, 4, 0, 4, 1, 2], [-1, 0, 2], [0, 2, 4, 4, 6]), (True, [0, 4, 1, 2], [0, 2], [0, 2, 2, 4, 0]),
])  # fmt: skip
def test_places_in_blocks_of_experts(ignored: bool, places: list[int], experts: list[int], ends: list[int]) -> None:
    """Two tokens of two experts each, one of which another rank has; blocks of two places, and 4 is none."""
    order, numbers, count, sums = (torch.full((size,), 77, dtype=torch.int32) for size in (9, 5, 1, 5))
    chosen = torch.tensor([[0, 2], [2, -1]], dtype=torch.int32)
    op("moe_align_block_size")(chosen, 4, 2, order, numbers, count, sums, True, ignored)
    assert order.tolist() == places + [4] * (9 - len(places))
    assert numbers.tolist() == experts + [-1] * (5 - len(experts))
    assert count.item() == len(places)
    assert sums.tolist() == ends
