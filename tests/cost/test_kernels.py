"""gemm_time, memory_bound_time, attention_time and estimate_op."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.cost import gemm_time, memory_bound_time
from kernbench.cost.attention import attention_time
from kernbench.cost.generations import generation_of
from kernbench.cost.memory_bound import NAMES, OPS, traffic_of
from kernbench.cost.op_costs import OpCosts
from kernbench.cost.op_estimates import estimate_op
from kernbench.cost.work import LEAST
from kernbench.errors import ConfigError
from kernbench.topology import load_device

DEVICES = ["a100_sxm", "h100_sxm", "h200", "b200", "gb200", "mi300x", "mi355x", "mi210"]


@pytest.mark.parametrize("name", DEVICES)
def test_no_product_beats_the_data_sheet(name):
    device = load_device(name)
    m, n, k = (np.array(dims) for dims in zip(*[(1, 4096, 4096), (512, 512, 512), (8192, 8192, 8192)], strict=True))
    estimate = gemm_time(name, m, n, k)
    assert np.all(estimate.seconds > 2.0 * m * n * k / device.matrix_rate("fp16"))
    assert np.all(estimate.seconds > 2 * (m * k + k * n) / device.hbm.bandwidth * (m * k + k * n > 1e8))
    assert np.all((estimate.low < estimate.seconds) & (estimate.seconds < estimate.high))


def test_blocks_come_in_waves():
    """132 blocks of 256 x 128 fill an H100 once; a few more take a second wave, and half as many hardly less time."""
    full = gemm_time("h100_sxm", 256 * 12, 128 * 11, 8192).seconds
    more = gemm_time("h100_sxm", 256 * 13, 128 * 11, 8192).seconds
    less = gemm_time("h100_sxm", 256 * 12 - 200, 128 * 11, 8192).seconds
    assert more > 1.2 * full
    assert less > 0.95 * full


def test_a_vector_times_a_matrix_takes_the_matrix_from_memory():
    seconds = gemm_time("h100_sxm", 1, 28672, 8192).seconds
    assert seconds == pytest.approx(2 * 28672 * 8192 / 2.9e12, rel=0.15)


def test_products_broadcast_and_agree_with_scalars():
    many = gemm_time("a100_sxm", np.array([[64], [4096]]), np.array([512, 1024]), 2048, batch=2)
    assert many.seconds.shape == (2, 2)
    assert many.seconds[1, 0] == gemm_time("a100_sxm", 4096, 512, 2048, batch=2).seconds


def test_narrower_operands_are_faster():
    times = [gemm_time("h100_sxm", 8192, 8192, 8192, dtype=dtype).seconds for dtype in ("fp8", "bf16", "tf32", "fp32")]
    assert times == sorted(times)


def test_a_device_may_state_what_it_sustains(tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text("extends: h100_sxm\ndevice: {name: slow, matrix_efficiency: 0.455}\n")
    ratio = gemm_time(path, 8192, 8192, 8192).seconds / gemm_time("h100_sxm", 8192, 8192, 8192).seconds
    assert ratio == pytest.approx(2, rel=0.1)  # half of the generation's 0.91


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": "h100"}, "no shipped device"),
        ({"device": 100}, "expected a shipped name"),
        ({"M": 0}, "at least 1"),
        ({"N": 2.5}, "whole numbers"),
        ({"K": "x"}, "M, N, K"),
        ({"batch": 0}, "batch"),
        ({"dtype": "float12"}, "unknown dtype"),
        ({"dtype": "int64"}, "no matrix product"),
    ],
)
def test_bad_products_are_refused(arguments, words):
    call = {"device": "h100_sxm", "M": 64, "N": 64, "K": 64} | arguments
    with pytest.raises(ConfigError, match=words):
        gemm_time(**call)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", sorted(OPS))
def test_memory_bound_kernels_start_and_then_follow_the_traffic(device, op):
    rows = [1, 64, 4096, 65536]
    times = [memory_bound_time(device, op, (count, 8192), dtype="float16") for count in rows]
    seconds = [estimate.seconds for estimate in times]
    assert seconds == sorted(seconds)
    assert times[-1].algbw < 1.2 * load_device(device).hbm.bandwidth
    assert all(estimate.low < estimate.seconds < estimate.high for estimate in times)


def test_a_large_copy_reaches_the_measured_bandwidth():
    estimate = memory_bound_time("h200", "copy", (1 << 30,), dtype="float32")
    assert estimate.seconds == pytest.approx(8 * (1 << 30) / 4.01e12, rel=0.01)  # BabelStream copy


def test_what_fits_in_the_cache_is_faster_unless_it_was_cleared():
    warm = memory_bound_time("a100_sxm", "add", (4096, 1024), dtype="float16")
    cold = memory_bound_time("a100_sxm", "add", (4096, 1024), dtype="float16", cold=True)
    assert warm.seconds < 0.7 * cold.seconds


def test_every_name_means_an_operation():
    assert {NAMES[name] for name in NAMES} <= set(OPS)
    assert traffic_of("vecadd", (1000,), "float32") == 12_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"op": "fft"}, "unknown memory-bound operation"),
        ({"shape": (-1, 2)}, ">= 0"),
        ({"dtype": "f12"}, "unknown dtype"),
    ],
)
def test_bad_memory_bound_input_is_refused(arguments, words):
    call = {"device": "h100_sxm", "op": "add", "shape": (8, 8), "dtype": "float16"} | arguments
    with pytest.raises(ConfigError, match=words):
        memory_bound_time(**call)


def test_attention_is_slower_than_the_peak_and_causal_halves_it():
    whole = attention_time("h100_sxm", 4, 32, 8192, 8192, 128)
    flops = 4 * 4 * 32 * 8192 * 8192 * 128
    assert 0.3 < flops / whole.seconds / 989e12 < 0.6
    assert attention_time("h100_sxm", 4, 32, 8192, 8192, 128, causal=True).seconds == pytest.approx(
        whole.seconds / 2, rel=0.02
    )
    with pytest.raises(ConfigError, match="at least 1"):
        attention_time("h100_sxm", 0, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("name", "shapes", "dims"),
    [
        ("aten::mm.default", [(64, 128), (128, 256)], (64, 256, 128, 1)),
        ("linear", [(2, 32, 128), (256, 128), (256,)], (64, 256, 128, 1)),
        ("aten::addmm", [(256,), (64, 128), (128, 256)], (64, 256, 128, 1)),
        ("bmm", [(8, 64, 128), (8, 128, 256)], (64, 256, 128, 8)),
        ("__matmul__", [(2, 32, 128), (128, 256)], (64, 256, 128, 1)),
        ("mv", [(64, 128), (128,)], (64, 1, 128, 1)),
    ],
)
def test_recorded_products_are_products(name, shapes, dims):
    m, n, k, batch = dims
    expected = gemm_time("h100_sxm", m, n, k, dtype="bfloat16", batch=batch)
    assert estimate_op(name, shapes, "bfloat16", "h100_sxm") == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [("aten::add_.Tensor", "add"), ("native_layer_norm", "layer_norm"), ("_softmax", "softmax"), ("gelu", "gelu")],
)
def test_other_recorded_operations_move_bytes(name, kind):
    shapes = [(4096, 1024), (4096, 1024)] if kind == "add" else [(4096, 1024)]
    expected = memory_bound_time("h100_sxm", kind, (4096, 1024), dtype="float16")
    assert estimate_op(name, shapes, "float16", "h100_sxm") == expected


def test_views_and_attention_are_recognised():
    assert estimate_op("aten::view", [(4, 4)], "float16", "h100_sxm").seconds == 0
    found = estimate_op("scaled_dot_product_attention", [(2, 8, 512, 64)] * 3, "float16", "h100_sxm")
    assert found == attention_time("h100_sxm", 2, 8, 512, 512, 64)


def test_wider_results_take_longer_to_store():
    narrow, wide = (gemm_time("h100_sxm", 16384, 16384, 64, out_dtype=out).seconds for out in ("bf16", "fp32"))
    assert 1.3 < wide / narrow < 2.1


F16, F32 = "float16", "float32"


def cost(name, inputs, outputs=(), device="h100_sxm", dtype=F16, **options):
    costs = OpCosts(load_device(device))
    return costs.of(name, tuple((it, dtype) for it in inputs), tuple((it, dtype) for it in outputs), **options)


def test_a_recorded_operation_occupies_its_stream_without_the_latency_of_its_launch():
    device = load_device("h100_sxm")
    found = cost("aten::mm", [(4096, 4096), (4096, 4096)], [(4096, 4096)])
    alone = gemm_time(device, 4096, 4096, 4096, dtype=F16)
    assert found.kind == "gemm"
    assert found.nbytes == 3 * 2 * 4096**2
    assert found.seconds == pytest.approx(alone.seconds - device.launch.latency + LEAST)
    assert found.low / found.seconds == pytest.approx(alone.low / alone.seconds)
    assert cost("add", [(4,), (4,)], [(4,)]).seconds == LEAST


def test_what_is_read_in_part_costs_what_is_read():
    table, rows = (1 << 20, 1024), (512, 1024)
    assert cost("embedding", [table, (512,)], [rows]).seconds < 1.2 * cost("clone", [rows], [rows]).seconds
    assert cost("sum", [table], [()]).seconds > 100 * cost("sum", [rows], [()]).seconds


def test_a_convolution_is_a_product_and_its_backward_two():
    """With channels first, which are copied: the image and the result, and once more for gradients."""
    image, weight, out = (8, 64, 56, 56), (128, 64, 3, 3), (8, 128, 56, 56)
    forward = estimate_op("convolution", [image, weight], F16, "h100_sxm", outputs=[out])
    product = gemm_time("h100_sxm", 8 * 56 * 56, 128, 64 * 9, dtype=F16)
    copies = [cost("clone", [shape], [shape]).seconds for shape in (image, out)]
    assert forward.seconds == pytest.approx(product.seconds + sum(copies), rel=0.25)
    backward = estimate_op("convolution_backward", [out, image, weight], F16, "h100_sxm", outputs=[image, weight])
    assert backward.seconds == pytest.approx(2 * forward.seconds, rel=0.25)


def test_attention_knows_its_gradients_and_what_it_may_skip():
    heads = (2, 8, 4096, 64)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    forward, causal = (estimate_op(name, [heads] * 3, F16, "h100_sxm", causal=skips) for skips in (False, True))
    backward = estimate_op(f"{name}_backward", [heads] * 5, F16, "h100_sxm")
    shares = generation_of(load_device("h100_sxm")).attention["flash"]
    assert backward.seconds == pytest.approx(2.5 * forward.seconds * shares[0] / shares[1], rel=0.03)
    assert causal.seconds < 0.7 * forward.seconds


def test_a_list_of_tensors_is_one_kernel_over_all_of_them():
    tensors = [(1 << 20,)] * 64
    found = estimate_op("_foreach_add_", tensors, F32, "h100_sxm", outputs=tensors)
    moved = 2 * 4 * 64 * (1 << 20)
    assert found.seconds == pytest.approx(moved / load_device("h100_sxm").hbm_copy_bandwidth, rel=0.05)


@pytest.mark.parametrize("dtype", ["bool", "int64", "complex64", "float8_e4m3fn", "float64"])
def test_any_dtype_has_a_cost(dtype):
    for name, shapes in (("mul", [(1 << 20,)] * 2), ("mm", [(256, 256)] * 2)):
        assert cost(name, shapes, dtype=dtype).seconds > 0


def test_a_device_without_a_cache_takes_operands_from_its_memory():
    sip = load_device("sip")
    assert sip.l2 is None
    peak = 2 * 8192**3 / sip.matrix_rate("fp16")
    assert peak < gemm_time(sip, 8192, 8192, 8192, dtype=F16).seconds < 2 * peak
