"""What DTensor finds out of an operation is found out once for all ranks, and each has what torch would have given it alone."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import kernbench
from kernbench.torch_backend.features import shared_shardings

RULES = importlib.import_module("torch.distributed.tensor._sharding_prop")


@pytest.fixture
def found_out(monkeypatch):
    """The operators whose shardings torch has found out, in order."""
    calls: list[str] = []
    propagator = RULES.ShardingPropagator
    stock = propagator.propagate_op_sharding_non_cached
    monkeypatch.setattr(
        propagator, "propagate_op_sharding_non_cached",
        lambda self, schema: (calls.append(str(schema.op)), stock(self, schema))[1],
    )  # fmt: skip
    return calls


def _on(nprocs: int, worker, **options) -> None:
    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=nprocs)


@pytest.mark.parametrize("rows", [7, 8, 2])
def test_uneven_shards(rows, found_out):
    """Rows of a weight over three ranks: local shapes differ between them, and so do views and what is made like them."""
    whole = torch.arange(rows * 6.0).view(rows, 6) / 11
    given = torch.arange(24.0).view(4, 6) / 7
    found = {}

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (3,))
        weight = distribute_tensor(whole, mesh, [Shard(0)])
        product = distribute_tensor(given, mesh, [Replicate()]) @ weight.t()
        views = weight.view(rows, 2, 3).sum(-1), weight.new_zeros(rows, 6) + weight
        norms = torch._foreach_norm([weight, weight * 2])
        found[rank] = (
            weight.to_local().shape[0],
            [each.full_tensor() for each in (product, *views, *norms, weight.sum(0), torch.cat([weight, weight]))],
            product.device_mesh is mesh,
        )

    _on(3, worker)
    size = -(-rows // 3)
    expected = [
        given @ whole.t(), whole.view(rows, 2, 3).sum(-1), whole, whole.norm(), (2 * whole).norm(),
        whole.sum(0), torch.cat([whole, whole]),
    ]  # fmt: skip
    for rank, (local, results, own_mesh) in found.items():
        assert local == max(min(size, rows - rank * size), 0)
        for result, each in zip(results, expected, strict=True):
            torch.testing.assert_close(result, each)
        assert own_mesh
    assert found_out.count("aten.mm.default") == 1, "once for all ranks"
    assert found_out.count("aten._foreach_norm.Scalar") == 1
    assert found_out.count("aten.view.default") >= 3, "each rank makes its arguments local"


def test_masks_of_an_embedding_are_each_ranks_own(found_out):
    """A table sharded by rows: what a rank has masked is kept with the placement of the result, until it is summed up."""
    table = torch.arange(20.0).view(10, 2)
    tokens = torch.tensor([[0, 3, 9], [5, 4, 1]])
    found = {}

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (4,))
        rows = distribute_tensor(table, mesh, [Shard(0)])
        looked_up = torch.nn.functional.embedding(distribute_tensor(tokens, mesh, [Replicate()]), rows)
        dist.barrier()  # all ranks have looked up before any of them sums up
        found[rank] = looked_up.full_tensor()

    _on(4, worker)
    for result in found.values():
        torch.testing.assert_close(result, table[tokens])
    assert found_out.count("aten.embedding.default") == 4


def test_meshes_and_rules_of_others_are_not_mixed_up(found_out):
    """Two meshes with the same layout and others with another one; a rule of the program's, which may look at its rank."""
    found = {}

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        flat, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
        own = torch.full((2, 2), float(rank))
        on_flat = DTensor.from_local(own, flat, [Partial()]) * 2
        on_square = DTensor.from_local(own, square, [Shard(0), Partial()]) * 2
        again = DTensor.from_local(own, init_device_mesh("cpu", (4,)), [Partial()]) * 2
        assert on_flat.device_mesh is flat
        assert on_square.device_mesh is square
        found[rank] = [each.full_tensor() for each in (on_flat, on_square, again)]

    _on(4, worker)
    for flat, square, again in found.values():
        assert torch.equal(flat, torch.full((2, 2), 12.0))
        assert torch.equal(again, flat)
        assert torch.equal(square, torch.tensor([[2.0], [2.0], [10.0], [10.0]]).expand(4, 2))
    assert found_out.count("aten.mul.Tensor") == 2


def test_the_scout_and_the_run_find_out_once(found_out):
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        mesh = init_device_mesh("cuda", (8,))
        weights = [distribute_tensor(torch.empty(64, 64, device="cuda"), mesh, [Shard(0)]) for _ in range(3)]
        parameters = [torch.nn.Parameter(each) for each in weights]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        torch.optim.AdamW(parameters, fused=True).step()

    _on(8, worker, enable_data=False, ranks="auto")
    assert found_out.count("aten._fused_adamw_.default") == 1
    assert found_out.count("aten._foreach_norm.Scalar") == 1


def test_no_mesh_of_a_rank_is_kept():
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        (
            distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
            @ distribute_tensor(torch.ones(4), mesh, [Replicate()])
        ).sum()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        store = shared_shardings._stores[ctx.topology]
    assert store.shardings
    mesh = importlib.import_module("torch.distributed.device_mesh").DeviceMesh
    pending, seen = [store.shardings, store.shapes], set()
    while pending:
        each = pending.pop()
        assert not isinstance(each, mesh)
        if id(each) in seen or isinstance(each, type) or callable(each):
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            pending += [*each, *each.values()]
        elif isinstance(each, list | tuple):
            pending += each
        elif type(each).__name__ in ("DTensorSpec", "OpSchema", "OutputSharding"):
            pending += vars(each).values()
