"""Products as a library's operator states them: what they cost is what the models of products say."""

from __future__ import annotations

import pytest

from kernbench.cost.attention import attention_time
from kernbench.cost.devices import resolve_device
from kernbench.cost.gemm import gemm_time
from kernbench.cost.grouped import grouped_gemm_time
from kernbench.cost.matrix_work import MatrixWork
from kernbench.cost.ragged_attention import RaggedAttention
from kernbench.cost.work import Cost

DEVICE = resolve_device("h100_sxm")


def on_stream(estimate):
    return Cost.on_stream(estimate, DEVICE, kind="gemm", nbytes=0).seconds


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "tf32"])
def test_one_product_is_priced_as_the_model_says(dtype):
    work = MatrixWork(((4096, 1024, 2048),), dtype, "fp32", accumulate=True)
    expected = gemm_time(DEVICE, 4096, 1024, 2048, dtype=dtype, out_dtype="fp32", accumulate=True)
    assert work.cost(DEVICE).seconds == pytest.approx(on_stream(expected))
    assert work.flops == 2 * 4096 * 1024 * 2048


def test_bytes_of_a_product():
    work = MatrixWork(((4, 6, 8),), "bf16", "fp32")
    assert work.nbytes == 2 * (4 * 8 + 8 * 6) + 4 * 4 * 6
    assert MatrixWork(((4, 6, 8),), "bf16", "fp32", accumulate=True).nbytes == work.nbytes + 4 * 4 * 6


def test_sums_that_are_kept_in_32_bits_take_longer():
    plain, exact = (
        MatrixWork(((8192, 8192, 8192),), "fp8", "bf16", exact=each).cost(DEVICE).seconds for each in (False, True)
    )
    assert 1.1 * plain < exact < 1.2 * plain


@pytest.mark.parametrize("device", ["h100_sxm", "a100_sxm"])
def test_packed_operands_are_packed_on_their_way_through_caches(device):
    """Few rows with a weight of half or a quarter of the bytes: near the ideal (Marlin, figure 1)."""
    spec = resolve_device(device)
    for rows in (1, 16):
        whole, half, quarter = (
            MatrixWork(((rows, 28672, 8192),), "fp16", "fp16", stored=share).cost(spec).seconds
            for share in (1.0, 0.5, 0.25)
        )
        assert 1.8 < whole / half < 2
        assert 3 < whole / quarter < 4


def test_packed_operands_multiply_at_the_rate_of_the_format():
    plain, packed = (
        MatrixWork(((8192, 8192, 8192),), "bf16", "bf16", stored=share).cost(DEVICE) for share in (1.0, 0.25)
    )
    assert packed.seconds == pytest.approx(plain.seconds, rel=0.02)


def test_groups():
    work = MatrixWork(((512, 1024, 2048),) * 4, "bf16", "bf16", grouped=True, issue=1e-3)
    expected = grouped_gemm_time(DEVICE, 4, 512, 1024, 2048, dtype="bf16", out_dtype="bf16", issue=1e-3)
    assert work.cost(DEVICE).seconds == pytest.approx(on_stream(expected))
    assert MatrixWork(((0, 4, 4),), "bf16", "bf16", grouped=True).cost(DEVICE).seconds == 0


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("values", [None, 64])
def test_attention_of_one_length_with_gradients_and_widths_of_values(gradient, values):
    work = RaggedAttention(((2048, 2048),) * 2, 16, 4, 128, "bf16", True, None, "cudnn", gradient, values)
    expected = attention_time(
        DEVICE,
        2,
        16,
        2048,
        2048,
        128,
        kv_heads=4,
        causal=True,
        dtype="bf16",
        gradient=gradient,
        variant="cudnn",
        value_dim=values,
    )
    assert work.cost(DEVICE).seconds == pytest.approx(on_stream(expected), rel=1e-6)
