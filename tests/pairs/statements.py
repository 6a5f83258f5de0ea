"""Statements of random programs: each is a few lines of a rank's program, right on its own and in any order with the others.

A statement is given what its rank has (:class:`Own`) and random numbers that are the same in all ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WORLD = 4


class Own:
    """What a rank has.

    Attributes:
        x: ``[64]`` fp32, another one in each rank.
        y: ``[8, 16]`` fp32, another one in each rank.
        weight: ``[16, 16]`` fp32 parameter, the same in all ranks.
        results: what its program has computed.
        seen: what else it has found: times, sizes, objects.
        works: collectives that it has not waited for.
    """

    def __init__(self, rank: int) -> None:
        self.rank, self.device = rank, torch.device("cuda", rank)
        own = torch.Generator().manual_seed(7 + rank)
        self.x, self.y = (
            torch.randn(64, generator=own).to(self.device),
            torch.randn(8, 16, generator=own).to(self.device),
        )
        self.weight = nn.Parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(3)).to(self.device))
        self.results: list[Tensor] = []
        self.seen: list[object] = []
        self.works: list[Any] = []
        self.side = torch.cuda.Stream()
        self.kept: dict[int, Tensor] = {}
        self._groups: dict[tuple[int, ...], Any] = {}
        self._mesh: DeviceMesh | None = None

    def numbers(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Small ones, which any order of sums leaves exact."""
        return ((torch.arange(count, device=self.device) + self.rank) % 7).to(dtype)

    def give(self, result: Tensor, work: Any, random: Random) -> None:
        """``work``: a collective that has yet to write ``result``, if it has not; it may be waited for later."""
        self.results.append(result)
        if work is not None and random.random() < 0.5:
            work.wait()
        elif work is not None:
            self.works.append(work)

    def group(self, ranks: tuple[int, ...]) -> Any:
        """That of ``ranks``, which all ranks make."""
        if ranks not in self._groups:
            self._groups[ranks] = dist.new_group(list(ranks))
        return self._groups[ranks]

    @property
    def mesh(self) -> DeviceMesh:
        """Of all ranks, in one dimension."""
        if self._mesh is None:
            self._mesh = init_device_mesh("cuda", (WORLD,))
        return self._mesh


Statement = Callable[[Own, Random], None]

