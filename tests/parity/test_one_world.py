"""``ctx`` and ``torch`` are two names of one implementation: same values, operations, bytes and times, in both isolations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed

import kernbench

WORLD = 4


@dataclass(frozen=True)
class Way:
    """One way to write the same program: where tensors are made, and whose collectives are called."""

    torch: Any
    dist: Any
    options: dict[str, Any]

    def tensor(self, data: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.torch.tensor(data, dtype=dtype, **self.options)

    def ramp(self, *shape: int, start: float = 0.0) -> torch.Tensor:
        count = math.prod(shape)
        values = [start - 1 + 2 * i / count for i in range(count)]  # no torch: what it computes is the program's
        return self.tensor(values).view(shape)

    def zeros(self, *shape: int) -> torch.Tensor:
        return self.torch.zeros(*shape, **self.options)


def einsum(way: Way, rank: int) -> Any:
    x = way.ramp(96, 96, start=rank)
    return [torch.einsum("ij,jk->ik", x, x), torch.tensordot(x, x, dims=1), torch.inner(x, x), x.mv(x[0])]


def multi_dot(way: Way, rank: int) -> Any:
    x = way.ramp(64, 64, start=rank)
    return [torch.linalg.multi_dot([x, x, x]), torch.chain_matmul(x, x) if rank < 0 else x @ x]


def reshaped(way: Way, rank: int) -> Any:
    x = way.ramp(128, 64, start=rank)
    return [x.t().reshape(-1), x.t().contiguous(), x.reshape(-1), x.flatten(), x.t().flatten()]


def backward(way: Way, rank: int) -> Any:
    w = way.ramp(48, 48, start=rank).requires_grad_()
    (w @ w).sum().backward()
    return [w.grad]


def training(way: Way, rank: int) -> Any:
    layer = [way.ramp(32, 16).requires_grad_(), way.ramp(32).requires_grad_()]
    x = way.ramp(8, 16, start=rank)
    losses = []
    for _ in range(2):
        y = torch.nn.functional.linear(x, *layer).relu().softmax(-1)
        loss = (y * y).mean()
        loss.backward()
        with torch.no_grad():
            for p in layer:
                p -= 0.1 * p.grad
                p.grad = None
        losses.append(loss.detach())
    return [*losses, layer[0].detach()]


def factories(way: Way, rank: int) -> Any:
    made = [way.zeros(5, 3), way.torch.ones(4, **way.options), way.torch.full((2, 2), 7.0, **way.options),
            way.torch.arange(9, **way.options)]  # fmt: skip
    return [*made, torch.cat([made[0].view(-1), made[1]]), torch.stack([made[1], made[1]])]


def host_reads(way: Way, rank: int) -> Any:
    x = way.ramp(33, start=rank)
    total = (x * 2).sum()
    seen = [total.item(), float(x.max()), bool(x.sum() > 0), int(x.argmax()), x.tolist(), (x + 1).cpu().tolist()]
    return [x, *map(str, seen)]


def copies(way: Way, rank: int) -> Any:
    x, y = way.ramp(16, start=rank), way.zeros(16)
    y.copy_(x)
    y[3:5] = 9.0
    y[0].fill_(4.0)
    return [y, x[2:7] * 2, x.to(torch.float16), x.type_as(y.half())]


def collectives(way: Way, rank: int) -> Any:
    dist, n = way.dist, WORLD
    x = way.ramp(n * 6, start=rank)
    y = x * 1.0
    dist.all_reduce(y)
    gathered = way.zeros(n * n * 6)
    dist.all_gather_into_tensor(gathered, x)
    part = way.zeros(6)
    dist.reduce_scatter_tensor(part, x)
    lists = [way.zeros(6) for _ in range(n)]
    dist.all_gather(lists, part)
    dist.broadcast(part, src=2)
    dist.reduce(x, dst=1)
    dist.barrier()
    return [x, y, gathered, part, *lists]


def scattered(way: Way, rank: int) -> Any:
    dist, n = way.dist, WORLD
    mine = way.zeros(3)
    dist.scatter(mine, [way.ramp(3, start=each) for each in range(n)] if rank == 0 else None, src=0)
    found = [way.zeros(3) for _ in range(n)] if rank == 3 else None
    dist.gather(mine, found, dst=3)
    sizes = [rank + 1] * n
    out = way.zeros(sum(range(1, n + 1)))
    dist.all_to_all_single(out, way.ramp(n * (rank + 1), start=rank), list(range(1, n + 1)), sizes)
    return [mine, out, *(found or [])]


def overlapped(way: Way, rank: int) -> Any:
    dist = way.dist
    x, y = way.ramp(4096, start=rank), way.ramp(64, 64, start=rank)
    work = dist.all_reduce(x, async_op=True)
    z = y @ y
    work.wait()
    return [x + 1, z]


def messages(way: Way, rank: int) -> Any:
    dist = way.dist
    x, y = way.ramp(17, start=rank), way.zeros(17)
    sends = dist.isend(x, (rank + 1) % WORLD)
    receives = dist.irecv(y, (rank - 1) % WORLD)
    receives.wait()
    sends.wait()
    return [x, y]


def subgroups(way: Way, rank: int) -> Any:
    groups = [way.dist.new_group([0, 2]), way.dist.new_group([1, 3])]
    x = way.ramp(10, start=rank)
    way.dist.all_reduce(x, group=groups[rank % 2])
    return [x]


PROGRAMS = (
    einsum, multi_dot, reshaped, backward, training, factories, host_reads, copies, collectives, scattered, overlapped,
    messages, subgroups,
)  # fmt: skip


def outcome(program: Callable[[Way, int], Any], way: str, isolation: str, system: str) -> tuple[Any, Any, Any]:
    """Values per rank, the log as (rank, stream, name, kind, bytes, enqueue, start, end), and main's time at the end."""
    values: dict[int, Any] = {}
    with kernbench.simulate(system) as ctx:

        def worker(rank: int) -> None:
            if way == "torch":
                torch.cuda.set_device(rank)
                torch.distributed.init_process_group("nccl")
                mine = Way(torch, torch.distributed, {"device": "cuda"})
            else:
                ctx.distributed.init_process_group("nccl")  # by default it is a library that copies no lists
                mine = Way(ctx, ctx.distributed, {})
            found = program(mine, rank)
            values[rank] = [each.tolist() if isinstance(each, torch.Tensor) else each for each in found]

        ctx.multiprocessing.spawn(worker, nprocs=WORLD, isolation=isolation)
        log = [
            (op.rank, op.sip, op.stream, op.name, op.kind, op.nbytes, op.enqueue, op.start, op.end)
            for op in ctx.engine.op_log.operations
        ]
        return values, sorted(log, key=lambda op: (op[0], op[6], op[7])), ctx.now()


