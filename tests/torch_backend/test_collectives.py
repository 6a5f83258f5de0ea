"""Every collective of ``torch.distributed``, against closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench import SpawnException
from tests.torch_backend.conftest import Ranks

WORLD = 4
REDUCTIONS = {
    dist.ReduceOp.SUM: lambda values: sum(values),
    dist.ReduceOp.PRODUCT: lambda values: int(torch.tensor(values).prod()),
    dist.ReduceOp.MIN: min,
    dist.ReduceOp.MAX: max,
    dist.ReduceOp.BOR: lambda values: values[0] | values[1] | values[2] | values[3],
    dist.ReduceOp.BAND: lambda values: values[0] & values[1] & values[2] & values[3],
    dist.ReduceOp.BXOR: lambda values: values[0] ^ values[1] ^ values[2] ^ values[3],
}


@pytest.mark.parametrize("op", list(REDUCTIONS), ids=str)
def test_all_reduce(ranks: Ranks, op: dist.ReduceOp) -> None:
    def body() -> list[int]:
        tensor = torch.full((3,), dist.get_rank() + 3, dtype=torch.int64)
        dist.all_reduce(tensor, op)
        return tensor.tolist()

    assert ranks(body) == [[REDUCTIONS[op]([3, 4, 5, 6])] * 3] * WORLD


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.uint8], ids=str)
def test_all_reduce_dtypes(ranks: Ranks, dtype: torch.dtype) -> None:
    def body() -> bool:
        tensor = torch.full((5,), dist.get_rank() + 1, dtype=dtype)
        dist.all_reduce(tensor)
        return torch.equal(tensor, torch.full((5,), 10, dtype=dtype))

    assert all(ranks(body))


def test_rooted_collectives(ranks: Ranks) -> None:
    def body() -> tuple[object, ...]:
        rank = dist.get_rank()
        reduced = torch.full((2,), float(rank))
        dist.reduce(reduced, 2)
        shared = torch.full((2,), float(rank))
        dist.broadcast(shared, 3)
        part = torch.zeros(1)
        dist.scatter(part, [torch.full((1,), 10.0 * i) for i in range(WORLD)] if rank == 1 else None, src=1)
        parts = [torch.zeros(1) for _ in range(WORLD)] if rank == 0 else None
        dist.gather(torch.full((1,), float(rank)), parts, dst=0)
        return reduced.tolist(), shared.tolist(), part.item(), parts and torch.cat(parts).tolist()

    results = ranks(body)
    assert results[2][0] == [6.0, 6.0]
    assert [result[1] for result in results] == [[3.0, 3.0]] * WORLD
    assert [result[2] for result in results] == [0.0, 10.0, 20.0, 30.0]
    assert results[0][3] == [0.0, 1.0, 2.0, 3.0]


def test_gathering_and_scattering_collectives(ranks: Ranks) -> None:
    def body() -> tuple[object, ...]:
        rank = dist.get_rank()
        listed = [torch.zeros(2) for _ in range(WORLD)]
        dist.all_gather(listed, torch.full((2,), float(rank)))
        whole = torch.zeros(WORLD * 2)
        dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
        mine = torch.zeros(2)
        dist.reduce_scatter_tensor(mine, torch.arange(8.0))
        from_list = torch.zeros(1)
        dist.reduce_scatter(from_list, [torch.full((1,), float(i)) for i in range(WORLD)])
        return torch.cat(listed).tolist(), whole.tolist(), mine.tolist(), from_list.item()

    for rank, (listed, whole, mine, from_list) in enumerate(ranks(body)):
        assert listed == whole == [0, 0, 1, 1, 2, 2, 3, 3]
        assert mine == [4 * 2 * rank, 4 * (2 * rank + 1)]
        assert from_list == 4 * rank


def test_parts_that_differ_in_shape_alone(ranks: Ranks) -> None:
    """Every rank gives and gets its own shape, as a list of parameters has them: all are of six elements."""
    shapes = [(2, 3), (3, 2), (6,), (1, 6)]

    def body() -> tuple[list[list[float]], list[float]]:
        rank = dist.get_rank()
        parts = [torch.zeros(shape) for shape in shapes]
        dist.all_gather(parts, torch.full(shapes[rank], float(rank)))
        mine = torch.zeros(shapes[rank])
        dist.reduce_scatter(mine, [torch.full(shape, float(at)) for at, shape in enumerate(shapes)])
        return [part.flatten().tolist() for part in parts], mine.flatten().tolist()

    for rank, (gathered, mine) in enumerate(ranks(body)):
        assert gathered == [[float(other)] * 6 for other in range(WORLD)]
        assert mine == [4.0 * rank] * 6


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda sizes: list(torch.tensor(sizes))])
def test_uneven_all_to_all(ranks: Ranks, kind: Any) -> None:
    def body() -> list[float]:
        rank = dist.get_rank()
        given, wanted = [rank + 1] * WORLD, [sender + 1 for sender in range(WORLD)]
        output = torch.zeros(sum(wanted))
        dist.all_to_all_single(output, torch.full((sum(given),), float(rank)), kind(wanted), kind(given))
        return output.tolist()

    assert ranks(body) == [[0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0]] * WORLD


def test_messages_with_tags_and_from_anybody(ranks: Ranks) -> None:
    import time

    def body() -> list[tuple[int, float]]:
        rank, seen = dist.get_rank(), []
        if rank:
            time.sleep(0.1 * (WORLD - rank))  # the last rank sends first
            dist.send(torch.tensor([float(rank)]), 0, tag=7)
        else:
            for _ in range(WORLD - 1):
                tensor = torch.zeros(1)
                seen.append((dist.recv(tensor, tag=7), tensor.item()))
        return seen

    assert ranks(body)[0] == [(3, 3.0), (2, 2.0), (1, 1.0)]


def test_objects(ranks: Ranks) -> None:
    def body() -> tuple[object, ...]:
        rank = dist.get_rank()
        everybody: list[object] = [None] * WORLD
        dist.all_gather_object(everybody, {"rank": rank})
        shared = ["x" * rank]
        dist.broadcast_object_list(shared, 2)
        mine: list[object] = [None]
        dist.scatter_object_list(mine, list("abcd") if rank == 0 else None, 0)
        return everybody, shared[0], mine[0]

    expected = [{"rank": rank} for rank in range(WORLD)]
    assert ranks(body) == [(expected, "xx", letter) for letter in "abcd"]


def test_groups_and_asynchronous_work(ranks: Ranks) -> None:
    def body() -> tuple[float, ...]:
        rank = dist.get_rank()
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        tensor, other = torch.tensor([float(rank)]), torch.ones(1)
        first = dist.all_reduce(tensor, group=pairs[rank // 2], async_op=True)
        second = dist.all_reduce(other, async_op=True)
        second.wait()  # out of order
        first.wait()
        doubled = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda f: f.value()[0] * 2).wait()
        return tensor.item(), other.item(), doubled.item()

    assert ranks(body) == [(1.0, 4.0, 8.0)] * 2 + [(5.0, 4.0, 8.0)] * 2


def test_sparse_and_coalesced_all_reduce(ranks: Ranks) -> None:
    def body() -> tuple[list[float], list[float]]:
        rank = dist.get_rank()
        sparse = torch.sparse_coo_tensor([[rank % 2]], [1.0], (3,))
        dist.all_reduce(sparse)
        with dist._coalescing_manager():
            first, second = torch.ones(2), torch.full((3,), 2.0)
            dist.all_reduce(first)
            dist.all_reduce(second)
        return sparse.to_dense().tolist(), [*first.tolist(), *second.tolist()]

    assert ranks(body) == [([2.0, 2.0, 0.0], [4.0, 4.0, 8.0, 8.0, 8.0])] * WORLD


@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi", "kernbench"])
def test_backends_keep_their_name(ranks: Ranks, backend: str) -> None:
    assert ranks(dist.get_backend, backend=backend) == [backend] * WORLD


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_sum_of_what_each_rank_has_multiplied(ranks: Ranks, backend: str) -> None:
    """NCCL's premultiplied sum, which FSDP2 uses for a divisor of one's own: the factor is each rank's."""

    def body() -> list[list[float]]:
        rank = dist.get_rank()
        device = "cuda" if backend == "nccl" else "cpu"
        op = dist.ReduceOp.PREMUL_SUM(0.5 + rank)  # type: ignore[operator]
        x = torch.arange(4.0, device=device) + 1
        given, part, listed = x.clone(), x.new_zeros(1), x.new_zeros(1)
        dist.all_reduce(x, op)
        dist.reduce_scatter_tensor(part, given, op)
        dist.reduce_scatter(listed, list(given.split(1)), op)
        reduced = given.clone()
        dist.reduce(reduced, 0, op)
        unchanged = given.tolist()
        scaled = torch._C._distributed_c10d._make_nccl_premul_sum(torch.tensor([2.0], device=device))
        dist.all_reduce(given, scaled)
        return [
            x.tolist(),
            part.tolist(),
            listed.tolist(),
            reduced.tolist() if rank == 0 else [],
            unchanged,
            given.tolist(),
        ]

    whole = [8.0 * (at + 1) for at in range(4)]  # 0.5 + 1.5 + 2.5 + 3.5 times
    for rank, found in enumerate(ranks(body, backend=backend)):
        assert found == [
            whole, [whole[rank]], [whole[rank]], whole if rank == 0 else [], [1.0, 2.0, 3.0, 4.0], whole
        ]  # fmt: skip


