"""Everything around a kernel: grids, specialisation, defaults, heuristics, autotuning, hooks, warm-up, benchmarking."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
import triton.testing
from triton.runtime.errors import OutOfResources

pytestmark = pytest.mark.beyond_interpreter("has no launch machinery")


@triton.jit
def fill_kernel(out_ptr, value, n, BLOCK: tl.constexpr = 16, SCALE: tl.constexpr = 1):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, value * SCALE, mask=i < n)


@pytest.mark.parametrize("grid", [(4,), (4, 1, 1), [4], lambda meta: (triton.cdiv(50, meta["BLOCK"]),)])
def test_grids(grid):
    out = torch.zeros(50)
    fill_kernel[grid](out, 3.0, 50)
    assert (out == 3).all()


def test_default_and_keyword_arguments():
    out = torch.zeros(50)
    fill_kernel[(1,)](n=50, value=2.0, out_ptr=out, SCALE=3, BLOCK=64, num_warps=2)
    assert (out == 6).all()


@pytest.mark.parametrize("value", [0, 1, 2, 16, 2**31 - 1, 2**31, -1, 2**40, 1.5, True])
def test_arguments_are_specialised_by_value(value):
    """1 becomes a constant, multiples of 16 a hint, large integers int64: the value must be the same in all."""
    out = torch.zeros(5, dtype=torch.float64)
    fill_kernel[(1,)](out, value, 5)
    assert (out == float(value)).all()


def test_an_empty_grid_does_nothing():
    out = torch.zeros(4)
    fill_kernel[(0,)](out, 1.0, 4)
    assert (out == 0).all()


@triton.jit
def optional_kernel(x_ptr, bias_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + i)
    tl.store(out_ptr + i, x)


def test_none_is_a_constant():
    x, bias, out = torch.randn(8), torch.randn(8), torch.zeros(8)
    optional_kernel[(1,)](x, None, out, N=8)
    assert torch.equal(out, x)
    optional_kernel[(1,)](x, bias, out, N=8)
    assert torch.equal(out, x + bias)


@triton.jit
def tuple_kernel(pointers, sizes, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for k in tl.static_range(len(pointers)):
        total += tl.load(pointers[k] + i, mask=i < sizes[k], other=0.0)
    tl.store(out_ptr + i, total)


def test_tuples_of_arguments():
    xs, sizes, out = [torch.randn(8) for _ in range(3)], (8, 3, 1), torch.zeros(8)
    tuple_kernel[(1,)](tuple(xs), sizes, out, N=8)
    expected = torch.zeros(8)
    for x, size in zip(xs, sizes, strict=True):
        expected[:size] += x[:size]
    assert torch.equal(out, expected)


@triton.heuristics({"BLOCK": lambda args: 16, "EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def heuristic_kernel(out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out_ptr + i, 1)
    else:
        tl.store(out_ptr + i, 2, mask=i < n)


@pytest.mark.parametrize(("n", "expected"), [(32, 1), (20, 2)])
def test_heuristics(n, expected):
    out = torch.zeros(n, dtype=torch.int32)
    heuristic_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](out, n)
    assert (out == expected).all()


@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, num_warps=w) for b, w in [(16, 1), (32, 2), (64, 4)]],
    key=["n"],
    reset_to_zero=["out_ptr"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_accumulate_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


def test_autotuning_runs_the_chosen_configuration_once():
    x, out = torch.randn(100), torch.zeros(100)
    for repeat in range(1, 3):
        tuned_accumulate_kernel[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, out, 100)
        torch.testing.assert_close(out, x * repeat)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})], key=["n"], restore_value=["x_ptr"]
)
@triton.jit
def tuned_in_place_kernel(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def test_autotuning_in_place():
    x = torch.zeros(100)
    tuned_in_place_kernel[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, 100)
    assert (x == 1).all()


def test_warm_up_compiles_without_running():
    out = torch.zeros(50)
    compiled = fill_kernel.warmup(torch.float32, 1.0, 50, BLOCK=32, grid=(1,))
    fill_kernel.warmup(out, 1.0, 50, BLOCK=32, grid=(1,))
    assert (out == 0).all()
    assert compiled.asm["ttir"]


def test_launch_returns_the_compiled_kernel():
    compiled = fill_kernel[(1,)](torch.zeros(8), 1.0, 8)
    assert "tt.func" in str(compiled.asm["ttir"])
    assert compiled.metadata.num_warps == 4


def test_do_bench_returns_a_duration():
    out = torch.zeros(50)
    milliseconds = triton.testing.do_bench(lambda: fill_kernel[(4,)](out, 1.0, 50), warmup=1, rep=1)
    assert milliseconds > 0


def test_launch_hooks_see_the_kernel():
    seen = []
    hook = triton.knobs.runtime.launch_enter_hook

    def record(metadata):
        seen.append(metadata.get()["name"])

    hook.add(record)
    try:
        fill_kernel[(1,)](torch.zeros(8), 1.0, 8)
    finally:
        hook.remove(record)
    assert seen == ["fill_kernel"]


class Buffer:
    """Not a tensor: only what the launcher asks for."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.dtype = tensor, tensor.dtype

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()