@pytest.mark.parametrize("system", ["dgx_h100", "sip8"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_all_ways_are_one(program, system):
    reference = outcome(program, "ctx", "greenlet", system)
    for way, isolation in (("ctx", "carrier"), ("torch", "carrier")):
        values, log, end = outcome(program, way, isolation, system)
        assert values == reference[0], f"values of {way} on {isolation}"
        assert [op[:6] for op in log] == [op[:6] for op in reference[1]], f"operations of {way} on {isolation}"
        assert log == reference[1], f"times of {way} on {isolation}"
        assert end == reference[2]
    assert reference[1], "nothing was recorded"


@pytest.mark.parametrize("isolation", ["greenlet", "carrier"])
def test_objects_travel_in_both_isolations(isolation):
    """What ``ctx.distributed`` has no method for is torch's, for this rank's groups."""
    seen: dict[int, Any] = {}
    with kernbench.simulate("dgx_h100") as ctx:

        def worker(rank: int) -> None:
            everybody: list[Any] = [None] * WORLD
            ctx.distributed.all_gather_object(everybody, {"rank": rank})
            given = [f"from {rank}", rank]
            ctx.distributed.broadcast_object_list(given, src=2)
            seen[rank] = everybody, given

        ctx.multiprocessing.spawn(worker, nprocs=WORLD, isolation=isolation)
    assert seen == {r: ([{"rank": each} for each in range(WORLD)], ["from 2", 2]) for r in range(WORLD)}


@pytest.mark.parametrize("way", ["ctx", "torch"])
def test_without_data_what_is_small_is_known_and_what_is_not_is_an_error_in_both(way):
    with kernbench.simulate("dgx_h100", enable_data=False, unknown="error") as ctx:

        def worker(rank: int) -> None:
            if way == "torch":
                torch.cuda.set_device(rank)
                torch.distributed.init_process_group("nccl")
                small, dist = torch.full((4,), float(rank + 1), device="cuda"), torch.distributed
                large = torch.full((4096,), float(rank + 1), device="cuda")
            else:
                small, large, dist = ctx.full((4,), float(rank + 1)), ctx.full((4096,), 1.0), ctx.distributed
            dist.all_reduce(small)
            dist.all_reduce(large)
            assert small.tolist() == [3.0] * 4
            assert small[0] == 3
            for look in (large.tolist, large[0].item, lambda: bool(large[0] == 3), lambda: float(large[0])):
                with pytest.raises(kernbench.KernbenchError, match="enable_data"):
                    look()

        ctx.multiprocessing.spawn(worker, nprocs=2)
