"""vLLM's operators: values against definitions in numpy, double precision, one after the other; costs by live lengths."""

from __future__ import annotations

import importlib
import math
import os
import re
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import kernbench
from kernbench.compiled_operators.operators import Operators
from kernbench.compiled_operators.request_names import RequestNames
from kernbench.compiled_operators.vllm.engines import finish_warm_up, refuse_side_by_side
from kernbench.compiled_operators.vllm.requests import _DRAWN, observe
from kernbench.compiled_operators.vllm.sampling import Drafts, observe_sampling, observe_verifying
from kernbench.cost.attention import attention_time
from kernbench.cost.by_values import CallOperands, SeenOperand
from kernbench.cost.operands import Operand
from kernbench.cost.ragged_attention import RaggedAttention
from kernbench.errors import ConfigError
from kernbench.topology import resolve_topology
from kernbench.trace.serving_figures import serving_result
from tests.stand_ins.arrays import DTYPES, close, drawn, numbers

# as vLLM 0.33.0's wheel has them in its libraries
SCHEMAS = {
    "core": """
rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()
fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()
silu_and_mul(Tensor! result, Tensor input) -> ()
mul_and_silu(Tensor! out, Tensor input) -> ()
gelu_and_mul(Tensor! out, Tensor input) -> ()
gelu_tanh_and_mul(Tensor! out, Tensor input) -> ()
gelu_new(Tensor! out, Tensor input) -> ()
gelu_fast(Tensor! out, Tensor input) -> ()
gelu_quick(Tensor! out, Tensor input) -> ()
relu_squared(Tensor! out, Tensor input) -> ()
rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, bool is_neox, int
  rope_dim_offset=0, bool inverse=False) -> ()
reshape_and_cache(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping, str
  kv_cache_dtype, Tensor k_scale, Tensor v_scale, bool interleaved_v=False) -> ()
reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping, str
  kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()
vocab_parallel_embedding(Tensor! out, Tensor input_ids, Tensor weight, int org_vocab_start_index, int
  org_vocab_end_index, int num_org_vocab_padding, int added_vocab_start_index, int added_vocab_end_index) -> ()
get_max_shared_memory_per_block_device_attribute(int device_id) -> int
weak_ref_tensor(Tensor input) -> Tensor
cutlass_scaled_mm_supports_fp8(int cuda_device_capability) -> bool
cutlass_scaled_mm(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()
persistent_topk(Tensor logits, Tensor lengths, Tensor! output, Tensor workspace, int k, int max_seq_len) -> ()
concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor! kv_cache, Tensor slot_mapping, str kv_cache_dtype, Tensor scale,
  bool skip_scale=False) -> ()
static_scaled_fp8_quant(Tensor! result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()
dynamic_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale) -> ()
dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale, Tensor? scale_ub) -> ()
per_token_group_fp8_quant(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, float fp8_min,
  float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, bool dummy_is_tma_aligned) -> ()
static_scaled_int8_quant(Tensor! result, Tensor input, Tensor scale, Tensor? azp) -> ()
dynamic_scaled_int8_quant(Tensor! result, Tensor input, Tensor! scale, Tensor!? azp) -> ()
""",
    "experts": """
topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, Tensor gating_output, bool
  renormalize, Tensor? bias, Tensor? is_padding) -> ()
moe_sum(Tensor input, Tensor! output, Tensor? topk_ids=None, Tensor? expert_map=None) -> ()
moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, Tensor! sorted_token_ids, Tensor! experts_ids,
  Tensor! num_tokens_post_pad, Tensor? maybe_expert_map, Tensor(a!)? scatter_idx=None) -> ()
""",
    "second": """
varlen_fwd(Tensor! q, Tensor k, Tensor v, Tensor!? out, Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? seqused_k,
  Tensor? leftpad_k, Tensor? block_table, Tensor? alibi_slopes, int max_seqlen_q, int max_seqlen_k, float p_dropout,
  float softmax_scale, bool zero_tensors, bool is_causal, int window_size_left, int window_size_right, float softcap,
  bool return_softmax, int num_splits, Tensor? gen) -> Tensor[]
""",
    "third": """
fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor!? out, Tensor? cu_seqlens_q,
  Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, int?
  max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin,
  Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, float softmax_scale, bool
  is_causal, int window_size_left, int window_size_right, float softcap, bool is_rotary_interleaved, Tensor?
  scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, Tensor? s_aux, int cp_world_size, int cp_rank,
  Tensor? cp_tot_seqused_k) -> Tensor[]
""",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _defined() -> None:
    """The operators of the shipped stand-in under namespaces of their own, as the wheel is not here."""
    for name, schemas in SCHEMAS.items():
        shipped = "stable" if name == "core" else "experts" if name == "experts" else "attention"
        module = importlib.import_module(f"kernbench.compiled_operators.vllm.{shipped}")
        known = getattr(module, name if shipped == "attention" else "operators")
        operators = Operators(f"kernbench_test_{name}", schemas=re.split(r"\n(?=\w)", schemas.strip()))
        operators.values, operators.shapes, operators.costs = known.values, known.shapes, known.costs
        operators.programs = known.programs
        operators.define("vllm 0.33.0")


def op(name: str, library: str = "core") -> Any:
    return getattr(getattr(torch.ops, f"kernbench_test_{library}"), name)


@DTYPES
@pytest.mark.parametrize("weighted", [True, False])
def test_norms(dtype: torch.dtype, weighted: bool) -> None:
    x, residual = drawn(3, 8, dtype=dtype), drawn(3, 8, seed=2, dtype=dtype)
    weight = drawn(8, seed=3, dtype=dtype) if weighted else None

    def normed(rows: Any) -> Any:
        scale = np.ones(8) if weight is None else numbers(weight)
        return np.array(
            [
                [e / math.sqrt(sum(o * o for o in row) / 8 + 1e-5) * w for e, w in zip(row, scale, strict=True)]
                for row in rows
            ]
        )

    out = torch.empty_like(x)
    op("rms_norm")(out, x, weight, 1e-5)
    close(out, normed(numbers(x)))
    total = numbers(x) + numbers(residual)
    op("fused_add_rms_norm")(x, residual, weight, 1e-5)
    close(residual, total)
    close(x, normed(total))


def _gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def _gelu_tanh(x: float) -> float:
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x))


