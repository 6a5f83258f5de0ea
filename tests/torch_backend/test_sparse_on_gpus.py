"""Sparse tensors of simulated GPUs: they and what they consist of are on the GPU, in every layout."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import kernbench


def _parts(rank: int) -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]], device="cuda")
    coo = dense.to_sparse()
    compressed = [
        dense.to_sparse_csr(),
        dense.to_sparse_csc(),
        dense.to_sparse_bsr((1, 1)),
        dense.to_sparse_bsc((1, 1)),
    ]
    assert all(each.is_cuda and each.values().is_cuda and each.to_dense().is_cuda for each in (coo, *compressed))
    assert coo.indices().is_cuda
    assert coo._values().is_cuda
    assert compressed[0].crow_indices().is_cuda
    assert compressed[1].row_indices().is_cuda
    assert torch.sparse.mm(coo, dense).tolist() == [[6.0, 0.0], [0.0, 6.0]]
    made = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), device="cuda")
    assert made.is_cuda
    assert made.coalesce().values().tolist() == [3.0]
    assert not torch.eye(2).to_sparse().values().is_cuda
    assert not coo.cpu().values().is_cuda


def _gradients(rank: int) -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    table = nn.Embedding(10, 4, sparse=True).cuda()
    table(torch.tensor([1, 2, 1], device="cuda")).sum().backward()
    gradient = table.weight.grad
    assert gradient.is_sparse
    assert gradient.is_cuda
    assert gradient._values().is_cuda
    torch.optim.SparseAdam(table.parameters(), lr=0.1).step()
    with pytest.raises(RuntimeError, match="NCCL does not support all_reduce with sparse tensors"):
        dist.all_reduce(gradient)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(("body", "ranks"), [(_parts, 1), (_gradients, 2)], ids=["parts", "gradients"])
def test_sparse_tensors(body, ranks) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=ranks)


def _exchanged(rank: int) -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    for take in (torch.from_dlpack, torch.utils.dlpack.from_dlpack):
        taken = take(x.detach())
        taken.add_(1)
        assert taken.is_cuda
    assert x.tolist() == [3.0, 3.0]
    copy = torch.from_dlpack(x.detach(), copy=True)
    assert copy.data_ptr() != x.data_ptr()
    assert not torch.from_dlpack(x.detach(), device="cpu").is_cuda
    assert not torch.from_dlpack(torch.ones(2)).is_cuda


def test_tensors_that_libraries_exchange_stay_where_they_are() -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_exchanged, nprocs=1)
