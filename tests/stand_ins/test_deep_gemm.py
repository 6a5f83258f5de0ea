"""``deep_gemm``: products of eight bits by what their scales say, groups of rows, costs by the rows that are there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kernbench
from kernbench.stand_ins import standing_in

Tensor = torch.Tensor


def on_gpu(body: Any, *, data: bool = True, system: str = "dgx_h100") -> Any:
    """What ``body(deep_gemm)`` gives on a simulated GPU, on the host; without data, the products of the log."""
    found: list[Any] = []

    def worker(rank: int) -> None:
        import deep_gemm

        made = body(deep_gemm)
        found.extend(each.cpu() for each in made) if data else None

    with standing_in(["deep_gemm"]), kernbench.simulate(system, enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        log = [each for each in ctx.simulation.engine.op_log.operations if "deep_gemm::" in each.name]
    return found if data else log


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 99), m=st.integers(1, 9), n=st.sampled_from([8, 136]), k=st.sampled_from([128, 256, 200]),
    power=st.booleans(), added=st.booleans(), turned=st.booleans(), wide=st.booleans(),
)  # fmt: skip
def test_products(seed: int, m: int, n: int, k: int, power: bool, added: bool, turned: bool, wide: bool) -> None:
    x, w, c = random(seed, m, k), random(seed + 1, n, k), random(seed + 2, m, n)

    def body(deep_gemm: Any) -> list[Tensor]:
        d = torch.empty(m, n, device="cuda", dtype=torch.float32 if wide else torch.bfloat16)
        more = c.to(d.dtype).cuda() if added else None
        a, b = deep_gemm.per_token_cast_to_fp8(x.cuda(), power), deep_gemm.per_block_cast_to_fp8(w.cuda(), power)
        if turned:
            deep_gemm.fp8_gemm_nn(a, (b[0].t().contiguous(), b[1].t().contiguous()), d, more)
        else:
            deep_gemm.fp8_gemm_nt(a, b, d, more)
        exact = torch.empty_like(d)
        deep_gemm.bf16_gemm_nt(x.cuda(), w.cuda(), exact, more)
        return [d, exact, *a, *b]

    d, exact, a, of_a, b, of_b = on_gpu(body)
    left = a.double() * of_a.double().repeat_interleave(128, 1)[:, :k]
    right = b.double() * of_b.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    rounding = 1e-5 if wide else 5e-3
    assert apart(d, left @ right.t() + (c.double() if added else 0)) < rounding
    assert apart(exact, x.double() @ w.double().t() + (c.double() if added else 0)) < rounding
    assert apart(left, x.double()) < 0.05
    assert not power or torch.equal(of_a.log2(), of_a.log2().round())


@settings(max_examples=10, deadline=None)
@example(seed=66, groups=[2], narrow=True)
@given(seed=st.integers(0, 99), groups=st.lists(st.integers(-1, 2), min_size=1, max_size=8), narrow=st.booleans())
def test_groups_of_rows(seed: int, groups: list[int], narrow: bool) -> None:
    m, n, k = len(groups), 8, 128
    x, w = random(seed, m, k), random(seed + 1, 3, n, k)
    counts = [groups.count(each) for each in range(3)]

    def body(deep_gemm: Any) -> list[Tensor]:
        d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        a: Any = x.cuda()
        b: Any = w.cuda()
        masked, last = (
            x.expand(3, m, k).contiguous().cuda(),
            torch.full((3, m, n), 7.0, device="cuda", dtype=torch.bfloat16),
        )
        first: Any = masked
        if narrow:
            parts = [deep_gemm.per_block_cast_to_fp8(each, True) for each in w.cuda()]
            a, b = (
                deep_gemm.per_token_cast_to_fp8(a, True),
                tuple(torch.stack(each) for each in zip(*parts, strict=True)),
            )
            stored, scales = deep_gemm.per_token_cast_to_fp8(masked.view(-1, k), True)
            first = stored.view(3, m, k), scales.view(3, m, -1)
        place, live = torch.tensor(groups, dtype=torch.int32).cuda(), torch.tensor(counts, dtype=torch.int32).cuda()
        kind = "fp8" if narrow else "bf16"
        getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_contiguous")(a, b, d, place)
        getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_masked")(first, b, last, live, m)
        return [d, last]

    def wrong(found: Tensor, rows: Tensor, weight: Tensor) -> float:
        """Of the sum of the products' magnitudes: the products are rounded, and may cancel."""
        rows, weight = rows.double(), weight.double().t()
        return float((found.double() - rows @ weight).norm() / (rows.abs() @ weight.abs()).norm())

    d, last = on_gpu(body)
    bound = 0.04 if narrow else 4e-3
    for at, group in enumerate(groups):
        if group < 0:
            assert not d[at].any()
        else:
            assert wrong(d[at, None], x[at, None], w[group]) < bound
    for group, count in enumerate(counts):
        assert bool((last[group, count:] == 7).all())
        if count:
            assert wrong(last[group, :count], x[:count], w[group]) < bound


def test_exponents_in_whole_numbers() -> None:
    from kernbench.compiled_operators.deep_gemm import plain

    exponents = torch.tensor([[126, 127, 128, 130]], dtype=torch.uint8).view(torch.int32)
    stored = torch.ones(1, 512).to(torch.float8_e4m3fn)
    assert plain(stored, exponents)[0, ::128].tolist() == [0.5, 1.0, 2.0, 8.0]


def test_costs_by_the_rows_that_are_there() -> None:
    def body(deep_gemm: Any) -> list[Tensor]:
        a = torch.empty(4096, 7168, device="cuda", dtype=torch.float8_e4m3fn), torch.empty(4096, 56, device="cuda")
        b = torch.empty(4, 4096, 7168, device="cuda", dtype=torch.float8_e4m3fn), torch.empty(4, 32, 56, device="cuda")
        d = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
        for live in (4096, 1024):
            groups = torch.full((4096,), -1, dtype=torch.int32)
            groups[:live] = torch.arange(4).repeat_interleave(live // 4)
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, groups.cuda())
        return []

    whole, quarter = (each.end - each.start for each in on_gpu(body, data=False))
    flops = 2 * 4096 * 4096 * 7168
    assert 500e12 < flops / whole < 1979e12
    assert quarter < 0.6 * whole


def test_what_is_not_there_says_so() -> None:
    def body(deep_gemm: Any) -> list[Tensor]:
        x = torch.ones(1, 128, device="cuda", dtype=torch.bfloat16)
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous(x, x[None], x, x, use_psum_layout=True)
        return []

    with pytest.raises(Exception, match="no layout by sums"):
        on_gpu(body)
    with pytest.raises(Exception, match="the stand-in for deep_gemm has no fp8_mqa_logits"):
        on_gpu(lambda deep_gemm: deep_gemm.fp8_mqa_logits)


def test_layouts_have_a_module_of_their_own() -> None:
    def body(deep_gemm: Any) -> list[Tensor]:
        from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor, get_tma_aligned_size

        assert [get_tma_aligned_size(each, 4) for each in (4, 5)] == [4, 8]
        return [get_mn_major_tma_aligned_tensor(torch.arange(3.0, device="cuda"))]

    assert on_gpu(body)[0].tolist() == [0.0, 1.0, 2.0]
