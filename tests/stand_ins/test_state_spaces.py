"""The compiled modules of ``causal_conv1d`` and ``mamba_ssm``: values and gradients by definition, costs, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.compiled_operators import causal_conv1d, selective_scan
from tests.stand_ins.on_gpu import on_gpu, operations_on_gpu

Tensor = torch.Tensor
ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(scope="module", autouse=True)
def _defined() -> None:
    causal_conv1d.operators.define("causal_conv1d 1.7.0")
    selective_scan.operators.define("mamba_ssm 2.3.2")


def close(found: Tensor | None, expected: Tensor | None, rounding: float) -> None:
    """Within so many of the largest."""
    assert (found is None) == (expected is None)
    if found is not None and expected is not None and expected.numel():
        worst = (found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-3)
        assert worst <= rounding, worst


def random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# -- causal convolutions --------------------------------------------------------------------------------------------------


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor | None, before: Tensor | None, silu: bool
) -> Tensor:
    """Term by term."""
    batch, dim, length = x.shape
    width = weight.shape[1]
    rows = []
    for at in range(length):
        total = torch.zeros(batch, dim, dtype=x.dtype) if bias is None else bias.expand(batch, dim)
        for tap in range(width):
            place = at - width + 1 + tap
            if place >= 0:
                term, of = x[:, :, place], None if ids is None else ids[:, place]
            elif before is not None:
                term, of = before[:, :, width - 1 + place], None if ids is None else ids[:, 0]
            else:
                continue
            here = 1 if ids is None else (of == ids[:, at])[:, None]
            total = total + term * weight[:, tap] * here
        if ids is not None:
            total = total * (ids[:, at] >= 0)[:, None]
        rows.append(F.silu(total) if silu else total)
    return torch.stack(rows, -1)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99), batch=st.integers(1, 3), dim=st.sampled_from([1, 4, 6]), length=st.integers(1, 9),
    width=st.integers(2, 4), bias=st.booleans(), ids=st.booleans(), before=st.booleans(), silu=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)  # fmt: skip
def test_causal_convolutions(
    seed: int,
    batch: int,
    dim: int,
    length: int,
    width: int,
    bias: bool,
    ids: bool,
    before: bool,
    silu: bool,
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, dim, length), (dim, width), (dim,) if bias else None, (batch, dim, width - 1) if before else None]
    exact = [None if shape is None else random(generator, *shape).to(dtype).double() for shape in shapes]
    places = torch.randint(-1, 2, (batch, length), generator=generator).sort(-1).values.int() if ids else None
    grad = random(generator, batch, dim, length).to(dtype).double()
    leaves = [None if each is None else each.clone().requires_grad_() for each in exact]
    x, weight, more, earlier = leaves
    assert x is not None
    assert weight is not None
    expected = convolved(x, weight, more, places, earlier, silu)
    wanted = [each for each in leaves if each is not None]
    expected_grads = iter(torch.autograd.grad(expected, wanted, grad))

    def body() -> list[Tensor | None]:
        on = [None if each is None else each.to(dtype).cuda() for each in exact]
        seq = None if places is None else places.cuda()
        assert on[0] is not None
        assert on[1] is not None
        out, dx = torch.empty_like(on[0]), torch.empty_like(on[0])
        final = torch.empty(batch, dim, width - 1, device="cuda", dtype=dtype)
        dweight = torch.zeros_like(on[1], dtype=torch.float32)
        dbias = None if on[2] is None else torch.zeros_like(on[2], dtype=torch.float32)
        dbefore = None if on[3] is None else torch.empty_like(on[3])
        causal_conv1d.causal_conv1d_fwd(on[0], on[1], on[2], seq, on[3], out, final, silu)
        causal_conv1d.causal_conv1d_bwd(
            on[0], on[1], on[2], grad.to(dtype).cuda(), seq, on[3], None, dx, dweight, dbias, dbefore, silu
        )
        return [out, final, dx, dweight, dbias, dbefore]

    out, final, *grads = on_gpu(body)
    rounding = ROUNDING[dtype]
    close(out, expected.detach(), rounding)
    whole = x.detach() if earlier is None else torch.cat((earlier.detach(), x.detach()), -1)
    close(final, F.pad(whole, (width, 0))[..., -(width - 1) :], rounding)
    for each, leaf in zip(grads, leaves, strict=True):
        close(each, None if leaf is None else next(expected_grads), rounding)


def test_the_gradient_of_final_states_counts() -> None:
    def body() -> list[Tensor]:
        x, weight = torch.ones(1, 1, 3, device="cuda"), torch.ones(1, 4, device="cuda")
        dx, dweight = torch.empty_like(x), torch.zeros_like(weight)
        dfinal = torch.tensor([[[10.0, 20.0, 30.0]]]).cuda()
        causal_conv1d.causal_conv1d_bwd(
            x, weight, None, torch.zeros_like(x), None, None, dfinal, dx, dweight, None, None, False
        )
        return [dx]

    assert on_gpu(body)[0].flatten().tolist() == [10.0, 20.0, 30.0]


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 99), batch=st.integers(1, 3), fresh=st.integers(1, 4), room=st.integers(3, 6), ring=st.booleans(),
    indexed=st.booleans(), silu=st.booleans(),
)  # fmt: skip
def test_further_elements_of_kept_sequences(
    seed: int, batch: int, fresh: int, room: int, ring: bool, indexed: bool, silu: bool
) -> None:
    """As the convolution of all that has come."""
    if ring and fresh > room - 3:
        fresh = max(room - 3, 1) if room > 3 else 1
    generator = torch.Generator().manual_seed(seed)
    dim, width, seen = 4, 4, 7
    whole, weight, bias = (
        random(generator, batch, dim, seen + fresh),
        random(generator, dim, width),
        random(generator, dim),
    )
    slots = torch.randperm(batch + 2, generator=generator)[:batch] if indexed else torch.arange(batch)
    kept = torch.zeros(batch + 2 if indexed else batch, dim, room, dtype=torch.float64)
    for at in range(seen - room, seen):
        kept[slots, :, at % room if ring else at - seen + room] = whole[:, :, at]
    expected = convolved(whole, weight, bias, None, None, silu)[..., seen:]

    def body() -> list[Tensor]:
        state, x = kept.float().cuda(), whole[..., seen:].float().cuda()
        out = torch.empty_like(x)
        lengths = torch.full((batch,), seen, dtype=torch.int32).cuda() if ring else None
        at = slots.int().cuda() if indexed else None
        causal_conv1d.causal_conv1d_update(x, state, weight.float().cuda(), bias.float().cuda(), out, silu, lengths, at)
        return [out, state]

    out, state = on_gpu(body)
    close(out, expected, 2e-5)
    for at in range(seen + fresh - room, seen + fresh):
        place = at % room if ring else at - seen - fresh + room
        close(state[slots, :, place], whole[:, :, at], 2e-5)


# -- selective scans ------------------------------------------------------------------------------------------------------


def scanned(
    u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Any, z: Any, bias: Any, softplus: bool
) -> Tensor:
    """One state at a time."""
    delta = delta if bias is None else delta + bias[:, None]
    delta = F.softplus(delta) if softplus else delta
    batch, dim, length = u.shape
    channels = []
    for channel in range(dim):
        state = torch.zeros(batch, a.shape[1], dtype=u.dtype)
        places = []
        for at in range(length):
            into, out = (
                each[channel].expand(batch, -1) if each.dim() == 2 else each[:, channel * each.shape[1] // dim, :, at]
                for each in (b, c)
            )
            step = delta[:, channel, at, None]
            state = torch.exp(step * a[channel]) * state + step * into * u[:, channel, at, None]
            places.append((out * state).sum(-1) + (0 if d is None else d[channel] * u[:, channel, at]))
        channels.append(torch.stack(places, -1))
    made = torch.stack(channels, 1)
    return made if z is None else made * F.silu(z)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99), batch=st.integers(1, 2), groups=st.sampled_from([0, 1, 2]), length=st.integers(1, 6),
    states=st.integers(1, 4), skip=st.booleans(), gate=st.booleans(), bias=st.booleans(), softplus=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_selective_scans(
    seed: int, batch: int, groups: int, length: int, states: int, skip: bool, gate: bool, bias: bool, softplus: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    dim = 4
    of_b = (batch, groups, states, length) if groups else (dim, states)
    u, delta, b, c, z = (
        random(generator, *shape) for shape in ((batch, dim, length),) * 2 + (of_b,) * 2 + ((batch, dim, length),)
    )
    u, z = (each.to(dtype).double() for each in (u, z))
    delta = (delta if softplus else delta.abs()).to(dtype).double()
    b, c = (each.to(dtype).double() if groups else each.float().double() for each in (b, c))
    a = -random(generator, dim, states).abs().float().double()
    d, more = (random(generator, dim).abs().float().double() for _ in range(2))
    given = [u, delta, a, b, c, d if skip else None, z if gate else None, more if bias else None]
    leaves = [None if each is None else each.clone().requires_grad_() for each in given]
    expected = scanned(*leaves, softplus)  # type: ignore[arg-type]
    grad = random(generator, batch, dim, length).to(dtype).double()
    grads = iter(torch.autograd.grad(expected, [each for each in leaves if each is not None], grad))
    wanted = [None if each is None else next(grads) for each in leaves]
    kinds = [
        dtype,
        dtype,
        torch.float32,
        *([dtype if groups else torch.float32] * 2),
        torch.float32,
        dtype,
        torch.float32,
    ]

    def body() -> list[Tensor | None]:
        on = [None if each is None else each.to(kind).cuda() for each, kind in zip(given, kinds, strict=True)]
        out, kept, *gated = selective_scan.fwd(*on, softplus)  # type: ignore[arg-type]
        du, ddelta, da, db, dc, dd, dbias, *rest = selective_scan.bwd(
            *on,
            grad.to(dtype).cuda(),
            kept,
            out,
            None,
            softplus,
            gate,  # type: ignore[arg-type]
        )
        return [
            gated[0] if gated else out,
            rest[1] if gate else None,
            du,
            ddelta,
            da,
            db,
            dc,
            dd,
            rest[0] if gate else None,
            dbias,
        ]

    out, again, *found = on_gpu(body)
    rounding = ROUNDING[dtype]
    close(out, expected.detach(), rounding)
    if again is not None:
        close(again, expected.detach(), 2 * rounding)
    for each, gradient in zip(found, wanted, strict=True):
        close(each, gradient, 3 * rounding)


def test_costs_are_bytes_or_exponentials() -> None:
    def body() -> list[Tensor]:
        u = torch.empty(8, 4096, 2048, device="cuda", dtype=torch.bfloat16)
        x, out, weight = u, torch.empty_like(u), torch.empty(4096, 4, device="cuda", dtype=torch.bfloat16)
        causal_conv1d.causal_conv1d_fwd(x, weight, None, None, None, out, None, True)
        a = torch.empty(4096, 16, device="cuda")
        b = torch.empty(8, 1, 16, 2048, device="cuda", dtype=torch.bfloat16)
        selective_scan.fwd(u, u, a, b, b, None, None, None, True)
        return []

    log = operations_on_gpu(body)
    convolution = next(each for each in log if "causal_conv1d" in each.name)
    assert convolution.nbytes == 2 * 2 * 8 * 4096 * 2048 + 2 * 4 * 4096
    scan = next(each for each in log if "selective_scan" in each.name)
    exponentials = 22 * 8 * 4096 * 2048 * 16 / 66.9e12
    assert scan.end - scan.start == pytest.approx(exponentials, rel=0.15)


def test_what_does_not_take_complex_states_says_so() -> None:
    def body() -> list[Tensor]:
        u, a = torch.ones(1, 1, 1, device="cuda"), torch.ones(1, 1, device="cuda", dtype=torch.complex64)
        return selective_scan.fwd(u, u, a, torch.ones(1, 1, 1, 2, device="cuda"), torch.ones(1, 1, 1, 2, device="cuda"), None,
                                  None, None, False)  # fmt: skip

    with pytest.raises(Exception, match="take no complex A"):
        on_gpu(body)