STATEMENTS: dict[str, Statement] = {}
"""By name."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


def _statement(function: Statement) -> Statement:
    STATEMENTS[function.__name__] = function
    return function


# -- collectives and messages --------------------------------------------------------------------------------------------


@_statement
def all_reduce(own: Own, random: Random) -> None:
    given = own.numbers(random.choice([1, 5, 4096]), random.choice(DTYPES))
    kind = random.choice([dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN])
    own.give(given, dist.all_reduce(given, kind, async_op=random.random() < 0.5), random)


@_statement
def all_gather(own: Own, random: Random) -> None:
    given = own.numbers(random.choice([1, 64]), random.choice(DTYPES))
    found = given.new_empty(WORLD * given.numel())
    own.give(found, dist.all_gather_into_tensor(found, given, async_op=random.random() < 0.5), random)


@_statement
def reduce_scatter(own: Own, random: Random) -> None:
    size = random.choice([1, 100])
    found = torch.empty(size, device=own.device)
    work = dist.reduce_scatter_tensor(found, own.numbers(WORLD * size), async_op=random.random() < 0.5)
    own.give(found, work, random)


@_statement
def broadcast(own: Own, random: Random) -> None:
    given, source = own.numbers(32, random.choice(DTYPES)), random.randrange(WORLD)
    own.give(given, dist.broadcast(given, source, async_op=random.random() < 0.5), random)


@_statement
def uneven_all_to_all(own: Own, random: Random) -> None:
    sizes = [[random.randint(0, 4) for _ in range(WORLD)] for _ in range(WORLD)]
    sent, received = sizes[own.rank], [each[own.rank] for each in sizes]
    found = torch.empty(sum(received), device=own.device)
    work = dist.all_to_all_single(found, own.numbers(sum(sent)), received, sent, async_op=random.random() < 0.5)
    own.give(found, work, random)


@_statement
def gather(own: Own, random: Random) -> None:
    given, target = own.numbers(3), random.randrange(WORLD)
    found = [torch.empty_like(given) for _ in range(WORLD)] if own.rank == target else None
    dist.gather(given, found, target)
    own.results += found or []


@_statement
def message(own: Own, random: Random) -> None:
    source, target = random.sample(range(WORLD), 2)
    size = random.choice([1, 50_000])
    if own.rank == source:
        dist.send(own.numbers(size), target)
    elif own.rank == target:
        found = torch.empty(size, device=own.device)
        dist.recv(found, source)
        own.results.append(found)


@_statement
def ring(own: Own, random: Random) -> None:
    given = own.numbers(random.choice([1, 1000]))
    found = torch.empty_like(given)
    left, right = (own.rank - 1) % WORLD, (own.rank + 1) % WORLD
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, given, right), dist.P2POp(dist.irecv, found, left)]):
        work.wait()
    own.results.append(found)


@_statement
def in_a_group(own: Own, random: Random) -> None:
    ranks = tuple(sorted(random.sample(range(WORLD), random.randint(1, WORLD))))
    group = own.group(ranks)
    if own.rank in ranks:
        given = own.numbers(12)
        dist.all_reduce(given, group=group)
        own.results.append(given)


@_statement
def objects(own: Own, random: Random) -> None:
    found: list[Any] = [None] * WORLD
    dist.all_gather_object(found, {"rank": own.rank, "some": [1, 2.5, "three"]})
    own.seen.append(found)
    listed = [own.rank, "x" * own.rank]
    dist.broadcast_object_list(listed, random.randrange(WORLD))
    own.seen.append(listed)


@_statement
def barrier(own: Own, random: Random) -> None:
    dist.barrier()


# -- streams, graphs, memory ---------------------------------------------------------------------------------------------


@_statement
def beside(own: Own, random: Random) -> None:
    own.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own.side):
        found = (own.x * 2 + own.rank).relu()
        if random.random() < 0.5:
            dist.all_reduce(found)
    torch.cuda.current_stream().wait_stream(own.side)
    found.record_stream(torch.cuda.current_stream())
    own.results.append(found)


@_statement
def timed(own: Own, random: Random) -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    own.results.append(own.y @ own.weight.detach())
    end.record()
    end.synchronize()
    own.seen.append(begin.elapsed_time(end))


@_statement
def graph(own: Own, random: Random) -> None:
    count, captured = torch.zeros(16, device=own.device), torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        count.add_(1)
        found = count * 2
        dist.all_reduce(found)
    for _ in range(random.randint(1, 3)):
        captured.replay()
    own.results.append(found.clone())


@_statement
def pinned(own: Own, random: Random) -> None:
    there = torch.arange(50.0).pin_memory().to(own.device, non_blocking=True)
    back = torch.empty(50, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    own.results.append(there)


@_statement
def allocate(own: Own, random: Random) -> None:
    own.kept.pop(random.randint(0, 3), None)
    own.kept[random.randint(0, 3)] = torch.empty(random.choice([100, 2**20, 3 * 2**20]), device=own.device)
    if random.random() < 0.3:
        torch.cuda.empty_cache()
    own.seen.append((torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()))


# -- computation ---------------------------------------------------------------------------------------------------------


@_statement
def look(own: Own, random: Random) -> None:
    own.x.mul_(1.01)
    own.results.append(torch.tensor(own.x.sum().item()))


@_statement
def train(own: Own, random: Random) -> None:
    (F.gelu(own.y @ own.weight) @ own.weight.t()).square().mean().backward()
    assert own.weight.grad is not None
    if random.random() < 0.5:
        dist.all_reduce(own.weight.grad)
    with torch.no_grad():
        own.weight -= 0.01 * own.weight.grad
    own.weight.grad = None
    own.results.append(own.weight.detach().clone())


@_statement
def drawn(own: Own, random: Random) -> None:
    torch.manual_seed(random.randint(0, 100) + own.rank)
    own.results += [torch.randn(9, device=own.device), F.dropout(own.x, 0.5)]


@_statement
def ordered(own: Own, random: Random) -> None:
    own.results += [*torch.sort(own.x), torch.topk(own.x, 5).values, torch.cumsum(own.x, 0)]


@_statement
def autocast(own: Own, random: Random) -> None:
    with torch.autocast("cuda", dtype=random.choice([torch.bfloat16, torch.float16])):
        own.results.append(F.softmax(own.y @ own.weight.detach(), -1))


@_statement
def recomputed(own: Own, random: Random) -> None:
    given = own.y.clone().requires_grad_()
    checkpoint(
        lambda each: (each @ own.weight.detach()).tanh(), given, use_reentrant=random.random() < 0.5
    ).sum().backward()
    assert given.grad is not None
    own.results.append(given.grad)


@_statement
def attention(own: Own, random: Random) -> None:
    given = torch.randn(2, 4, 16, 32, generator=torch.Generator().manual_seed(1)).to(own.device, torch.bfloat16)
    own.results.append(F.scaled_dot_product_attention(given, given, given, is_causal=True))


@_statement
def compiled(own: Own, random: Random) -> None:
    @torch.compile(backend=random.choice(["eager", "aot_eager"]))
    def product(given: Tensor) -> Tensor:
        return F.gelu(given * 2.0) @ given.t()

    own.results.append(product(own.y))


# -- parallel layers -----------------------------------------------------------------------------------------------------


def _layers(random: Random, last: int) -> nn.Sequential:
    torch.manual_seed(random.randint(0, 99))
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, last)).cuda()


def _steps(own: Own, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(2):
        model(own.y * (step + 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@_statement
def replicated(own: Own, random: Random) -> None:
    layers = _layers(random, 4)
    model = DistributedDataParallel(layers, [own.rank], gradient_as_bucket_view=random.random() < 0.5)
    _steps(own, model, torch.optim.AdamW(model.parameters(), 0.01))
    own.results += [each.detach().clone() for each in layers.parameters()]


@_statement
def sharded(own: Own, random: Random) -> None:
    layers = _layers(random, 8)
    for each in (layers[0], layers[2], layers):
        fully_shard(each, reshard_after_forward=random.random() < 0.5)
    _steps(own, layers, torch.optim.SGD(layers.parameters(), 0.01, momentum=0.9))
    own.results += [each.full_tensor().detach() for each in layers.parameters()]  # type: ignore[attr-defined]


@_statement
def split(own: Own, random: Random) -> None:
    layers = _layers(random, 16)
    parallelize_module(layers, own.mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    found = layers(own.weight.detach())
    found.sum().backward()
    own.results += [found.detach(), layers[0].weight.grad.full_tensor()]


@_statement
def laid_out(own: Own, random: Random) -> None:
    first, second = (
        distribute_tensor(
            torch.arange(64.0, device=own.device).view(8, 8) + more, own.mesh,
            [random.choice([Shard(0), Shard(1), Replicate()])],
        )
        for more in (0, 1)
    )  # fmt: skip
    own.results.append((first @ second).full_tensor())


# -- threads and time ----------------------------------------------------------------------------------------------------


@_statement
def asleep(own: Own, random: Random) -> None:
    time.sleep(0.01 * random.random() * (own.rank + 1))


@_statement
def in_threads(own: Own, random: Random) -> None:
    thread = threading.Thread(target=lambda: own.results.append((own.x + 1).sum()))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(2) as pool:
        own.results += pool.map(lambda factor: (own.x * factor).sum(), range(3))
