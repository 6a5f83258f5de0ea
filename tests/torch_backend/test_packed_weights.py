"""Weights that a GPU packs: products with them are those with what they were packed from."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured

import kernbench

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemiStructuredTensor")


@pytest.mark.parametrize("tiles", [2, 4, 8])
def test_four_bits(tiles):
    torch.manual_seed(tiles)
    elements = torch.randint(0, 16, (16, 256))
    x = torch.randn(3, 256, dtype=torch.bfloat16)
    scales = torch.rand(256 // 64, 16, 2, dtype=torch.bfloat16)
    scale, zero = (each.t().repeat_interleave(64, dim=1) for each in scales.unbind(-1))
    expected = (x.float() @ ((elements.bfloat16() - 8) * scale + zero).float().t()).bfloat16()
    with kernbench.simulated_gpu("dgx_h100"):
        bytes_of = (elements[:, ::2] << 4 | elements[:, 1::2]).to(torch.uint8).cuda()
        packed = aten._convert_weight_to_int4pack(bytes_of, tiles)
        assert packed.shape == (2, 256 // (16 * tiles), 32, tiles // 2)
        assert packed.dtype is torch.int32
        found = aten._weight_int4pack_mm(x.cuda(), packed, 64, scales.cuda())
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), expected)


def test_a_weight_of_no_whole_tiles_is_refused():
    with (
        kernbench.simulated_gpu("dgx_h100"),
        pytest.raises(RuntimeError, match="no whole number of tiles of 8 x 128"),
    ):
        aten._convert_weight_to_int4pack(torch.zeros(16, 60, dtype=torch.uint8, device="cuda"), 8)


def kept(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """A matrix of which two of every four elements are zeros, anywhere."""
    places = torch.rand(rows, columns // 4, 4).argsort(dim=-1) < 2
    values = torch.randint(-8, 8, (rows, columns)).to(dtype)
    return values * places.view(rows, columns)


@pytest.mark.parametrize("cutlass", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_two_of_four(cutlass, dtype, monkeypatch):
    monkeypatch.setattr(SparseSemiStructuredTensor, "_FORCE_CUTLASS", cutlass)
    torch.manual_seed(0)
    weight, x, bias = kept(128, 64, dtype), torch.randint(-4, 4, (64, 32)).to(dtype), torch.ones(128, dtype=dtype)
    with kernbench.simulated_gpu("dgx_h100"):
        packed = to_sparse_semi_structured(weight.cuda())
        assert torch.equal(torch.mm(packed, x.cuda()).cpu().float(), weight.float() @ x.float())
        assert torch.equal(packed.to_dense().cpu(), weight)
        layer = nn.Linear(64, 128, dtype=dtype, device="cuda")
        layer.weight, layer.bias = nn.Parameter(packed), nn.Parameter(bias.cuda())
        found = layer(x.t().cuda())
        torch.testing.assert_close(found.detach().cpu().float(), x.t().float() @ weight.t().float() + 1)


def test_eight_bits_are_added_up_in_whole_numbers(monkeypatch):
    monkeypatch.setattr(SparseSemiStructuredTensor, "_FORCE_CUTLASS", True)
    weight, x = kept(128, 128, torch.int8), torch.randint(-8, 8, (128, 128), dtype=torch.int8)
    with kernbench.simulated_gpu("dgx_h100"):
        found = torch.mm(to_sparse_semi_structured(weight.cuda()), x.cuda().t().contiguous().t())
        assert torch.equal(found.cpu().int(), weight.int() @ x.int())


def test_a_sparse_product_is_quicker_than_the_dense_one():
    def took(sparse: bool) -> float:
        with kernbench.simulated_gpu("dgx_h100", enable_data=False) as ctx:
            weight, x = (torch.empty(8192, 8192, dtype=torch.float16, device="cuda") for _ in range(2))
            given = torch.empty(8192 * 8192 * 9 // 16, dtype=torch.float16, device="cuda") if sparse else weight
            torch.cuda.synchronize()
            before = ctx.now()
            made = torch._cslt_sparse_mm(given, x) if sparse else torch.mm(given, x)
            torch.cuda.synchronize()
            assert made.shape == (8192, 8192)
            return ctx.now() - before

    assert 1.6 < took(False) / took(True) < 2.1