def test_groups_of_one_number() -> None:
    """Each rank makes the groups that it is in. torch numbers them alike; one of them may communicate."""

    def body(used: int) -> list[float]:
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        own = dist.new_group([rank % 2, rank % 2 + 2])
        whole = dist.new_group([0, 1, 2, 3])
        x, y = (torch.full((2,), float(rank), device="cuda") for _ in range(2))
        if rank % 2 < used:
            dist.all_reduce(x, group=own)
        dist.all_reduce(y, group=whole)
        return [x[0].item(), y[0].item()]

    def run(used: int) -> dict[int, list[float]]:
        found = {}
        with kernbench.simulate("dgx_h100") as ctx:
            ctx.multiprocessing.spawn(lambda rank: found.update({rank: body(used)}), nprocs=4)
        return found

    for used in range(2):
        assert run(used) == {rank: [2.0 if used and rank % 2 == 0 else float(rank), 6.0] for rank in range(4)}
    with pytest.raises(SpawnException) as failed:
        run(2)
    assert {type(error) for error in failed.value.errors.values()} == {kernbench.CollectiveMismatchError}
    words = str(failed.value)
    assert "new_group #1 of the default group does not match" in words
    assert "new_group(ranks [0, 2])" in words
    assert "new_group(ranks [1, 3])" in words


def test_groups_whose_members_number_them_alike() -> None:
    """What others call them is nothing to their members; one who makes another in a group's place is."""

    def body(wrong: bool) -> float:
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        x = torch.ones(2, device="cuda")
        if rank < 2:
            dist.new_group([rank])
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3] if rank != 1 or not wrong else [1, 2])]
        if rank >= 2:
            dist.new_group([rank])
        if rank >= 2:
            dist.all_reduce(x, group=groups[1])
        return x[0].item()

    def run(wrong: bool) -> dict[int, float]:
        found = {}
        with kernbench.simulate("dgx_h100") as ctx:
            ctx.multiprocessing.spawn(lambda rank: found.update({rank: body(wrong)}), nprocs=4)
        return found

    assert run(wrong=False) == {0: 1.0, 1: 1.0, 2: 2.0, 3: 2.0}
    with pytest.raises(SpawnException, match=r"new_group\(ranks \[1, 2\]\)"):
        run(wrong=True)
