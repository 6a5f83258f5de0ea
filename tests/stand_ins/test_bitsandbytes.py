"""The kernels of ``bitsandbytes`` by definition: the nearest of a table's values, products, steps of optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.compiled_operators.bitsandbytes import extension, formats, kernels, optimizers
from tests.stand_ins.on_gpu import on_gpu, operations_on_gpu

Tensor = torch.Tensor
FORMATS = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@pytest.fixture(scope="module", autouse=True)
def _defined() -> None:
    extension.operators.define("bitsandbytes 0.50.2")


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def nearest(numbers: Tensor, table: Tensor, size: int) -> Tensor:
    """Each number, over its block's largest magnitude, as the value of a table that is nearest, and back; float64."""
    flat, made = numbers.double().reshape(-1), []
    for begin in range(0, flat.numel(), size):
        block = flat[begin : begin + size]
        largest = block.abs().max()
        distances = (block[:, None] / largest.clamp(min=1e-300) - table.double()).abs()
        made.append(table.double()[distances.argmin(-1)] * largest)
    return torch.cat(made).view(numbers.shape)


def as_near(found: Tensor, numbers: Tensor, expected: Tensor, rounding: float) -> None:
    """As far from the numbers as the nearest values are; between two that are equally far either will do."""
    scale = float(numbers.double().abs().max()) + 1e-30
    apart = (found.double() - numbers.double()).abs() - (expected - numbers.double()).abs()
    assert float(apart.max()) <= rounding * scale


# NormalFloat of four bits, as the paper prints it; FP4: exponents of two bits, one more, a sign, over the largest
NF4 = [
    -1.0,
    -0.6962,
    -0.5251,
    -0.3949,
    -0.2844,
    -0.1848,
    -0.0911,
    0.0,
    0.0796,
    0.1609,
    0.2461,
    0.3379,
    0.4407,
    0.5626,
    0.723,
    1.0,
]
FP4 = sorted({sign * each / 12 for sign in (1, -1) for each in (0, 0.0625, 2, 3, 4, 6, 8, 12)})