@DTYPES
@pytest.mark.parametrize(("name", "of"), [
    ("silu_and_mul", lambda a, b: _silu(a) * b), ("mul_and_silu", lambda a, b: a * _silu(b)),
    ("gelu_and_mul", lambda a, b: _gelu(a) * b), ("gelu_tanh_and_mul", lambda a, b: _gelu_tanh(a) * b),
])  # fmt: skip
def test_gated_activations(name: str, of: Any, dtype: torch.dtype) -> None:
    x = drawn(2, 5, 6, dtype=dtype)
    out = torch.empty(2, 5, 3, dtype=dtype)
    op(name)(out, x)
    close(out, np.vectorize(of)(numbers(x)[..., :3], numbers(x)[..., 3:]))


@DTYPES
@pytest.mark.parametrize(("name", "of"), [
    ("gelu_new", _gelu_tanh), ("gelu_fast", _gelu_tanh), ("gelu_quick", lambda x: x / (1 + math.exp(-1.702 * x))),
    ("relu_squared", lambda x: max(x, 0.0) ** 2),
])  # fmt: skip
def test_activations(name: str, of: Any, dtype: torch.dtype) -> None:
    x = drawn(4, 6, dtype=dtype)
    out = torch.empty_like(x)
    op(name)(out, x)
    close(out, np.vectorize(of)(numbers(x)))


