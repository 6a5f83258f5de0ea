"""The kernels of ``benches/kernels`` against torch's own operations, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernbench.benches.kernels.flash_attention import attention
from kernbench.benches.kernels.grouped_gemm import grouped_gemm
from kernbench.benches.kernels.layer_norm import layer_norm
from kernbench.benches.kernels.matmul import matmul, matmul_autotuned
from kernbench.benches.kernels.persistent_matmul import persistent_matmul
from kernbench.benches.kernels.softmax import softmax
from kernbench.benches.kernels.vector_add import add

RAW_BITS = pytest.mark.beyond_interpreter("bf16 is arithmetic on raw bits")
HALVES = [torch.float16, pytest.param(torch.bfloat16, marks=RAW_BITS)]


@pytest.mark.parametrize("n", [1, 100, 1024, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16])
def test_vector_add(n, dtype):
    x, y = (torch.randn(n) * 10).to(dtype), (torch.randn(n) * 10).to(dtype)
    assert torch.equal(add(x, y, block=256), x + y)


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (32, 128), (50, 300)])
@pytest.mark.parametrize("programs", [None, 1, 6])
def test_softmax(shape, programs):
    x = torch.randn(shape) * 5
    torch.testing.assert_close(softmax(x, programs), x.softmax(-1))


@pytest.mark.parametrize("programs", [None, 3])
def test_softmax_of_a_strided_view(programs):
    x = torch.randn(20, 100)[:, :60]
    torch.testing.assert_close(softmax(x, programs), x.softmax(-1))


@pytest.mark.parametrize("shape", [(64, 64, 64), (100, 70, 90), (1, 17, 5), (33, 200, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("activation", ["", "leaky_relu"])
def test_matmul(shape, dtype, activation):
    m, n, k = shape
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    c = matmul(a, b, tile=(32, 32, 32), group_m=2, activation=activation)
    expected = a.double() @ b.double()
    expected = F.leaky_relu(expected) if activation else expected
    torch.testing.assert_close(c.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("tile", [(16, 16, 16), (64, 32, 16), (128, 128, 64)])
def test_matmul_of_integers_is_exact_for_every_tile(tile):
    a, b = torch.randint(-8, 9, (150, 90)).float(), torch.randint(-8, 9, (90, 70)).float()
    assert torch.equal(matmul(a, b, tile=tile), a @ b)


def test_matmul_of_transposed_operands():
    a, b = torch.randn(50, 60).T, torch.randn(40, 50).T
    torch.testing.assert_close(matmul(a, b), a @ b, rtol=1e-5, atol=1e-4)


@pytest.mark.beyond_interpreter("no autotuning without a driver")
def test_matmul_with_autotuning():
    for m, n, k in [(64, 64, 64), (100, 30, 70)]:
        a, b = torch.randn(m, k), torch.randn(k, n)
        torch.testing.assert_close(matmul_autotuned(a, b), a @ b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 32), (20, 100), (33, 512)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_layer_norm_forward_and_backward(shape, dtype):
    columns = shape[1]
    x = (torch.randn(shape) * 2 + 1).to(dtype).requires_grad_()
    weight, bias = (torch.randn(columns).to(dtype).requires_grad_() for _ in range(2))
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    y = layer_norm(x, weight, bias)
    expected = F.layer_norm(wide[0], (columns,), wide[1], wide[2], 1e-5)
    dy = torch.randn(shape).to(dtype)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
    torch.testing.assert_close(y.double(), expected, **tolerance)
    gradients = torch.autograd.grad(y, (x, weight, bias), dy)
    for got, want in zip(gradients, torch.autograd.grad(expected, wide, dy.double()), strict=True):
        torch.testing.assert_close(got.double(), want, **tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [128, 100, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_attention_forward_and_backward(causal, length, dtype):
    q, k, v = (torch.randn(2, 2, length, 32).to(dtype).requires_grad_() for _ in range(3))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    out = attention(q, k, v, causal=causal, tile=(64, 32))
    expected = F.scaled_dot_product_attention(*wide, is_causal=causal)
    dout = torch.randn(out.shape).to(dtype)
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(out.double(), expected, **tolerance)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    for got, want in zip(gradients, torch.autograd.grad(expected, wide, dout.double()), strict=True):
        torch.testing.assert_close(got.double(), want, **tolerance)


@pytest.mark.parametrize("programs", [1, 5, 32])
def test_grouped_gemm(programs):
    sizes = [(64, 32, 96), (32, 64, 32), (96, 96, 96), (32, 32, 32)]
    pairs = [(torch.randint(-4, 5, (m, k)).half(), torch.randint(-4, 5, (k, n)).half()) for m, n, k in sizes]
    for c, (a, b) in zip(grouped_gemm(pairs, programs), pairs, strict=True):
        assert torch.equal(c.float(), a.float() @ b.float())


@pytest.mark.parametrize("descriptors", ["host", "device"])
@pytest.mark.parametrize("shape", [(64, 64, 64), (72, 56, 80)])
@pytest.mark.parametrize("programs", [1, 4])
def test_persistent_matmul(descriptors, shape, programs):
    m, n, k = shape
    a, b = torch.randint(-4, 5, (m, k)).half(), torch.randint(-4, 5, (n, k)).half()
    c = persistent_matmul(a, b, descriptors=descriptors, programs=programs)
    assert torch.equal(c.float(), a.float() @ b.float().T)