def test_tables() -> None:
    assert formats.table_of("nf4").tolist() == pytest.approx(NF4, abs=6e-5)
    assert sorted({*formats.table_of("fp4").tolist()}) == pytest.approx(FP4)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 99), count=st.integers(1, 200), size=st.sampled_from([32, 64, 128]),
    kind=st.sampled_from(["nf4", "fp4"]), dtype=FORMATS, storage=st.sampled_from([torch.uint8, torch.bfloat16]),
)  # fmt: skip
def test_four_bits(seed: int, count: int, size: int, kind: str, dtype: torch.dtype, storage: torch.dtype) -> None:
    count += -count % 4 if storage is not torch.uint8 else 0
    numbers = random(seed, count).to(dtype)

    def body() -> list[Tensor]:
        stored, scales = kernels.quantize_4bit(numbers.cuda(), size, kind, storage)
        back = torch.empty(count, device="cuda", dtype=torch.float32)
        kernels.dequantize_4bit_into(stored, scales, size, kind, torch.float32, back)
        return [stored, scales, back]

    stored, scales, back = on_gpu(body)
    assert stored.dtype is storage
    assert stored.shape == ((count + 1) // (2 * storage.itemsize), 1)
    assert scales.shape == (-(-count // size),)
    as_near(back, numbers, nearest(numbers, formats.table_of(kind), size), 1e-6)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), count=st.integers(1, 300), size=st.sampled_from([64, 256]), dtype=FORMATS)
def test_eight_bits(seed: int, count: int, size: int, dtype: torch.dtype) -> None:
    numbers, table = random(seed, count).to(dtype), random(seed + 1, 256).sort().values.clamp(-1, 1)

    def body() -> list[Tensor]:
        stored, scales = kernels.quantize_blockwise(numbers.cuda(), table.cuda(), size)
        back = torch.empty(count, device="cuda", dtype=torch.float32)
        kernels.dequantize_blockwise_into(stored, scales, table.cuda(), size, torch.float32, back)
        return [stored, back]

    stored, back = on_gpu(body)
    assert stored.dtype is torch.uint8
    as_near(back, numbers, nearest(numbers, table, size), 1e-6)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 99), rows=st.integers(1, 5), out=st.sampled_from([3, 8]), kind=st.sampled_from(["nf4", "fp4"]),
    bias=st.booleans(), nested=st.booleans(), dtype=FORMATS,
)  # fmt: skip
def test_products_with_weights_of_four_bits(
    seed: int, rows: int, out: int, kind: str, bias: bool, nested: bool, dtype: torch.dtype
) -> None:
    x, weight, more = random(seed, rows, 64).to(dtype), random(seed + 1, out, 64), random(seed + 2, out).to(dtype)
    code = torch.linspace(-1, 1, 256)

    def body() -> list[Tensor]:
        stored, scales = kernels.quantize_4bit(weight.cuda(), 64, kind, torch.uint8)
        small, inner, offset = None, scales, None
        if nested:
            offset = scales.mean()
            small, inner = kernels.quantize_blockwise(scales - offset, code.cuda(), 256)
        made = kernels.gemm_4bit(
            x.cuda(),
            stored,
            (out, 64),
            inner,
            64,
            kind,
            more.cuda() if bias else None,
            small,
            code.cuda() if nested else None,
            offset,
        )
        alone = torch.empty(1, out, device="cuda", dtype=dtype)
        kernels.gemv_4bit_into(x[:1].cuda(), stored, (out, 64), scales, formats.table_of(kind).cuda(), 64, alone)
        return [made, alone]

    made, alone = on_gpu(body)
    plain = nearest(weight, formats.table_of(kind), 64)
    expected = x.double() @ plain.t()
    rounding = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    bound = rounding * float(expected.abs().max()) + (0.2 if nested else 0)
    assert float((alone.double() - expected[:1]).abs().max()) <= rounding * float(expected.abs().max())
    assert float((made.double() - expected - (more.double() if bias else 0)).abs().max()) <= bound + rounding * 3 * bias


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 99), rows=st.integers(2, 5), threshold=st.sampled_from([0.0, 1.5, 6.0]), bias=st.booleans())
def test_eight_bits_of_int8(seed: int, rows: int, threshold: float, bias: bool) -> None:
    x, weight, more = random(seed, rows, 32).half(), random(seed + 1, 8, 32).half(), random(seed + 2, 8).half()

    def body() -> list[Tensor | None]:
        a, scales, columns = kernels.int8_vectorwise_quant(x.cuda(), threshold)
        b, of_weight, _ = kernels.int8_vectorwise_quant(weight.cuda())
        product = kernels.int8_product_into(a, b, torch.empty(rows, 8, device="cuda", dtype=torch.int32))
        return [
            product,
            kernels.int8_mm_dequant(product, scales, of_weight, None, more.cuda() if bias else None),
            a,
            b,
            columns,
        ]

    product, made, a, b, columns = on_gpu(body)
    assert torch.equal(product.long(), a.long() @ b.long().t())
    far = (x.abs() >= threshold).any(0) if threshold else torch.zeros(32, dtype=torch.bool)
    assert columns is None or columns.tolist() == far.nonzero().flatten().tolist()
    rest = x.double() * ~far
    error = float((made.double() - rest @ weight.double().t() - (more.double() if bias else 0)).abs().max())
    assert error <= 32 * 4 * 4 / 127 / 4


NAMES = ["adam", "momentum", "rmsprop", "adagrad", "lion"]


