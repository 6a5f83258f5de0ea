"""Sparse tensors of simulated GPUs: they and what they consist of are on the GPU, in every layout."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import kernbench
from kernbench.trace.notes import notes_of
from kernbench.trace.rank_times import rank_times


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


def _steps(make):
    def body(rank: int) -> None:
        tables = nn.ModuleList(
            [nn.Embedding(5000, 16, sparse=True), nn.EmbeddingBag(5000, 16, sparse=True, mode="sum")]
        ).cuda()
        chosen = torch.arange(256, device="cuda")  # all different, as is assumed where they are not known
        optimizer = make(tables.parameters())
        for _ in range(2):
            (tables[0](chosen).sum() + tables[1](chosen.view(64, 4)).sum()).backward()
            assert [each.grad.layout for each in tables.parameters()] == [torch.sparse_coo] * 2
            assert [each.grad._nnz() for each in tables.parameters()] == [256] * 2
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    return body


def _run(body, data: bool):
    found = []
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(lambda rank: found.append(body(rank)), nprocs=1)
    return found[0], ctx


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.SparseAdam(list(weights)),
        lambda weights: torch.optim.Adagrad(weights),
        lambda weights: torch.optim.SGD(weights, lr=0.1),
    ],
    ids=["SparseAdam", "Adagrad", "SGD"],
)
def test_sparse_gradients_take_as_much_without_data(make) -> None:
    (memory, with_data), (hollow_memory, without) = (_run(_steps(make), data) for data in (True, False))
    assert memory == hollow_memory
    assert without.now() == pytest.approx(with_data.now(), abs=1e-5)  # views that C++ takes of the components


def _products(rank: int):
    size, elements = 20_000, 60_000
    places = torch.randint(size, (2, elements), device="cuda")
    matrix = torch.sparse_coo_tensor(places, torch.rand(elements, device="cuda"), (size, size))
    x = torch.rand(size, 32, device="cuda", requires_grad=True)
    torch.sparse.mm(matrix, x).sum().backward()
    twice = matrix + matrix
    assert (twice.layout, (matrix * 2).layout, (matrix * matrix).layout) == (torch.sparse_coo,) * 3
    assert torch.sparse.sum(matrix).shape == ()
    assert x.grad.shape == x.shape
    torch.cuda.synchronize()
    return twice._nnz(), matrix.coalesce()._nnz()


@pytest.mark.parametrize("data", [True, False], ids=["data", "no data"])
def test_products_go_by_the_elements_that_there_are(data) -> None:
    (twice, once), ctx = _run(_products, data)
    assert twice == (60_000 if data else 120_000)  # CUDA puts both behind each other, the CPU merges them
    assert once == pytest.approx(60_000, rel=0.01)
    assert ctx.now() < 3e-3  # of dense matrices it would be 20
    (host,) = ctx.simulation.hosts.of_rank.values()
    assert sum(host.account.flops.values()) == 2 * 2 * 60_000 * 32


def test_what_depends_on_values_is_refused_without_data() -> None:
    def body(rank: int) -> None:
        matrix = torch.rand(2000, 2000, device="cuda").to_sparse()
        assert matrix._nnz() == 2000 * 2000
        with pytest.raises(kernbench.KernbenchError, match=r"_sparse_sparse_matmul.*there is no data"):
            torch.sparse.mm(matrix, matrix)

    _, ctx = _run(body, data=False)
    assert "no two equal indices" in "".join(notes_of(ctx.simulation, rank_times(ctx.simulation)))
