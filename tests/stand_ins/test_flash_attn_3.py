"""The stand-in for FlashAttention 3: values and gradients by definition, caches, eight bits, times, and how it is imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench
from kernbench.stand_ins import standing_in
from tests.stand_ins.on_gpu import on_gpu, operations_on_gpu

Tensor = torch.Tensor
SEEDS = st.integers(0, 1 << 30)


@pytest.fixture(scope="module", autouse=True)
def _imported():
    global fa3
    with standing_in(["flash_attn_3"]):
        fa3 = importlib.import_module("flash_attn_interface")
        importlib.import_module("flash_attn_3._C")
        yield


def defined(
    q: Tensor, k: Tensor, v: Tensor, *, causal=False, window=(-1, -1), softcap=0.0, scale=None
) -> tuple[Tensor, Tensor]:
    """Results and logarithms of sums ``[batch, heads, queries]``; the last query sees all keys, one that sees none gives 0."""
    queries, keys = q.shape[1], k.shape[1]
    k, v = (each.repeat_interleave(q.shape[2] // k.shape[2], 2) for each in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    ahead = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    unseen = torch.zeros_like(ahead, dtype=torch.bool)
    if causal:
        unseen |= ahead > 0
    if window[0] >= 0:
        unseen |= ahead < -window[0]
    if window[1] >= 0:
        unseen |= ahead > window[1]
    powers = scores.exp() * ~unseen
    sums = powers.sum(-1)
    shares = powers / sums[..., None].clamp(min=1e-300)
    return torch.einsum("bhij,bjhd->bihd", shares, v), sums.log()


HOW = st.fixed_dictionaries({"causal": st.booleans(), "window": st.sampled_from([(-1, -1), (2, 0), (1, 2), (3, -1)]),
                             "softcap": st.sampled_from([0.0, 2.0]), "scale": st.sampled_from([None, 0.3])})  # fmt: skip
NAMES = {"window": "window_size", "scale": "softmax_scale"}


def operands(seed: int, queries: int, keys: int, groups: int, values: int = 8, batch: int = 2) -> list[Tensor]:
    make = torch.Generator().manual_seed(seed)
    shapes = ((batch, queries, 2 * groups, 8), (batch, keys, 2, 8), (batch, keys, 2, values))
    return [torch.randn(shape, generator=make, dtype=torch.float64) for shape in shapes]


@settings(max_examples=25)
@given(seed=SEEDS, how=HOW, queries=st.integers(1, 6), keys=st.integers(1, 7), groups=st.sampled_from([1, 3]))
def test_attention_and_its_gradients(seed, how, queries, keys, groups):
    q, k, v = operands(seed, queries, keys, groups)
    expected, sums = defined(q, k, v, **how)
    named = {NAMES.get(name, name): value for name, value in how.items()}
    out, found = fa3.flash_attn_func(q.float(), k.float(), v.float(), return_attn_probs=True, **named)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.double(), sums, rtol=1e-4, atol=1e-5)
    inputs, others = ([each.detach().clone().requires_grad_() for each in (q, k, v)] for _ in range(2))
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    wanted = torch.autograd.grad(defined(*inputs, **how)[0], inputs, grad, allow_unused=True)
    made = torch.autograd.grad(fa3.flash_attn_func(*others, **named), others, grad)
    for each, one in zip(made, wanted, strict=True):
        torch.testing.assert_close(each, one, rtol=1e-4, atol=1e-6)


@settings(max_examples=15)
@given(seed=SEEDS, how=HOW, lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3), learns=st.booleans(),
       used=st.booleans())  # fmt: skip
def test_sequences_one_after_the_other(seed, how, lengths, learns, used):
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    q, k, v = (each[0] for each in operands(seed, sum(lengths), sum(lengths), 2, batch=1))
    live = [max(each - 1, 1) if used else each for each in lengths]
    named = {NAMES.get(name, name): value for name, value in how.items()}
    found, sums = fa3.flash_attn_varlen_func(
        q.requires_grad_(learns), k, v, ends, ends, 5, 5, seqused_k=torch.tensor(live).int() if used else None,
        return_attn_probs=True, **named,
    )  # fmt: skip
    assert found.requires_grad == learns
    for at, (begin, length) in enumerate(zip(ends.tolist(), live, strict=False)):
        span, keys = slice(begin, begin + lengths[at]), slice(begin, begin + length)
        expected, logs = defined(q[None, span], k[None, keys], v[None, keys], **how)
        torch.testing.assert_close(found[span], expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(sums[:, span].double(), logs[0], rtol=1e-5, atol=1e-5)


@settings(max_examples=15)
@given(seed=SEEDS, lengths=st.lists(st.integers(1, 6), min_size=2, max_size=2), fresh=st.booleans(), packed=st.booleans(),
       paged=st.booleans(), causal=st.booleans())  # fmt: skip
def test_a_cache(seed, lengths, fresh, packed, paged, causal):
    q, k, v = operands(seed, 2, 8, 2, values=4)
    pages = torch.tensor([[5, 2, 0, 7], [1, 6, 3, 4]], dtype=torch.int32)
    caches = []
    for each in (k, v):
        cache = torch.full((8, 2, *each.shape[2:]) if paged else (2, 8, *each.shape[2:]), 1e4, dtype=torch.float64)
        for at, length in enumerate(lengths):
            for key in range(length):
                cache[(pages[at, key // 2], key % 2) if paged else (at, key)] = each[at, key]
        caches.append(cache)
    new = tuple(each[:, 6:8].clone() for each in (k, v)) if fresh else (None, None)
    ends = torch.tensor([0, 2, 4], dtype=torch.int32)
    out, sums, *_ = fa3.flash_attn_with_kvcache(
        q.flatten(0, 1) if packed else q, *caches, *new, cache_seqlens=torch.tensor(lengths, dtype=torch.int32),
        page_table=pages if paged else None, cu_seqlens_q=ends if packed else None, max_seqlen_q=2, causal=causal,
        scheduler_metadata=fa3.get_scheduler_metadata(2, 2, 8, 4, 2, 8, torch.tensor(lengths, dtype=torch.int32)),
        return_softmax_lse=True,
    )  # fmt: skip
    for at, length in enumerate(lengths):
        keys, values = (
            torch.cat((each[at, :length], each[at, 6:8] if fresh else each[at, :0]))[None] for each in (k, v)
        )
        expected, logs = defined(q[at, None], keys, values, causal=causal)
        torch.testing.assert_close(out[2 * at : 2 * at + 2] if packed else out[at], expected[0], rtol=1e-5, atol=1e-5)
        found = sums[:, 2 * at : 2 * at + 2] if packed else sums[at]
        torch.testing.assert_close(found.double(), logs[0], rtol=1e-5, atol=1e-5)


@settings(max_examples=10)
@given(seed=SEEDS, packed=st.booleans(), causal=st.booleans())
def test_operands_in_eight_bits_have_scales(seed, packed, causal):
    narrow = [each.to(torch.float8_e4m3fn) for each in operands(seed, 4, 4, 2)]
    make = torch.Generator().manual_seed(seed)
    scales = [torch.rand(2, 2, generator=make) + 0.5 for _ in range(3)]
    wide = [
        each.double() * scale.repeat_interleave(each.shape[2] // 2, 1)[:, None, :, None]
        for each, scale in zip(narrow, scales, strict=True)
    ]
    expected, _ = defined(*wide, causal=causal)
    named = dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=True))
    if packed:
        ends = torch.tensor([0, 4, 8], dtype=torch.int32)
        flat = [each.flatten(0, 1) for each in narrow]
        found = fa3.flash_attn_varlen_func(*flat, ends, ends, 4, 4, causal=causal, **named).unflatten(0, (2, 4))
    else:
        found = fa3.flash_attn_func(*narrow, causal=causal, **named)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=8e-3, atol=1e-3)


@settings(max_examples=10)
@given(seed=SEEDS, cut=st.integers(1, 5))
def test_parts_are_combined(seed, cut):
    q, k, v = operands(seed, 3, 6, 1)
    parts = [defined(q, k[:, keys], v[:, keys]) for keys in (slice(0, cut), slice(cut, 6))]
    out, sums = fa3.flash_attn_combine(
        torch.stack([each[0] for each in parts]).float(),
        torch.stack([each[1].transpose(1, 2) for each in parts]).float(),
    )
    expected, logs = defined(q, k, v)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums.double(), logs.transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_heads_in_one_tensor():
    q, k, v = operands(1, 4, 4, 2)
    expected, _ = defined(q, k, v, causal=True)
    found = fa3.flash_attn_qkvpacked_func(torch.cat((q, k, v), 2), causal=True, num_heads_q=4)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    q = q[:, :, :2]
    found = fa3.flash_attn_qkvpacked_func(torch.stack((q, k, v), 2))
    torch.testing.assert_close(found, defined(q, k, v)[0], rtol=1e-5, atol=1e-5)


def test_what_is_not_there_is_refused():
    q, k, v = operands(1, 4, 4, 2)
    with pytest.raises(NotImplementedError, match="flash_attn_func has no attention_chunk"):
        fa3.flash_attn_func(q, k, v, attention_chunk=2)
    with pytest.raises(NotImplementedError, match="flash_attn_with_kvcache has no rotary_cos"):
        fa3.flash_attn_with_kvcache(q, k, v, rotary_cos=torch.zeros(4, 4))
    with pytest.raises(NotImplementedError, match="no gradient of operands in eight bits"):
        fa3.flash_attn_func(q.requires_grad_(), k, v, q_descale=torch.ones(2, 2))


def test_its_kernels_take_less_time_than_those_of_the_second():
    def seconds(package: str) -> list[float]:
        def body() -> None:
            module = importlib.import_module(package)
            q = torch.empty(1, 8192, 16, 128, device="cuda", dtype=torch.bfloat16)
            ends = torch.tensor([0, 4096, 8192], device="cuda", dtype=torch.int32)
            module.flash_attn_varlen_func(q[0], q[0], q[0], ends, ends, 4096, 4096, causal=True)
            cache = torch.empty(64, 256, 2, 128, device="cuda", dtype=torch.bfloat16)
            table = torch.arange(64, device="cuda", dtype=torch.int32)[None]
            for length in (256, 8192):
                module.flash_attn_with_kvcache(
                    q[:, :1], cache, cache, cache_seqlens=torch.tensor([length], dtype=torch.int32).cuda(),
                    **{"page_table" if package != "flash_attn" else "block_table": table},
                )  # fmt: skip

        return [each.duration for each in operations_on_gpu(body) if "flash_attn" in each.name]

    with standing_in(["flash_attn"]):
        second = seconds("flash_attn")
    third = seconds("flash_attn_interface")
    assert third[0] < 0.8 * second[0]  # by their rates of matrix products
    assert third[1:] == second[1:]  # by the bytes that are live
    assert third[1] < third[2]


def test_values_on_a_gpu_are_those_of_the_host():
    q, k, v = (each.bfloat16() for each in operands(5, 4, 4, 2))
    (found,) = on_gpu(lambda: [fa3.flash_attn_func(q.cuda(), k.cuda(), v.cuda(), causal=True)])
    assert torch.equal(found, fa3.flash_attn_func(q, k, v, causal=True))
    assert math.isfinite(found.float().sum())


def test_shapes_without_data():
    seen = []

    def worker(rank: int) -> None:
        q = torch.empty(2, 3, 4, 8, device="cuda", dtype=torch.float8_e4m3fn)
        v = torch.empty(2, 3, 2, 16, device="cuda", dtype=torch.float8_e4m3fn)
        out, sums = fa3.flash_attn_func(q, q[:, :, :2], v, return_attn_probs=True)
        seen.append((out.shape, out.dtype, sums.shape))
        out, sums = fa3.flash_attn_combine(torch.empty(2, 1, 3, 4, 8).cuda(), torch.empty(2, 1, 3, 4).cuda())
        seen.append((out.shape, sums.shape))

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        assert not ctx.simulation.op_costs.unmodelled.operators
    assert seen == [((2, 3, 4, 16), torch.bfloat16, (2, 4, 3)), ((1, 3, 4, 8), (1, 3, 4))]


@pytest.mark.parametrize("third", [True, False])
def test_a_whole_step_compiles_to_a_kernel_each_way(third):
    """As the packages, whose kernels are operators to Dynamo: no break of the graph, and nothing read on the host."""
    ends = [0, 2, 6]
    make = torch.Generator().manual_seed(3)
    operand = torch.randn(6, 2, 8, generator=make)
    found = {}

    def step(q: Tensor, cut: Tensor) -> Tensor:
        return module.flash_attn_varlen_func(q, q * 2, q + 1, cut, cut, 4, 4, causal=True, window_size=(1, 0))

    def worker(rank: int) -> None:
        cut = torch.tensor(ends, dtype=torch.int32).cuda()
        for way in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
            q = operand.cuda().requires_grad_()
            way(q, cut).square().sum().backward()
            with torch.no_grad():
                found[way is step] = (q.grad.cpu(), way(q, cut).cpu())

    with standing_in(["flash_attn"]), kernbench.simulate("dgx_h100") as ctx:
        module = fa3 if third else importlib.import_module("flash_attn")
        ctx.multiprocessing.spawn(worker, nprocs=1)
        log = [each.name for each in ctx.simulation.engine.op_log.operations if "flash_attn" in each.name]
    assert len(log) == 6
    assert ["gradients" in each for each in log] == [False, True, False] * 2
    q = operand.double().requires_grad_()
    for begin, end in itertools.pairwise(ends):
        each = q[None, begin:end]
        defined(each, each * 2, each + 1, causal=True, window=(1, 0))[0].square().sum().backward()
    for gradient, _ in found.values():
        torch.testing.assert_close(gradient.double(), q.grad, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[True][1], found[False][1])
