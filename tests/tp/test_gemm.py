"""The gemm kernel against torch in double precision, and the model that chooses its tile."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernbench.errors import ConfigError
from kernbench.topology import load_device
from kernbench.tp import PartitionError, gemm
from kernbench.tp.kernels.activations import ACTIVATIONS
from kernbench.tp.kernels.gemm import activation_grad
from kernbench.tp.kernels.tiles import CANDIDATES, choose_tile, tile_seconds
from tests.tp.ranks import fixed

EPSILON = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
TORCH_ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


def assert_close(found: torch.Tensor, exact: torch.Tensor, inner: int = 1) -> None:
    """Within rounding of a sum of ``inner`` products of normal numbers, element by element."""
    tolerance = EPSILON[found.dtype]
    torch.testing.assert_close(found.double(), exact.double(), rtol=tolerance, atol=tolerance * inner**0.5)


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (16, 16, 16), (33, 50, 70), (17, 128, 1), (1, 300, 257), (129, 64, 65), (5, 1, 200), (200, 333, 96)],
)
def test_any_shape_and_dtype(shape, dtype):
    rows, inner, columns = shape
    a, b, bias = (
        fixed(rows, inner, dtype=dtype),
        fixed(inner, columns, seed=1, dtype=dtype),
        fixed(columns, dtype=dtype),
    )
    assert_close(gemm(a, b), a.double() @ b.double(), inner)
    assert_close(gemm(a, b, bias=bias), a.double() @ b.double() + bias.double(), inner)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_any_strides(transpose_a, transpose_b):
    a = fixed(70, 40).t() if transpose_a else fixed(40, 140)[:, ::2]
    b = fixed(24, 70, seed=1).t() if transpose_b else fixed(140, 24, seed=1)[::2]
    out = torch.full((40, 48), 7.0)
    gemm(a, b, out=out[:, ::2])
    assert_close(out[:, ::2], a.double() @ b.double(), 70)
    assert torch.equal(out[:, 1::2], torch.full((40, 24), 7.0))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_epilogue_and_its_derivative(name):
    a, b, bias = fixed(19, 30), fixed(30, 21, seed=1), fixed(21, seed=2)
    pre = torch.empty(19, 21)
    found = gemm(a, b, bias=bias, activation=name, pre_activation=pre)
    exact = (a.double() @ b.double() + bias.double()).requires_grad_()
    assert_close(pre, exact.detach(), 30)
    assert_close(found, TORCH_ACTIVATIONS[name](exact).detach(), 30)
    grad = fixed(19, 21, seed=3)
    (expected,) = torch.autograd.grad(TORCH_ACTIVATIONS[name](exact), exact, grad.double())
    assert_close(activation_grad(grad, pre, name), expected, 30)


def test_empty_products():
    assert gemm(torch.ones(0, 4), torch.ones(4, 3)).shape == (0, 3)
    assert torch.equal(gemm(torch.ones(2, 0), torch.ones(0, 3)), torch.zeros(2, 3))


def test_integers_are_exact():
    """Whole numbers below 2**24 have exact fp32 sums in any order."""
    a, b = torch.randint(-8, 8, (75, 129)).float(), torch.randint(-8, 8, (129, 33)).float()
    assert torch.equal(gemm(a, b), a @ b)


def test_splitting_the_columns_changes_nothing():
    """Concatenated parts of a product are the product, bit for bit: each element is the same sum."""
    a, b = fixed(37, 96), fixed(96, 64, seed=1)
    for parts in (2, 4, 8):
        assert torch.equal(torch.cat([gemm(a, piece) for piece in b.chunk(parts, 1)], 1), gemm(a, b))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (torch.ones(2, 3), torch.ones(4, 5), r"a \(2, 3\).*b \(4, 5\)"),
        (torch.ones(2, 3), torch.ones(3, 5).half(), "expected one dtype"),
        (torch.ones(2, 3).double(), torch.ones(3, 5).double(), "float64"),
    ],
)
def test_what_does_not_fit_is_refused(a, b, words):
    with pytest.raises(PartitionError, match=words):
        gemm(a, b)


def test_unknown_activation():
    with pytest.raises(ConfigError, match=r"'tanh'.*relu, gelu"):
        gemm(torch.ones(2, 3), torch.ones(3, 5), activation="tanh")


# -- tiles -----------------------------------------------------------------------------------------------------------

SHAPES = [(1, 1, 1), (16, 1024, 1024), (128, 128, 128), (1024, 512, 1024), (1024, 4096, 1024), (4096, 4096, 4096)]


@pytest.mark.parametrize("device", ["sip", "h100_sxm"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_chosen_tile_fits_and_none_is_faster(device, shape):
    spec = load_device(device)
    tile = choose_tile(*shape, torch.float16, spec)
    assert tile.stages * (tile.m + tile.n) * tile.k * 2 <= spec.pe.tcm_per_block
    assert tile.m * tile.n * 4 <= spec.pe.registers / 2
    best = min(tile_seconds(other, *shape, torch.float16, spec) for other in CANDIDATES)
    assert tile_seconds(tile, *shape, torch.float16, spec) == best


def test_large_products_take_large_tiles_and_small_ones_fill_the_device():
    spec = load_device("h100_sxm")
    large = choose_tile(4096, 4096, 4096, torch.float16, spec)
    small = choose_tile(256, 256, 1024, torch.float16, spec)
    assert large.m * large.n >= 128 * 128
    assert (256 // small.m) * (256 // small.n) >= 64  # of 132 PEs; one large tile would use 2 of them


def test_a_modelled_product_is_no_faster_than_the_peak():
    spec = load_device("h100_sxm")
    tile = choose_tile(8192, 8192, 8192, torch.float16, spec)
    peak = 2 * 8192**3 / spec.matrix_rate("fp16")
    assert peak <= tile_seconds(tile, 8192, 8192, 8192, torch.float16, spec) <= 2.5 * peak
