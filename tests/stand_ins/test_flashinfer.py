"""The stand-in for ``flashinfer``: values by definition, costs by live lengths, CUDA graphs, signatures."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.metadata
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench
from kernbench.stand_ins import standing_in
from tests.stand_ins.on_gpu import on_gpu, operations_on_gpu

Tensor = torch.Tensor
SEEDS = st.integers(0, 1 << 30)
STAND_IN = Path(kernbench.__file__).parent / "stand_ins" / "flashinfer"


@pytest.fixture(scope="module", autouse=True)
def _imported():
    global fi
    with standing_in(["flashinfer"]):
        fi = importlib.import_module("flashinfer")
        importlib.import_module("flashinfer._kernels")
        yield


def defined(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, softcap: float = 0.0) -> tuple[Tensor, Tensor]:
    """Of one sequence ``[queries, heads, size]``, and logarithms to the base 2; ``seen [queries, keys]``."""
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    powers = scores.exp() * seen
    sums = powers.sum(-1)
    shares = powers / sums[..., None].clamp(min=1e-300)
    return torch.einsum("hij,jhd->ihd", shares, v), sums.log2().T


def seen_by(queries: int, keys: int, causal: bool, left: int) -> Tensor:
    ahead = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        seen &= ahead <= 0
    return seen & (ahead >= -left) if left >= 0 else seen


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pages_of(keys: list[Tensor], size: int, layout: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A cache with these sequences in pages that are not in order, and its ends, indices and last lengths."""
    counts = [-(-len(each) // size) for each in keys]
    ends = torch.tensor([0, *counts]).cumsum(0).int()
    indices = torch.arange(sum(counts)).flip(0).int() + 1
    cache = torch.full((sum(counts) + 2, size, *keys[0].shape[1:]), 1e4, dtype=keys[0].dtype)
    for at, each in enumerate(keys):
        for key in range(len(each)):
            cache[indices[ends[at] + key // size], key % size] = each[key]
    last = torch.tensor([len(each) - (count - 1) * size for each, count in zip(keys, counts, strict=True)]).int()
    return cache if layout == "NHD" else cache.transpose(1, 2).contiguous(), ends, indices, last


BATCHES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 7)), min_size=1, max_size=3)


@settings(max_examples=25)
@given(seed=SEEDS, batch=BATCHES, size=st.integers(1, 4), layout=st.sampled_from(["NHD", "HND"]), causal=st.booleans(),
       left=st.sampled_from([-1, 2]), softcap=st.sampled_from([0.0, 3.0]), masked=st.booleans(),
       together=st.booleans())  # fmt: skip
def test_queries_over_pages(seed, batch, size, layout, causal, left, softcap, masked, together):
    queries = [random(seed + at, count, 4, 8) for at, (count, _) in enumerate(batch)]
    keys, values = ([random(seed + off + at, count, 2, 8) for at, (_, count) in enumerate(batch)] for off in (50, 90))
    (k, ends, indices, last), (v, *_) = (pages_of(each, size, layout) for each in (keys, values))
    masks = [random(seed + 9 + at, *each) > 0 for at, each in enumerate(batch)]
    wrapper = fi.BatchPrefillWithPagedKVCacheWrapper(torch.empty(16, dtype=torch.uint8), layout)
    ends_q = torch.tensor([0, *(count for count, _ in batch)]).cumsum(0).int()
    wrapper.plan(
        ends_q, ends, indices, last, 4, 2, 8, size, causal=causal, window_left=left, logits_soft_cap=softcap, sm_scale=0.3,
        q_data_type=torch.float64, custom_mask=torch.cat([each.flatten() for each in masks]) if masked else None,
    )  # fmt: skip
    cache = torch.stack((k, v), 1) if together else (k, v)
    out, sums = wrapper.run(torch.cat(queries), cache, k_scale=0.5, v_scale=2.0, return_lse=True)
    for at, (count, length) in enumerate(batch):
        seen = masks[at] if masked else seen_by(count, length, causal, left)
        expected, logs = defined(queries[at], keys[at], values[at], seen, 0.15, softcap)
        span = slice(int(ends_q[at]), int(ends_q[at + 1]))
        torch.testing.assert_close(out[span], 2 * expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(sums[span].double(), logs, rtol=1e-5, atol=1e-5)


@settings(max_examples=15)
@given(seed=SEEDS, lengths=st.lists(st.integers(1, 7), min_size=1, max_size=3), size=st.integers(1, 4), each=st.integers(1, 2),
       layout=st.sampled_from(["NHD", "HND"]), by_place=st.booleans())  # fmt: skip
def test_decoding(seed, lengths, size, each, layout, by_place):
    lengths = [max(length, each) for length in lengths]
    queries = random(seed, len(lengths) * each, 4, 8)
    keys, values = ([random(seed + off + at, count, 2, 8) for at, count in enumerate(lengths)] for off in (50, 90))
    (k, ends, indices, last), (v, *_) = (pages_of(one, size, layout) for one in (keys, values))
    wrapper = fi.BatchDecodeWithPagedKVCacheWrapper(torch.empty(16, dtype=torch.uint8), layout)
    if by_place:
        wrapper.plan(
            ends, indices, last, 4, 2, 8, size, "NONE", -1, 0.0, torch.float64, torch.float64, q_len_per_req=each
        )
    else:
        fi.fast_decode_plan(wrapper, ends, indices, last, 4, 2, 8, size, data_type="float64", q_len_per_req=each)
    out, sums = wrapper.run_return_lse(queries, (k, v))
    for at, length in enumerate(lengths):
        span = slice(at * each, (at + 1) * each)
        expected, logs = defined(queries[span], keys[at], values[at], seen_by(each, length, True, -1), 8**-0.5)
        torch.testing.assert_close(out[span], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(sums[span].double(), logs, rtol=1e-5, atol=1e-5)
    if each == 1:
        one = fi.single_decode_with_kv_cache(queries[0], keys[0], values[0])
        torch.testing.assert_close(one, out[0])


@settings(max_examples=15)
@given(seed=SEEDS, batch=BATCHES, causal=st.booleans(), wide=st.sampled_from([8, 4]))
def test_queries_over_packed_keys(seed, batch, causal, wide):
    queries = [random(seed + at, count, 4, 8) for at, (count, _) in enumerate(batch)]
    keys = [random(seed + 50 + at, count, 2, 8) for at, (_, count) in enumerate(batch)]
    values = [random(seed + 90 + at, count, 2, wide) for at, (_, count) in enumerate(batch)]
    wrapper = fi.BatchPrefillWithRaggedKVCacheWrapper(torch.empty(16, dtype=torch.uint8))
    ends_q, ends = (torch.tensor([0, *column]).cumsum(0).int() for column in zip(*batch, strict=True))
    wrapper.plan(ends_q, ends, 4, 2, 8, wide, causal=causal, q_data_type="float64")
    out = wrapper.run(torch.cat(queries), torch.cat(keys), torch.cat(values))
    found = [
        defined(q, k, v, seen_by(len(q), len(k), causal, -1), 8**-0.5)[0]
        for q, k, v in zip(queries, keys, values, strict=True)
    ]
    torch.testing.assert_close(out, torch.cat(found), rtol=1e-5, atol=1e-5)
    one, _ = fi.single_prefill_with_kv_cache_return_lse(queries[0], keys[0], values[0], causal=causal)
    torch.testing.assert_close(one, found[0], rtol=1e-5, atol=1e-5)


@settings(max_examples=15)
@given(seed=SEEDS, lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=3),
       layout=st.sampled_from(["NHD", "HND"]))  # fmt: skip
def test_what_is_put_into_pages_is_read_there(seed, lengths, layout):
    whole = [random(seed + at, old + new, 2, 4) for at, (old, new) in enumerate(lengths)]
    filled, ends, indices, last = pages_of(whole, 2, layout)
    cache = torch.full_like(filled, 1e4)
    old = torch.tensor([each for each, _ in lengths])
    added = torch.tensor([0, *(new for _, new in lengths)]).cumsum(0).int()
    sizes = fi.get_seq_lens(ends, last, 2)
    assert sizes.tolist() == [sum(each) for each in lengths]
    sequences, positions = fi.get_batch_indices_positions(added, sizes, int(added[-1]))
    assert positions.tolist() == [int(old[at]) + i for at, (_, new) in enumerate(lengths) for i in range(new)]
    keys = torch.cat([each[before:] for each, (before, _) in zip(whole, lengths, strict=True)])
    fi.append_paged_kv_cache(keys, keys, sequences, positions, (cache, cache.clone()), indices, ends, last, layout)
    fresh = pages_of(
        [
            torch.cat((torch.full_like(each[:before], 1e4), each[before:]))
            for each, (before, _) in zip(whole, lengths, strict=True)
        ],
        2,
        layout,
    )[0]
    assert torch.equal(cache, fresh)


@settings(max_examples=10)
@given(seed=SEEDS, cut=st.integers(1, 5))
def test_parts_are_merged(seed, cut):
    q, k, v = random(seed, 3, 2, 8), random(seed + 1, 6, 2, 8), random(seed + 2, 6, 2, 8)
    every = torch.ones(3, 6, dtype=torch.bool)
    (a, s_a), (b, s_b) = (defined(q, k[part], v[part], every[:, part], 1.0) for part in (slice(0, cut), slice(cut, 6)))
    expected, logs = defined(q, k, v, every, 1.0)
    for out, sums in (
        fi.merge_state(a, s_a.float(), b, s_b.float()),
        fi.merge_states(torch.stack((a, b), 1), torch.stack((s_a, s_b), 1).float()),
    ):
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(sums.double(), logs, rtol=1e-5, atol=1e-5)
    into, sums = a.clone(), s_a.float()
    fi.merge_state_in_place(into, sums, b, s_b.float(), torch.tensor([True, False, True]))
    torch.testing.assert_close(into[[0, 2]], expected[[0, 2]], rtol=1e-5, atol=1e-5)
    assert torch.equal(into[1], a[1])


@settings(max_examples=15)
@given(seed=SEEDS, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_norms_and_activations(seed, dtype):
    x, rest, weight = random(seed, 3, 16).to(dtype), random(seed + 1, 3, 16).to(dtype), random(seed + 2, 16).to(dtype)
    rounding = 1e-5 if dtype == torch.float32 else 1e-2

    def close(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=rounding)

    def norm(wide: Tensor, scale: Tensor) -> Tensor:
        return wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * scale

    wide, scale = x.double(), weight.double()
    close(fi.rmsnorm(x, weight), norm(wide, scale))
    close(fi.gemma_rmsnorm(x, weight), norm(wide, 1 + scale))
    for fused, factor in ((fi.fused_add_rmsnorm, scale), (fi.gemma_fused_add_rmsnorm, 1 + scale)):
        first, residual = x.clone(), rest.clone()
        assert fused(first, residual, weight) is None
        close(residual, wide + rest.double())
        close(first, norm(wide + rest.double(), factor))
    mean = wide - wide.mean(-1, keepdim=True)
    close(fi.layernorm(x, weight.float(), weight.float()), norm_of(mean) * scale + scale)
    a, b = wide.chunk(2, -1)
    close(fi.silu_and_mul(x), a / (1 + (-a).exp()) * b)
    close(fi.gelu_and_mul(x), a * (1 + torch.erf(a / math.sqrt(2))) / 2 * b)
    close(fi.gelu_tanh_and_mul(x), a * (1 + (math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)).tanh()) / 2 * b)


def norm_of(mean: Tensor) -> Tensor:
    return mean / (mean.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


@settings(max_examples=15)
@given(seed=SEEDS, interleave=st.booleans(), width=st.sampled_from([4, 8]), llama=st.booleans())
def test_rotary_embedding(seed, interleave, width, llama):
    q, k = random(seed, 5, 2, 8), random(seed + 1, 5, 1, 8)
    ends, offsets = torch.tensor([0, 2, 5]).int(), torch.tensor([3, 40]).int()
    positions = torch.tensor([3, 4, 40, 41, 42])
    scale, theta = (8.0, 500000.0) if llama else (2.0, 100.0)
    speeds = []
    for pair in range(width // 2):
        speed = theta ** (-2 * pair / width)
        if llama:
            share = (64 / (2 * math.pi / speed) - 1) / (4 - 1)
            share = min(max(share, 0.0), 1.0)
            speeds.append((1 - share) * speed / scale + share * speed)
        else:
            speeds.append(speed / scale)
    angles = positions[:, None] * torch.tensor(speeds, dtype=torch.float64)

    def turned(x: Tensor) -> Tensor:
        made = x.clone()
        for pair in range(width // 2):
            a, b = (2 * pair, 2 * pair + 1) if interleave else (pair, pair + width // 2)
            number = torch.complex(x[..., a], x[..., b]) * torch.polar(torch.ones(5).double(), angles[:, pair])[:, None]
            made[..., a], made[..., b] = number.real, number.imag
        return made

    how: dict[str, Any] = {"rotary_dim": width, "interleave": interleave, "rope_scale": scale, "rope_theta": theta}
    name = "apply_llama31_rope" if llama else "apply_rope"
    if llama:
        how["old_context_len"] = 64
    expected = turned(q), turned(k)
    for found in (
        getattr(fi, name)(q, k, ends, offsets, **how),
        getattr(fi, f"{name}_pos_ids")(q, k, positions, **how),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for function, places in ((f"{name}_inplace", (ends, offsets)), (f"{name}_pos_ids_inplace", (positions,))):
        here = q.clone(), k.clone()
        getattr(fi, function)(*here, *places, **how)
        torch.testing.assert_close(here, expected, rtol=1e-4, atol=1e-4)
    table = (torch.arange(50)[:, None] * torch.tensor(speeds)).float()
    table = torch.cat((table.cos(), table.sin()), -1)
    found = fi.apply_rope_with_cos_sin_cache(positions, q.flatten(1), k.flatten(1), 8, table, is_neox=not interleave)
    torch.testing.assert_close(found, (expected[0].flatten(1), expected[1].flatten(1)), rtol=1e-3, atol=1e-3)


def probabilities(seed: int, rows: int = 4, choices: int = 6) -> Tensor:
    return torch.softmax(random(seed, rows, choices), -1).float()


@settings(max_examples=20)
@given(seed=SEEDS, k=st.integers(1, 7), p=st.floats(0.05, 1.0), each=st.booleans())
def test_what_stays_of_probabilities(seed, k, p, each):
    probs = probabilities(seed)
    ks, ps = (torch.full((4,), k, dtype=torch.int32), torch.full((4,), p)) if each else (k, p)
    best, nucleus = fi.top_k_renorm_probs(probs, ks), fi.top_p_renorm_probs(probs, ps)
    masked = fi.top_k_mask_logits(probs.log(), ks)
    for row, shares in enumerate(probs.double().tolist()):
        order = sorted(range(6), key=lambda at: -shares[at])
        top, some, total = set(order[:k]), set(), 0.0
        for at in order:
            if total >= p - 1e-9 and some:
                break
            some.add(at)
            total += shares[at]
        for found, kept in ((best, top), (nucleus, some)):
            whole = sum(shares[at] for at in kept)
            expected = [shares[at] / whole if at in kept else 0.0 for at in range(6)]
            assert found[row].tolist() == pytest.approx(expected, abs=1e-5)
        assert {at for at in range(6) if masked[row, at] > -math.inf} == top
    torch.testing.assert_close(fi.softmax(probs.log(), 0.5), probs**2 / (probs**2).sum(-1, keepdim=True))


@settings(max_examples=10)
@given(seed=SEEDS, k=st.integers(1, 6), p=st.floats(0.1, 1.0))
def test_only_what_stays_is_drawn(seed, k, p):
    probs = probabilities(seed)
    make = torch.Generator().manual_seed(seed)
    many = torch.arange(4).repeat_interleave(50).int()
    first = fi.top_p_renorm_probs(fi.top_k_renorm_probs(probs, k), p) > 0
    both = (fi.top_p_renorm_probs(probs, p) > 0) & (fi.top_k_renorm_probs(probs, k) > 0)
    for found, kept in (
        (fi.top_k_sampling_from_probs(probs, k, many, generator=make), fi.top_k_renorm_probs(probs, k) > 0),
        (fi.top_p_sampling_from_probs(probs, p, many, generator=make), fi.top_p_renorm_probs(probs, p) > 0),
        (fi.min_p_sampling_from_probs(probs, p, many, generator=make), probs >= p * probs.amax(-1, keepdim=True)),
        (fi.top_k_top_p_sampling_from_probs(probs, k, p, many, generator=make), first),
        (fi.top_k_top_p_sampling_from_logits(probs.log(), k, p, many, generator=make), first),
        (fi.top_k_top_p_sampling_from_probs(probs, k, p, many, "joint", generator=make), both),
    ):
        assert found.dtype == torch.int32
        assert bool(kept[many.long(), found.long()].all())


def test_choices_are_drawn_as_often_as_they_are_likely():
    probs = torch.tensor([[0.1, 0.0, 0.6, 0.3]])
    many = torch.zeros(20000, dtype=torch.int32)
    for found in (
        fi.sampling_from_probs(probs, many, generator=torch.Generator().manual_seed(1)),
        fi.sampling_from_logits(probs.log(), many, generator=torch.Generator().manual_seed(2)),
    ):
        assert (found.bincount(minlength=4) / 20000).tolist() == pytest.approx([0.1, 0.0, 0.6, 0.3], abs=0.015)
    again = [fi.sampling_from_probs(probs, many[:50], seed=7, offset=1) for _ in range(2)]
    assert torch.equal(*again)
    _, valid = fi.sampling_from_probs(torch.stack((probs[0], probs[0] * 0)), return_valid=True)
    assert valid.tolist() == [True, False]
    with pytest.raises(ValueError, match="contains NaN"):
        fi.sampling_from_probs(probs * math.nan, check_nan=True)


def test_its_release_is_found():
    assert importlib.metadata.version("flashinfer-python") == fi.__version__
    assert "flashinfer_python" in {each.metadata["Name"] for each in importlib.metadata.distributions()}


def test_what_is_not_there_is_refused():
    q, k = torch.zeros(1, 2, 8), torch.zeros(3, 2, 8)
    with pytest.raises(NotImplementedError, match="pos_encoding_mode 'ALIBI'"):
        fi.single_prefill_with_kv_cache(q, k, k, pos_encoding_mode="ALIBI")
    wrapper = fi.BatchPrefillWithRaggedKVCacheWrapper(torch.empty(16, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match=r"plan\(\) is to be called"):
        wrapper.run(q, k, k)
    ends = torch.tensor([0, 1]).int()
    with pytest.raises(NotImplementedError, match="has no v_indptr"):
        wrapper.plan(ends, ends, 2, 2, 8, v_indptr=ends)
    wrapper.plan(ends, ends, 2, 2, 8)
    with pytest.raises(ValueError, match=r"q_data_type torch\.float16"):
        wrapper.run(q, k, k)
    with pytest.raises(AttributeError, match="has no trtllm_batch_decode_with_kv_cache"):
        fi.decode.trtllm_batch_decode_with_kv_cache  # noqa: B018
    with pytest.raises(ValueError, match="paged_kv_indptr_buffer should be a tensor in cudagraph mode"):
        fi.BatchDecodeWithPagedKVCacheWrapper(torch.empty(16, dtype=torch.uint8), use_cuda_graph=True)


# -- on a GPU -------------------------------------------------------------------------------------------------------------


def _decoder(batch: int, room: int) -> tuple[Any, Any]:
    """A wrapper with buffers for a graph, and what plans it for lengths."""
    buffers = [torch.zeros(size, dtype=torch.int32, device="cuda") for size in (batch + 1, room, batch)]
    workspace = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    wrapper = fi.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace, *buffers)

    def plan(lengths: list[int], size: int) -> None:
        pages = [-(-each // size) for each in lengths]
        ends = torch.tensor([0, *pages]).cumsum(0).int()
        last = torch.tensor([each - (count - 1) * size for each, count in zip(lengths, pages, strict=True)]).int()
        wrapper.plan(ends, torch.arange(int(ends[-1])).int(), last, 8, 2, 64, size, q_data_type=torch.bfloat16)

    return wrapper, plan


def test_a_graph_is_replayed_with_another_plan():
    q, k, v = (random(at, *shape).bfloat16() for at, shape in enumerate(((2, 8, 64), (6, 4, 2, 64), (6, 4, 2, 64))))

    def body() -> list[Tensor]:
        wrapper, plan = _decoder(2, 6)
        on_device, cache = q.cuda(), (k.cuda(), v.cuda())
        plan([3, 4], 4)
        graph, out = torch.cuda.CUDAGraph(), torch.empty_like(on_device)
        with torch.cuda.graph(graph):
            wrapper.run(on_device, cache, out=out)
        plan([6, 14], 4)
        graph.replay()
        return [out]

    (found,) = on_gpu(body)
    for at, (begin, length) in enumerate(((0, 6), (2, 14))):
        keys, values = (each[begin:].flatten(0, 1)[:length].double() for each in (k, v))
        expected, _ = defined(q[at, None].double(), keys, values, torch.ones(1, length, dtype=torch.bool), 64**-0.5)
        torch.testing.assert_close(found[at].double(), expected[0], rtol=2e-2, atol=1e-2)


def test_decoding_costs_what_is_live_also_in_a_graph():
    def body() -> None:
        wrapper, plan = _decoder(8, 8 * 1024)
        q = torch.empty(8, 8, 64, dtype=torch.bfloat16, device="cuda")
        cache = torch.empty(8 * 1024, 2, 16, 2, 64, dtype=torch.bfloat16, device="cuda")
        plan([64] * 8, 16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            wrapper.run(q, cache)
        for length in (64, 16384):
            plan([length] * 8, 16)
            graph.replay()

    short, long = (each.nbytes for each in operations_on_gpu(body) if "attend" in each.name)
    queries = 2 * 2 * 8 * 8 * 64
    assert short == queries + 2 * 2 * 8 * 64 * 2 * 64
    assert long == queries + 2 * 2 * 8 * 16384 * 2 * 64


@pytest.mark.parametrize("data", [True, False])
def test_a_layer_has_no_kernel_without_a_cost(data):
    seen: list[Any] = []

    def worker(rank: int) -> None:
        x = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)
        y = fi.rmsnorm(x, x[0])
        fi.fused_add_rmsnorm(y, x, x[0])
        gated = fi.silu_and_mul(y)
        probs = fi.softmax(gated)
        fi.top_k_renorm_probs(probs, 4)
        token = fi.top_k_top_p_sampling_from_probs(probs, 4, 0.9)
        out, sums = fi.merge_state(y[:, None], probs[:, :1], y[:, None], probs[:, :1])
        seen.append((gated.shape, token.shape, token.dtype, out.shape, sums.shape))

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        assert not ctx.simulation.op_costs.unmodelled.operators
    assert seen == [((4, 32), (4,), torch.int32, (4, 1, 64), (4, 1))]


# -- the package ----------------------------------------------------------------------------------------------------------


def _signatures(folder: Path, module: str) -> dict[str, list[tuple[str, str | None]]]:
    """Arguments of the functions and methods of a module, with defaults, out of its source."""
    file = folder / f"{module}.py"
    tree = ast.parse((file if file.exists() else folder / module / "__init__.py").read_text())
    found = {}

    def take(name: str, node: ast.FunctionDef) -> None:
        plain, named = [*node.args.posonlyargs, *node.args.args], node.args.kwonlyargs
        missing: list[Any] = [None] * (len(plain) - len(node.args.defaults))
        pairs = zip([*plain, *named], [*missing, *node.args.defaults, *node.args.kw_defaults], strict=True)
        found[name] = [(each.arg, None if value is None else ast.unparse(value)) for each, value in pairs]

    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            take(node.name, node)
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    take(f"{node.name}.{each.name}", each)
    return found


@pytest.mark.parametrize("module", ["activation", "cascade", "decode", "norm", "page", "prefill", "rope", "sampling"])
def test_signatures_are_the_packages(module):
    """``pip download --no-deps flashinfer-python==0.7.2.post1``, unpacked where Python finds it."""
    spec = importlib.machinery.PathFinder.find_spec("flashinfer")
    if spec is None or spec.origin is None:
        pytest.skip("flashinfer-python is not unpacked here")
    theirs, ours = (_signatures(folder, module) for folder in (Path(spec.origin).parent, STAND_IN))
    for name, arguments in ours.items():
        if not any(part.startswith("_") and part != "__init__" for part in name.split(".")):
            assert arguments == theirs[name], name