def classical(
    name: str, p: Tensor, g: Tensor, one: Tensor, two: Tensor, t: int, lr: float, b1: float, b2: float, wd: float
) -> Any:
    """Steps as papers have them, with momentum and second moments that are corrected; float64."""
    eps = 1e-8
    if name == "adam":
        one, two = b1 * one + (1 - b1) * g, b2 * two + (1 - b2) * g * g
        return p * (1 - lr * wd) - lr * (one / (1 - b1**t)) / ((two / (1 - b2**t)).sqrt() + eps), one, two
    if name == "lion":
        return p * (1 - lr * wd) - lr * (b1 * one + (1 - b1) * g).sign(), b2 * one + (1 - b2) * g, two
    g = g + wd * p
    if name == "momentum":
        one = g if t == 1 else b1 * one + g
        return p - lr * one, one, two
    one = b1 * one + (1 - b1) * g * g if name == "rmsprop" else one + g * g
    return p - lr * g / (one.sqrt() + eps), one, two


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 99), name=st.sampled_from(NAMES), decay=st.sampled_from([0.0, 0.1]), step=st.integers(1, 4))
def test_steps_of_optimizers(seed: int, name: str, decay: float, step: int) -> None:
    """In 32 bits exactly; in eight by what the states that are stored stand for."""
    p, g, one, two = (random(seed + at, 300) for at in range(4))
    one, two = (one.abs() if name in ("rmsprop", "adagrad") else one), two.abs()
    table, positive = torch.linspace(-1, 1, 256), torch.linspace(0, 1, 256)
    lr, b1, b2 = 1e-2, 0.9, 0.99

    def body() -> list[Tensor]:
        exact = [each.cuda() for each in (p, one, two)]
        optimizers.update_32bit(
            name, g.cuda(), exact[0], exact[1], exact[2], None, 0.0, 0.0, b1, b2, 0.0, 0.0, 1e-8, decay, step, lr, 1.0
        )
        small, scales = kernels.quantize_blockwise(one.cuda(), table.cuda(), 256)
        other, more = kernels.quantize_blockwise(two.cuda(), positive.cuda(), 256)
        parameter, first, second = p.cuda(), torch.empty(300, device="cuda"), torch.empty(300, device="cuda")
        kernels.dequantize_blockwise_into(small, scales, table.cuda(), 256, torch.float32, first)
        kernels.dequantize_blockwise_into(other, more, positive.cuda(), 256, torch.float32, second)
        optimizers.update_8bit(
            name, g.cuda(), parameter, small, other, b1, b2, 0.0, 0.0, 1e-8, step, lr, table.cuda(), positive.cuda(), scales,
            more, decay, 1.0,
        )  # fmt: skip
        after = torch.empty(300, device="cuda")
        kernels.dequantize_blockwise_into(small, scales, table.cuda(), 256, torch.float32, after)
        return [*exact, parameter, first, second, after]

    *exact, parameter, first, second, after = on_gpu(body)
    expected = classical(name, *(each.double() for each in (p, g, one, two)), step, lr, b1, b2, decay)
    for found, wanted in zip(exact, expected, strict=True):
        assert torch.allclose(found.double(), wanted, rtol=1e-4, atol=1e-5)
    wanted, kept, _ = classical(name, *(each.double() for each in (p, g, first, second)), step, lr, b1, b2, decay)
    assert torch.allclose(parameter.double(), wanted, rtol=1e-3, atol=1e-4)
    assert float((after.double() - kept).abs().max()) <= float(kept.abs().max()) / 255 * 1.01 + 1e-6


def test_what_is_not_there_says_so() -> None:
    def body() -> list[Tensor]:
        p = torch.ones(3, device="cuda")
        optimizers.update_32bit("ademamix", p, p, p, p, None, 0.0, 0.0, 0.9, 0.9, 0.9, 0.1, 1e-8, 0.0, 1, 1e-3, 1.0)
        return []

    with pytest.raises(Exception, match="no optimizer ademamix: there are adam, lamb, momentum"):
        on_gpu(body)


def test_costs() -> None:
    def body() -> list[Tensor]:
        x = torch.empty(16, 4096, device="cuda", dtype=torch.bfloat16)
        weight = torch.empty(4096 * 4096 // 2, 1, device="cuda", dtype=torch.uint8)
        scales = torch.empty(4096 * 4096 // 64, device="cuda")
        kernels.gemm_4bit(x, weight, (4096, 4096), scales, 64, "nf4")
        a, b = (torch.empty(4096, 4096, device="cuda", dtype=torch.int8) for _ in range(2))
        kernels.int8_product_into(a, b, torch.empty(4096, 4096, device="cuda", dtype=torch.int32))
        p = torch.empty(1 << 20, device="cuda", dtype=torch.bfloat16)
        state, table = p.to(torch.uint8), torch.empty(256, device="cuda")
        blocks = torch.empty(1 << 12, device="cuda")
        optimizers.update_8bit(
            "adam", p, p, state, state, 0.9, 0.9, 0.0, 0.0, 1e-8, 1, 1e-3, table, table, blocks, blocks, 0.0, 1.0
        )
        return []

    log = {each.name.rpartition("::")[2].partition(".")[0]: each for each in operations_on_gpu(body)}
    assert log["product"].nbytes == 4096 * 4096 // 2 + 4 * 4096 * 4096 // 64 + 2 * 2 * 16 * 4096
    assert log["int8_product"].nbytes == 2 * 4096**2 + 4 * 4096**2
    assert 2 * 4096**3 / (log["int8_product"].end - log["int8_product"].start) < 1979e12  # the H100's peak
    assert log["step_in_8_bits"].nbytes == (1 << 20) * (3 * 2 + 4) + 4 * 4 * (1 << 12)