def test_anything_with_an_address_is_a_pointer():
    out = torch.zeros(50)
    fill_kernel[(4,)](Buffer(out), 5.0, 50)
    assert (out == 5).all()


@triton.jit
def dtype_argument_kernel(x_ptr, out_ptr, KIND: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(KIND).to(tl.float32))


@pytest.mark.parametrize("kind", [tl.float16, tl.int8, tl.bfloat16])
def test_types_as_constants(kind):
    x, out = torch.tensor([1.7, -2.3, 100.9, 0.1]), torch.zeros(4)
    dtype_argument_kernel[(1,)](x, out, KIND=kind, N=4)
    assert torch.equal(
        out, x.to({"fp16": torch.float16, "int8": torch.int8, "bf16": torch.bfloat16}[kind.name]).float()
    )


SCALE = tl.constexpr(3)


@triton.jit
def global_constant_kernel(out_ptr):
    tl.store(out_ptr, SCALE * 7)


def test_global_constants():
    out = torch.zeros(1, dtype=torch.int32)
    global_constant_kernel[(1,)](out)
    assert out.item() == 21


def test_a_compiled_kernel_is_called_with_or_without_its_constants():
    out = torch.zeros(50)
    compiled = fill_kernel[(4,)](out, 3.0, 50)
    for arguments in [(out, 4.0, 50, 16, 1), (out, 5.0, 50)]:
        compiled[(4, 1, 1)](*arguments)
        assert (out == arguments[1]).all()
    compiled = fill_kernel[(1,)](out, 3.0, 1)  # n is 1: a constant too, but not by declaration
    compiled[(1, 1, 1)](out, 7.0, 1)
    assert out[0] == 7
    with pytest.raises(TypeError, match=r"fill_kernel takes 5 arguments \(out_ptr, value, n, BLOCK, SCALE\), or the 3"):
        compiled[(4, 1, 1)](out, 4.0)


@triton.jit
def tile_product_kernel(a_ptr, b_ptr, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j, k = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :], tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        a = tl.load(a_ptr + i * K + start + k[None, :])
        total += tl.dot(a, tl.load(b_ptr + (start + k[:, None]) * BN + j))
    tl.store(c_ptr + i * BN + j, total)


def test_too_much_shared_memory_is_refused_as_on_a_gpu():
    """cuda:90 has 227 KiB for a block; 4 stages of (128 x 128 + 128 x 256) halves take 384 KiB."""
    a, b, c = torch.ones(128, 256).half(), torch.ones(256, 256).half(), torch.zeros(128, 256)
    with pytest.raises(OutOfResources, match="shared memory, Required: 393216, Hardware limit: 232448"):
        tile_product_kernel[(1,)](a, b, c, 256, BM=128, BN=256, BK=128, num_stages=4)
    assert (c == 0).all()
    tile_product_kernel[(1,)](a, b, c, 256, BM=128, BN=256, BK=128, num_stages=2)
    assert (c == 256).all()


@triton.jit
def count_rows_kernel(out_ptr):
    tl.atomic_add(out_ptr, 1)


@pytest.mark.parametrize("grid", [(1, 65_536), (1, 1, 65_536), (2**31,)])
def test_a_grid_that_is_too_large_is_refused_as_on_a_gpu(grid):
    out = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(
        RuntimeError, match=r"Triton Error \[CUDA\]: invalid argument: kernel count_rows_kernel has a grid of"
    ):
        count_rows_kernel[grid](out)
    count_rows_kernel[(65_536,)](out)
    assert out.item() == 65_536


def test_autotuning_leaves_out_what_does_not_fit():
    fits = triton.Config({"BK": 32}, num_stages=2, num_warps=8)
    configs = [triton.Config({"BK": 128}, num_stages=4, num_warps=8), fits, triton.Config({"BK": 32}, num_warps=1)]
    tuned = triton.autotune(configs, key=["K"])(tile_product_kernel)
    a, b, c = torch.ones(128, 256).half(), torch.ones(256, 256).half(), torch.zeros(128, 256)
    tuned[(1,)](a, b, c, 256, BM=128, BN=256)
    assert (c == 256).all()
    assert tuned.best_config is fits  # one warp has no registers for 128 x 256 sums
    assert min(tuned.configs_timings[configs[0]]) == float("inf")