@DTYPES
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("offset", "inverse"), [(0, False), (2, False), (0, True)])
@pytest.mark.parametrize("keyed", [True, False])
def test_rotary_embedding(neox: bool, offset: int, inverse: bool, keyed: bool, dtype: torch.dtype) -> None:
    head, width, positions = 8, 4, torch.tensor([3, 0, 7])
    angles = numbers(drawn(10, width // 2, seed=5))
    cache = torch.from_numpy(np.concatenate([np.cos(angles), np.sin(angles)], -1)).to(dtype)
    query, key = drawn(3, 2 * head, dtype=dtype), drawn(3, 1, head, seed=2, dtype=dtype) if keyed else None
    wanted = []
    for given in (query, key):
        if given is None:
            continue
        turned = numbers(given).reshape(3, -1, head).copy()
        for token, position in enumerate(positions.tolist()):
            for pair in range(width // 2):
                cos, sin = numbers(cache)[position, pair], numbers(cache)[position, width // 2 + pair]
                sin = -sin if inverse else sin
                one, other = (pair, pair + width // 2) if neox else (2 * pair, 2 * pair + 1)
                a, b = turned[token, :, offset + one].copy(), turned[token, :, offset + other].copy()
                turned[token, :, offset + one] = a * cos - b * sin
                turned[token, :, offset + other] = b * cos + a * sin
        wanted.append(turned.reshape(given.shape))
    op("rotary_embedding")(positions, query, key, head, cache, neox, offset, inverse)
    for given, result in zip((query, key), wanted, strict=False):
        close(given, result)


def test_a_ranks_part_of_the_embedding() -> None:
    """Of tokens 8 to 11 of the vocabulary, two rows of padding, and the added tokens 20 and 21."""
    table, ids = drawn(8, 3), torch.tensor([[8, 11, 20], [7, 12, 21]])
    out = torch.empty(2, 3, 3)
    op("vocab_parallel_embedding")(out, ids, table, 8, 12, 2, 20, 22)
    rows = numbers(table)
    zero = np.zeros(3)
    close(out, [[rows[0], rows[3], rows[6]], [zero, zero, rows[7]]])


@DTYPES
def test_caches(dtype: torch.dtype) -> None:
    key, value = drawn(5, 2, 8, dtype=dtype), drawn(5, 2, 8, seed=2, dtype=dtype)
    slots, one = torch.tensor([7, -1, 0, 2]), torch.ones(1)
    paged = [torch.zeros(3, 4, 2, 8, dtype=dtype) for _ in "kv"]
    op("reshape_and_cache_flash")(key, value, *paged, slots, "auto", one, one)
    keys, values = torch.zeros(3, 2, 2, 4, 4, dtype=dtype), torch.zeros(3, 2, 8, 4, dtype=dtype)
    op("reshape_and_cache")(key, value, keys, values, slots, "auto", one, one)
    wanted = [np.zeros((3, 4, 2, 8)) for _ in "kv"]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for cache, given in zip(wanted, (key, value), strict=True):
                cache[slot // 4, slot % 4] = numbers(given)[token]
    for cache, result in zip(paged, wanted, strict=True):
        np.testing.assert_array_equal(numbers(cache), result)
    np.testing.assert_array_equal(numbers(keys).transpose(0, 3, 1, 2, 4).reshape(3, 4, 2, 8), wanted[0])
    np.testing.assert_array_equal(numbers(values).transpose(0, 3, 1, 2), wanted[1])


def test_a_cache_in_eight_bits() -> None:
    key = torch.tensor([[[3.0, -1000.0, 0.5, 1e-9]]])
    caches = [torch.zeros(1, 2, 1, 4, dtype=torch.uint8) for _ in "kv"]
    op("reshape_and_cache_flash")(key, key, *caches, torch.tensor([1]), "fp8", torch.tensor(2.0), torch.tensor(1.0))
    stored = [numbers(cache.view(torch.float8_e4m3fn).float())[0, 1, 0] for cache in caches]
    np.testing.assert_array_equal(stored, [[1.5, -448.0, 0.25, 0.0], [3.0, -448.0, 0.5, 0.0]])


def test_experts() -> None:
    gates = drawn(4, 6)
    weights, chosen, places = (
        torch.empty(4, 2),
        torch.empty(4, 2, dtype=torch.int32),
        torch.empty(4, 2, dtype=torch.int32),
    )
    bias = torch.tensor([0.0, 5.0, 0.0, 0.0, 0.0, 0.0])
    for renormalize, given in ((False, None), (True, None), (False, bias)):
        op("topk_softmax", "experts")(weights, chosen, places, gates, renormalize, given, None)
        for token, row in enumerate(numbers(gates)):
            shares = np.exp(row) / np.exp(row).sum()
            best = sorted(range(6), key=lambda e: -(shares[e] + (0 if given is None else bias[e].item())))[:2]
            assert chosen[token].tolist() == best
            close(weights[token], shares[best] / (shares[best].sum() if renormalize else 1))
            assert places[token].tolist() == [token, 4 + token]
    rows = drawn(4, 2, 3)
    out = torch.empty(4, 3)
    op("moe_sum", "experts")(rows, out)
    close(out, numbers(rows)[:, 0] + numbers(rows)[:, 1])


def attended(
    q: Any, keys: Any, values: Any, *, scale: float, causal: bool, left: int, softcap: float, sink: Any
) -> Any:
    """One sequence, one score after the other: results, and logarithms of the sums."""
    n, heads, _ = q.shape
    out, sums = np.zeros((n, heads, values.shape[-1])), np.full((heads, n), math.inf)
    for i in range(n):
        at = i + len(keys) - n
        for h in range(heads):
            g = h * keys.shape[1] // heads
            seen = [j for j in range(len(keys)) if (j <= at or not causal) and (left < 0 or j >= at - left)]
            scores = [float(q[i, h] @ keys[j, g]) * scale for j in seen]
            scores = [softcap * math.tanh(s / softcap) if softcap else s for s in scores]
            total = sum(map(math.exp, scores)) + (0.0 if sink is None else math.exp(sink[h]))
            for s, j in zip(scores, seen, strict=True):
                out[i, h] += math.exp(s) / total * values[j, g]
            sums[h, i] = math.log(total)
    return out, sums


PAGE = 4
LENGTHS, QUERIES = (7, 12, 1), (1, 5, 1)


def _paged() -> tuple[torch.Tensor, ...]:
    """Queries, pages of keys and of values, ends, lengths, table."""
    q = drawn(sum(QUERIES), 4, 8)
    k, v = drawn(9, PAGE, 2, 8, seed=2), drawn(9, PAGE, 2, 8, seed=3)
    table = torch.tensor([[8, 1, 0], [2, 7, 3], [5, 0, 0]], dtype=torch.int32)
    ends = torch.tensor([0, *np.cumsum(QUERIES)], dtype=torch.int32)
    return q, k, v, ends, torch.tensor(LENGTHS, dtype=torch.int32), table


@pytest.mark.parametrize(("causal", "left", "softcap", "sinks"), [
    (True, -1, 0.0, False), (False, -1, 0.0, False), (True, 3, 0.0, False), (True, -1, 2.0, False), (True, -1, 0.0, True),
])  # fmt: skip
def test_attention_over_pages(causal: bool, left: int, softcap: float, sinks: bool) -> None:
    q, k, v, ends, lengths, table = _paged()
    scale, sink = 8**-0.5, drawn(4, seed=9) if sinks else None
    wanted, sums = np.zeros((7, 4, 8)), np.zeros((4, 7))
    for at, (begin, length) in enumerate(zip(ends.tolist(), LENGTHS, strict=False)):
        rows = [(table[at, j // PAGE].item(), j % PAGE) for j in range(length)]
        keys, values = (np.stack([numbers(cache)[page, place] for page, place in rows]) for cache in (k, v))
        end = begin + QUERIES[at]
        wanted[begin:end], sums[:, begin:end] = attended(
            numbers(q)[begin:end], keys, values, scale=scale, causal=causal, left=left, softcap=softcap,
            sink=None if sink is None else numbers(sink),
        )  # fmt: skip
    out, right = torch.empty_like(q), 0 if causal else -1
    found = op("fwd", "third")(
        q, k, v, None, None, None, out, ends, None, None, None, lengths, 5, 12, table, None, None, None, None, None, None, None,
        None, scale, causal, left, right, softcap, True, None, 0, None, 0, sink, 1, 0, None,
    )  # fmt: skip
    close(out, wanted)
    close(found[1], sums)
    if not sinks:
        again = op("varlen_fwd", "second")(
            q, k, v, None, ends, torch.zeros_like(ends), lengths, None, table, None, 5, 12, 0.0, scale, False, causal, left,
            right, softcap, False, 0, None,
        )  # fmt: skip
        close(again[0], wanted)


def test_attention_over_packed_keys() -> None:
    q, k = drawn(6, 2, 8), drawn(6, 2, 8, seed=2)
    ends = torch.tensor([0, 2, 6], dtype=torch.int32)
    found = op("varlen_fwd", "second")(
        q, k, k, None, ends, ends, None, None, None, None, 4, 4, 0.0, 1.0, False, True, -1, 0, 0.0, False, 0, None
    )
    for begin, end in ((0, 2), (2, 6)):
        rows = [numbers(each)[begin:end] for each in (q, k, k)]
        close(found[0][begin:end], attended(*rows, scale=1.0, causal=True, left=-1, softcap=0.0, sink=None)[0])


def _decode(rank: int, lengths: list[int], taken: list[float]) -> None:
    sequences, pages = len(lengths), 1 << 14
    q = torch.empty(sequences, 32, 128, device="cuda", dtype=torch.bfloat16)
    cache = torch.empty(2, pages, 16, 8, 128, device="cuda", dtype=torch.bfloat16)
    ends = torch.arange(sequences + 1, dtype=torch.int32).cuda()
    table = torch.zeros(sequences, 512, device="cuda", dtype=torch.int32)
    used = torch.tensor(lengths, dtype=torch.int32).cuda()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    op("fwd", "third")(
        q, *cache, None, None, None, torch.empty_like(q), ends, None, None, None, used, 1, 8192, table, None, None, None, None,
        None, None, None, None, 1.0, True, -1, 0, 0.0, True, None, 0, None, 0, None, 1, 0, None,
    )  # fmt: skip
    end.record()
    end.synchronize()
    taken.append(begin.elapsed_time(end) / 1e3)


def test_decoding_costs_by_the_lengths_that_are_live() -> None:
    """Not by the room that the cache has, which is 1 GB: by the bytes of the keys and values that are there."""
    taken: list[float] = []
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        for lengths in ([1024] * 64, [2048] * 64, [128] * 63 + [1024 * 64 - 128 * 63]):
            ctx.multiprocessing.spawn(_decode, args=(lengths, taken), nprocs=1)
        assert not any("fwd" in each for each in ctx.simulation.op_costs.unmodelled.sentences)
    device = resolve_topology("dgx_h100").topology_obj.device
    keys = 64 * 1024 * 8 * 128 * 2 * 2
    assert taken[1] - taken[0] == pytest.approx(keys / device.hbm_copy_bandwidth, rel=0.02)
    assert taken[2] == pytest.approx(taken[0], rel=0.02)


@pytest.mark.parametrize(("batch", "queries", "keys"), [(4, 512, 512), (2, 1, 4096), (1, 2048, 2048)])
def test_sequences_of_one_length_cost_as_a_batch(batch: int, queries: int, keys: int) -> None:
    device = resolve_topology("dgx_h100").topology_obj.device
    found = RaggedAttention(((queries, keys),) * batch, 32, 8, 128, "bf16").cost(device)
    batched = attention_time(device, batch, 32, queries, keys, 128, kv_heads=8, causal=True, dtype="bf16")
    assert found.seconds == pytest.approx(max(batched.seconds - device.launch.latency + 1e-6, 1e-6), rel=1e-6)


def test_without_values() -> None:
    """Refused in words with data; without, it has a shape and is named as counted by its bytes."""
    op_name = "kernbench_test_core::persistent_topk"

    def product(rank: int, side: int) -> tuple[int, ...]:
        scores = torch.empty(side, side, device="cuda")
        out = torch.empty(side, side, device="cuda", dtype=torch.int32)
        op("persistent_topk")(scores, out[0], out, scores, 2, side)
        return tuple(out.shape)

    with (
        kernbench.simulate("dgx_h100") as ctx,
        pytest.raises(Exception, match=f"{op_name} of vllm 0.33.0 has no values"),
    ):
        ctx.multiprocessing.spawn(product, args=(8,), nprocs=1)
    for side in (8, 4096):
        with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
            ctx.multiprocessing.spawn(product, args=(side,), nprocs=1)
            assert [each.name for each in ctx.simulation.op_costs.unmodelled.operators] == [op_name]


def test_what_the_library_says_of_the_device() -> None:
    def ask(rank: int, said: list[Any]) -> None:
        said.append(op("get_max_shared_memory_per_block_device_attribute")(0))
        said.append(op("cutlass_scaled_mm_supports_fp8")(90))

    said: list[Any] = []
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(ask, args=(said,), nprocs=1)
    assert said == [227 << 10, True]


@torch.library.custom_op("kernbench_test_vllm::attention", mutates_args=("out",))
def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
    op("silu_and_mul")(out, q)


def test_within_a_custom_operation_it_is_what_that_takes() -> None:
    """As vLLM calls its attention: what the custom operation itself is given, a cache of any size, costs nothing."""

    def worker(rank: int) -> None:
        q, out = (torch.empty(width, 4096, device="cuda", dtype=torch.bfloat16) for width in (4, 4))
        cache = torch.empty(1 << 30, device="cuda", dtype=torch.bfloat16)
        _attention(q, cache, cache, out[:, :2048])

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        assert not ctx.simulation.op_costs.unmodelled.operators
        names = [each.name for each in ctx.simulation.engine.op_log.operations]
    assert names == ["kernbench_test_core::silu_and_mul"]


class FakeScheduler:
    """What of vLLM's scheduler is wrapped, in the shape that release 0.33 has it; its own methods are called as they are."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        pool = SimpleNamespace(num_gpu_blocks=10, get_num_free_blocks=lambda: 10 - 3 * len(self.requests))
        self.kv_cache_manager = SimpleNamespace(block_pool=pool)

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request
        self.running.append(request.request_id)

    def update_from_output(self, scheduled: Any, output: Any) -> dict[int, Any]:
        outputs = []
        for name, tokens in output.items():
            request = self.requests[name]
            request.num_output_tokens += len(tokens)
            done = request.num_output_tokens >= 2
            outputs.append(
                SimpleNamespace(request_id=name, new_token_ids=tokens, finish_reason="length" if done else None)
            )
            if done:
                del self.requests[name]
                self.running.remove(name)
        return {0: SimpleNamespace(outputs=outputs)}


def test_its_scheduler_tells_of_requests_and_steps() -> None:
    class Observed(FakeScheduler):
        pass

    observe(SimpleNamespace(Scheduler=Observed))  # type: ignore[arg-type]

    def engine(rank: int) -> None:
        scheduler = Observed()
        for name, length in (("a", 5), ("b", 7)):
            scheduler.add_request(SimpleNamespace(
                request_id=name, num_prompt_tokens=length, num_output_tokens=0, arrival_time=time.time()
            ))  # fmt: skip
        for scheduled, output in (
            ({"a": 5, "b": 3}, {"a": [1]}),
            ({"a": 1, "b": 4}, {"a": [2], "b": [3]}),
            ({"b": 1}, {"b": [4]}),
        ):
            time.sleep(0.25)
            preempted = {"b"} if len(scheduled) == 1 else None
            scheduler.update_from_output(
                SimpleNamespace(num_scheduled_tokens=scheduled, preempted_req_ids=preempted), output
            )

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(engine, nprocs=1)
        result = serving_result(ctx.simulation.requests, 1)
    assert result is not None
    steps = [(each.prefill_tokens, each.decode_tokens, each.running, each.blocks_used) for each in result.of_steps]
    assert steps == [(8, 0, 2, 6), (4, 1, 1, 3), (0, 1, 0, 0)]
    found = {each.name: each for each in result.of_requests}
    assert [(each.prompt_tokens, each.generated_tokens, each.ended, each.preemptions) for each in found.values()] == [
        (5, 2, True, 0), (7, 2, True, 1),
    ]  # fmt: skip
    assert [each.first_token for each in found.values()] == pytest.approx([0.25, 0.5], abs=1e-3)
    assert [each.arrived for each in found.values()] == pytest.approx([0.0, 0.0], abs=1e-3)


def test_one_of_the_engines_that_do_the_same_tells() -> None:
    """Each rank of an external launcher has an engine: that of the first of four ranks tells, and of the next four."""

    class Repeated(FakeScheduler):
        vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(distributed_executor_backend="external_launcher", world_size=4)
        )

    observe(SimpleNamespace(Scheduler=Repeated))  # type: ignore[arg-type]

    def engine(rank: int) -> None:
        os.environ["RANK"] = str(rank)
        scheduler = Repeated()
        asked = SimpleNamespace(
            request_id=f"of {rank}", num_prompt_tokens=5, num_output_tokens=0, arrival_time=time.time()
        )
        scheduler.add_request(asked)
        scheduler.update_from_output(
            SimpleNamespace(num_scheduled_tokens={asked.request_id: 5}), {asked.request_id: [1]}
        )

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(engine, nprocs=8)
        result = serving_result(ctx.simulation.requests, 8)
    assert result is not None
    assert sorted(each.name for each in result.of_requests) == ["of 0", "of 4"]
    assert result.steps == 2


def test_latents_are_kept_and_only_these_cost() -> None:
    latents, turned, cache = drawn(3, 6), drawn(3, 1, 2, seed=2), torch.zeros(2, 4, 8)
    slots, scale = torch.tensor([5, -1, 2]), torch.ones(1)
    op("concat_and_cache_mla")(latents, turned, cache, slots, "auto", scale)
    for token, (block, place) in {0: (1, 1), 2: (0, 2)}.items():
        close(cache[block, place], [*numbers(latents[token]), *numbers(turned[token, 0])])
    assert int((cache != 0).sum()) == 16
    operands = {"kv_c": latents, "k_pe": turned, "kv_cache": cache, "slot_mapping": slots}
    seen = {name: SeenOperand(Operand.of(each.shape, each.dtype), each.tolist) for name, each in operands.items()}
    cost = importlib.import_module("kernbench.compiled_operators.vllm.stable").operators.costs["concat_and_cache_mla"]
    assert cost(CallOperands(seen, [])).nbytes == 2 * (2 * 8 * 4) + 3 * 8


@pytest.mark.parametrize("way", ["one", "rows", "bounded", "groups", "powers", "given"])
def test_numbers_in_eight_bits(way: str) -> None:
    x, most = 3 * drawn(4, 8), 448.0
    x[1] = 0
    found, rows = torch.empty(4, 8, dtype=torch.float8_e4m3fn), numbers(x)
    if way in ("one", "given"):
        scale = torch.full((1,), 0.01)
        wanted = np.full((4, 1), 0.01 if way == "given" else abs(rows).max() / most)
        name = "static_scaled_fp8_quant" if way == "given" else "dynamic_scaled_fp8_quant"
        op(name)(found, x, scale)
    elif way in ("rows", "bounded"):
        scale, bound = torch.empty(4, 1), torch.tensor([1.5]) if way == "bounded" else None
        wanted = np.array(
            [[max(min(abs(row).max(), 1.5 if bound is not None else 1e9) / most, 1 / (most * 512))] for row in rows]
        )
        op("dynamic_per_token_scaled_fp8_quant")(found, x, scale, bound)
    else:
        scale = torch.empty(4, 2)
        wanted = np.array([[max(abs(row[at : at + 4]).max(), 1e-10) / most for at in (0, 4)] for row in rows])
        if way == "powers":
            wanted = 2 ** np.ceil(np.log2(wanted))
        op("per_token_group_fp8_quant")(x, found, scale, 4, 1e-10, -most, most, way == "powers", False, False)
    close(scale, wanted[:1, 0] if scale.numel() == 1 else wanted)
    exact = np.clip(rows / np.repeat(wanted, 8 // wanted.shape[1], 1), -most, most)
    np.testing.assert_allclose(numbers(found.float()), exact, rtol=1 / 16, atol=1e-2)


def test_whole_numbers_in_eight_bits() -> None:
    x, found, scale = 3 * drawn(4, 8), torch.empty(4, 8, dtype=torch.int8), torch.empty(4, 1)
    x[1] = 0
    op("dynamic_scaled_int8_quant")(found, x, scale, None)
    rows = numbers(x)
    close(scale, abs(rows).max(1, keepdims=True) / 127)
    np.testing.assert_allclose(numbers(found.float() * scale), rows, atol=0.51 * float(scale.max()))
    assert abs(numbers(found)).max(1).tolist() == [127, 0, 127, 127]
    op("static_scaled_int8_quant")(found, x, torch.tensor([0.01]), torch.tensor([5], dtype=torch.int32))
    np.testing.assert_array_equal(numbers(found), np.clip(np.round(rows / 0.01) + 5, -128, 127))


@pytest.mark.parametrize("way", ["one", "rows", "blocks"])
def test_products_of_eight_bits(way: str) -> None:
    rows, inner, width = 3, 256, 256 if way == "blocks" else 5
    a, b = drawn(rows, inner).to(torch.float8_e4m3fn), drawn(width, inner, seed=2).to(torch.float8_e4m3fn).t()
    shapes = {"one": ((1,), (1,)), "rows": ((rows, 1), (1, width)), "blocks": ((rows, 2), (2, 2))}[way]
    scales = [drawn(*shape, seed=3 + at).abs() for at, shape in enumerate(shapes)]
    out, bias = torch.empty(rows, width), drawn(width, seed=5)
    op("cutlass_scaled_mm")(out, a, b, *scales, bias)
    first, second = (numbers(each.float()) for each in (a, b))
    wanted = np.zeros((rows, width))
    for i in range(rows):
        for j in range(width):
            for k in range(inner):
                at, bt = {
                    "one": ((0,), (0,)),
                    "rows": ((i, 0), (0, j)),
                    "blocks": ((i, k // 128), (k // 128, j // 128)),
                }[way]
                wanted[i, j] += first[i, k] * second[k, j] * float(scales[0][at]) * float(scales[1][bt])
    np.testing.assert_allclose(numbers(out), wanted + numbers(bias), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("mapped", [False, True])
def test_tokens_by_expert_in_whole_blocks(mapped: bool) -> None:
    chosen, block = torch.tensor([[2, 3], [1, 2], [1, 3]]), 2
    places, experts, count = (
        torch.empty(14, dtype=torch.int32),
        torch.empty(7, dtype=torch.int32),
        torch.empty(1, dtype=torch.int32),
    )
    only = torch.tensor([-1, 0, -1, 1]) if mapped else None
    op("moe_align_block_size", "experts")(chosen, 4, block, places, experts, count, only)
    wanted = {1: [2, 4], 2: [0, 3], 3: [1, 5]}
    kept = [each for each in wanted if only is None or only[each] >= 0]
    assert places.tolist() == [place for each in kept for place in wanted[each]] + [6] * (14 - 2 * len(kept))
    assert experts.tolist() == [each if only is None else int(only[each]) for each in kept] + [-1] * (7 - len(kept))
    assert int(count) == 2 * len(kept)


def test_latent_attention_reads_what_is_keys_and_values_once() -> None:
    found = RaggedAttention(((1, 4096),) * 8, 16, 1, 64, "bf16", value_width=512, latent=512)
    assert found.nbytes == 2 * 8 * (4096 * (64 + 512) + 16 * (64 + 512 + 512))
    assert found.flops == 2 * 8 * 16 * 4096 * (64 + 512 + 512)
    apart = RaggedAttention(((1, 4096),) * 8, 16, 1, 576, "bf16", value_width=512)
    device = resolve_topology("dgx_h100").topology_obj.device
    assert found.cost(device).seconds < 0.75 * apart.cost(device).seconds


def test_engines_side_by_side_are_refused() -> None:
    class ParallelConfig:
        data_parallel_size = 1
        independent = 0

        def reconfigure_for_independent_dp_rank(self) -> None:
            self.independent += 1

    refuse_side_by_side(SimpleNamespace(ParallelConfig=ParallelConfig))  # type: ignore[arg-type]
    config = ParallelConfig()
    config.reconfigure_for_independent_dp_rank()
    assert config.independent == 1
    config.data_parallel_size = 2
    with pytest.raises(ConfigError, match=r"data_parallel_size=2 .* one world at a time"):
        config.reconfigure_for_independent_dp_rank()


def _warm_up(product: torch.Tensor) -> str:
    for _ in range(50):
        product @ product
    return "warm"


def _start(rank: int, waits: bool, left: list[float]) -> None:
    module: Any = SimpleNamespace(kernel_warmup=_warm_up)
    if waits:
        finish_warm_up(module)
    assert module.kernel_warmup(torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)) == "warm"
    begin = time.perf_counter()
    torch.cuda.synchronize()
    left.append(time.perf_counter() - begin)


def test_an_engine_begins_when_its_warm_up_has_ended() -> None:
    left: list[float] = []
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        for waits in (False, True):
            ctx.multiprocessing.spawn(_start, args=(waits, left), nprocs=1)
    assert left[0] > 0.05
    assert left[1] < 1e-4


def test_names_of_requests_are_the_same_in_each_run() -> None:
    runs = []
    for suffix, more in (("13ae6258", "b8abbd1453c8e65d"), ("9d7045aa", "0123456789012345")):
        names = RequestNames(_DRAWN)
        asked = (
            f"r0-{suffix}",
            f"cmpl-{more}-0-{suffix}",
            f"cmpl-bench-{suffix}-3-0-{suffix}",
            f"chatcmpl-{more}-{suffix}",
            f"7-{suffix}",
        )
        runs.append([names.of(each) for each in asked])
        assert [names.of(each) for each in asked] == runs[-1]
        assert names.of(f"r0-{more[:8]}") == "r0 (2)"
    assert runs[0] == runs[1] == ["r0", "cmpl-0", "cmpl-bench-3-0", "chatcmpl", "7"]


def test_the_second_runners_tokens_are_counted_without_data() -> None:
    class Sampler:
        def __call__(self, logits: torch.Tensor, batch: Any) -> Any:
            return SimpleNamespace(num_sampled=(logits[:, 0] > 0).int())

    observe_sampling(SimpleNamespace(Sampler=Sampler))  # type: ignore[arg-type]
    counted: list[list[int]] = []

    def runner(rank: int) -> None:
        batch = SimpleNamespace(
            num_computed_tokens_np=np.array([0, 8, 20]), num_scheduled_tokens=np.array([8, 8, 1]),
            prefill_len_np=np.array([16, 16, 20]),
        )  # fmt: skip
        logits = torch.empty(3, 1 << 16, device="cuda")
        counted.append([int(each) for each in Sampler()(logits, batch).num_sampled.tolist()])

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(runner, nprocs=1)
        assert any("num_sampled" in each or "tolist" in each for each in ctx.simulation.assumptions.notes)
    assert counted == [[0, 1, 1]]


def test_drafts_are_accepted_as_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    class RejectionSampler:
        def __call__(self, logits: torch.Tensor, batch: Any) -> Any:
            count = (logits[:, 0] > 0).int()
            return SimpleNamespace(num_sampled=count, num_rejected=count.clone())

    monkeypatch.setenv("KERNBENCH_ACCEPTANCE", "1")
    observe_verifying(SimpleNamespace(RejectionSampler=RejectionSampler))  # type: ignore[arg-type]
    counted: list[list[int]] = []

    def runner(rank: int) -> None:
        batch = SimpleNamespace(
            num_computed_tokens_np=np.array([0, 20, 20]), num_scheduled_tokens=np.array([8, 4, 1]),
            prefill_len_np=np.array([16, 16, 16]), cu_num_logits_np=np.array([0, 1, 5, 6]),
        )  # fmt: skip
        found = RejectionSampler()(torch.empty(3, 1 << 16, device="cuda"), batch)
        counted.extend([found.num_sampled.tolist(), found.num_rejected.tolist()])

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(runner, nprocs=1)
        assert any("100% of the tokens that are drafted" in each for each in ctx.simulation.remarks)
    assert counted == [[0, 4, 1], [0, 0, 0]]
    half, none = Drafts("0.5"), Drafts("0")
    steps = [int(half.accepted(np.array([3]))[0]) for _ in range(80)]
    assert sum(steps) == 80 * (0.5 + 0.25 + 0.125)
    assert none.accepted(np.array([3, 0])).tolist() == [0, 0]
    with pytest.raises(ConfigError, match="KERNBENCH_ACCEPTANCE"):
        Drafts("often")


def left_by_weak_references(weak: Any, data: bool) -> int:
    """Bytes that the program holds of a graph to whose results it has such references: seed and offset of the generator."""
    found: list[int] = []

    def body(rank: int) -> None:
        x = torch.zeros(1 << 20, device="cuda")
        graph, before, kept = torch.cuda.CUDAGraph(), torch.cuda.memory_allocated(), []
        with torch.cuda.graph(graph):
            y = x
            for _ in range(8):
                y = y + 1
                kept.append(weak(y))
        assert kept[-1].data_ptr() == y.data_ptr()
        del y
        found.append(torch.cuda.memory_allocated() - before)
        graph.replay()
        if data:
            assert kept[-1][0].item() == 8

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    return found[0]


@pytest.mark.parametrize("data", [True, False])
def test_weak_references_of_graphs_hold_nothing(data: bool) -> None:
    assert left_by_weak_references(op("weak_ref_tensor"), data) == 1024
