"""The same program with ranks that are threads, greenlets and processes: the same traces, memory and output, byte for byte."""

from __future__ import annotations

import datetime
import importlib
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl

import kernbench
from kernbench.simulation.active_simulation import current_simulation
from tests.parity import gpu_programs, programs
from tests.processes.outcomes import assert_equal, outcome

WORLD = 4

for _name in ("checkpoint", "fsdp", "optim", "pipelining", "tensor.parallel", "tensor.experimental"):
    importlib.import_module(f"torch.distributed.{_name}")
"""Beforehand: what a module computes when it is imported takes its rank time, with threads the first rank's alone."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torch warns once per process: a rank that does looks at the clock, which takes it time."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(before)


def both(
    worker: Callable[[int], Any], capsys: pytest.CaptureFixture[str], first: str = "carrier", **options: Any
) -> None:
    """Run it in ranks of two kinds, and hold what they leave against each other."""

    def printed() -> str:
        return capsys.readouterr().out

    one = outcome(worker, first, WORLD, printed, **options)
    assert one.operations
    assert_equal(one, outcome(worker, "process", WORLD, printed, **options))


_SLOW = (
    "zero_bubble",
    "zero_bubble_v",
    "dtensor_ops",
    "fsdp1",
    "fsdp2",
    "hsdp",
    "tensor_and_sharded",
    "interleaved",
    "optimizers",
)
"""What takes seconds, and is like another one; zero bubbles are apart, see :mod:`tests.parity.test_without_data`."""

ON_GPUS = [
    program
    for program in gpu_programs.PROGRAMS
    if program.__name__ not in ("zero_bubble", "zero_bubble_v", "kernbench_layers")
]
"""Not: zero bubbles, whose gradients torch adds in the order of a set; kernels of Triton, whose time depends on how many ranks
launch the same together (see :func:`test_triton_kernels_compute_the_same`)."""


@pytest.mark.parametrize(
    "program",
    [pytest.param(each, marks=pytest.mark.long) if each.__name__ in _SLOW else each for each in ON_GPUS],
    ids=lambda program: program.__name__,
)
def test_programs_on_gpus(program, capsys):
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        program(rank, WORLD, 16)
        dist.destroy_process_group()

    both(worker, capsys)


@pytest.mark.parametrize("data", [True, False])
def test_values_that_come_outside_of_the_mode_in_which_a_tensor_was_made(data, capsys):
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        with torch.inference_mode():
            served = torch.full((4,), float(rank), device="cuda")
            work = dist.all_reduce(served, async_op=True)
            every = torch.empty(WORLD, dtype=torch.int64, device="cuda")
            gathered = dist.all_gather_into_tensor(every, torch.tensor([rank], device="cuda"), async_op=True)
        work.wait()
        gathered.wait()
        print(every.tolist(), *(served.tolist() if data else ()))
        dist.destroy_process_group()

    both(worker, capsys, enable_data=data)


_QUICK = ("fsdp2", "expert_parallel", "pipeline_and_data")


@pytest.mark.parametrize(
    ("program", "width"),
    [
        pytest.param(each, 16, id=f"{each.__name__}-16", marks=pytest.mark.long)
        for each in ON_GPUS
        if each.__name__ in _QUICK
    ]
    + [
        pytest.param(
            each, 512, id=f"{each.__name__}-512", marks=() if each.__name__ in _QUICK[1:] else pytest.mark.long
        )
        for each in ON_GPUS
    ],
)
def test_programs_without_data(program, width, capsys):
    """Of few bytes, which are computed, and of more, which are not; what is assumed is the same."""

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        program(rank, WORLD, width)
        dist.destroy_process_group()

    both(worker, capsys, enable_data=False)


ON_HOSTS = [name for name in programs.PROGRAMS if name not in ("sequence_parallel", "compiled")]
"""Not: one that needs another world; one that is compiled, once by each process."""


@pytest.mark.parametrize("name", ON_HOSTS)
def test_programs_on_hosts(name, capsys):
    """They print losses and weights."""

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        print(rank, programs.PROGRAMS[name](rank, WORLD))
        dist.destroy_process_group()

    both(worker, capsys)


def collectives(rank: int) -> None:
    """Every collective, objects, stores and messages, in one group and in parts of it."""
    dist.init_process_group("gloo")
    mine = torch.arange(8.0) * (rank + 1)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        total = mine.to(dtype)
        dist.all_reduce(total)
        print(total.sum())
    parts = [torch.zeros(8) for _ in range(WORLD)]
    dist.all_gather(parts, mine)
    whole = torch.zeros(8 * WORLD)
    dist.all_gather_into_tensor(whole, mine)
    shard = torch.zeros(2)
    dist.reduce_scatter_tensor(shard, mine)
    swapped = torch.zeros(8)
    dist.all_to_all_single(swapped, mine)
    uneven = torch.zeros(2 * WORLD * (rank + 1))
    dist.all_to_all_single(
        uneven, torch.ones(2 * 10), [2 * (rank + 1)] * WORLD, [2 * (other + 1) for other in range(WORLD)]
    )
    turned = torch.arange(6.0).view(2, 3).t() + rank  # not contiguous
    dist.broadcast(turned, 2)
    print(parts[-1], whole.sum(), shard, swapped, uneven.sum(), turned)
    said: list[Any] = [None] * WORLD
    dist.all_gather_object(said, {"rank": rank, "what": "x" * rank})
    print(said)
    first, second = torch.ones(4), torch.full((4,), 2.0)
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(first, async_op=True)]
    works.append(dist.all_reduce(second, async_op=True))
    for work in works:
        work.wait()
    print(first, second)
    pair = dist.new_group([1, 3])
    if rank in (1, 3):
        dist.all_reduce(mine, group=pair)
        other = 4 - rank
        sent, received = dist.isend(mine, other), dist.irecv(whole[:8], other)
        sent.wait()
        received.wait()
        print(whole[:8])
    if rank == 0:
        source = dist.recv(whole[:4])
        print("from", source, whole[:4])
    elif rank == 2:
        dist.send(torch.full((4,), 7.0), 0)
    store = dist.TCPStore("localhost", 1234, WORLD, rank == 0)
    store.set(f"key{rank}", str(rank))
    print(
        store.get(f"key{(rank + 1) % WORLD}"), store.add("count", 1) > 0, dist.PrefixStore("a", store).add("b", 2) > 0
    )
    dist.barrier()


@pytest.mark.parametrize("isolation", ["carrier", "greenlet"])
@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_collectives_messages_and_stores(isolation, policy, capsys):
    if isolation == "carrier":
        return both(collectives, capsys, policy=policy)

    def worker(rank: int) -> None:  # torch's own bookkeeping needs ranks with a thread or a process
        simulation = current_simulation()
        assert simulation is not None
        distributed: Any = simulation.distributed
        mine = torch.ones(4) * rank
        for _ in range(3):
            distributed.all_reduce(mine)
            distributed.broadcast(mine, 1, async_op=True).wait()
        print(mine)

    return both(worker, capsys, isolation, policy=policy)


def test_known_and_assumed_values_are_told_apart_without_data(capsys):
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        known, large = torch.full((4,), float(rank), device="cuda"), torch.ones(1 << 16, device="cuda")
        dist.all_reduce(known)
        assumed = large.sum().reshape(1) * (1 if rank == 2 else 0)
        parts = [torch.zeros(1, device="cuda") for _ in range(WORLD)]
        dist.all_gather(parts, assumed)
        counts = torch.full((2,), 5, device="cuda")
        works = [dist.all_reduce(counts, async_op=True), dist.all_reduce(counts, async_op=True)]
        dist.all_reduce(large)
        rows = torch.zeros(WORLD, 1 << 14, device="cuda")
        dist.all_gather_into_tensor(rows.view(-1), large[: 1 << 14])
        for work in works:
            work.wait()
        mask = rows > 2
        print(known.tolist(), [part.item() for part in parts], counts.tolist(), mask.sum().item(), large[:2].tolist())
        if rank == 0:
            dist.send(large[:8], 1)
        elif rank == 1:
            dist.recv(known, 0) if known.numel() == 8 else dist.recv(large[:8], 0)
            print(large[3].item())

    both(worker, capsys, enable_data=False)


def test_what_dynamo_runs(capsys):
    """Collectives that the reducer of a compiled model calls: Dynamo looks at each frame beneath, and none is its business."""

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)).cuda()
        compiled = torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend="eager")
        for _ in range(3):
            loss = compiled(torch.randn(4, 8, device="cuda")).square().mean()
            loss.backward()
        print(loss.item(), model[0].weight.grad.sum().item())
        models.append(model)

    models: list[Any] = []  # whose gradients are known by what they are in the end
    both(worker, capsys)


def test_monitored_barriers(capsys):
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        half = dist.new_group([1, 2, 3])
        dist.monitored_barrier()
        for group, absent, everybody in ((dist.group.WORLD, 1, True), (half, 2, False), (half, 1, False)):
            if rank == absent or (group is half and rank == 0):
                continue
            try:
                dist.monitored_barrier(group, datetime.timedelta(seconds=1), wait_all_ranks=everybody)
            except RuntimeError as error:
                print(rank, error)
            else:
                print(rank, "passed")

    both(worker, capsys)


def test_streams_events_and_the_clock(capsys):
    def worker(rank: int) -> None:
        import time

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        side, begin, end = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        x = torch.ones(256, 256, device="cuda")
        begin.record()
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            y = x @ x
            y.record_stream(side)
            work = dist.all_reduce(y, async_op=True)
        end.record(side)
        polls = 0
        while not work.is_completed():
            polls += 1
        print(polls, end.query(), begin.elapsed_time(end) if end.query() else None, side.query())
        torch.cuda.current_stream().wait_event(end)
        del y
        torch.cuda.synchronize()
        print(begin.elapsed_time(end), time.time() > 0, time.perf_counter(), torch.cuda.max_memory_allocated())
        time.sleep(0.25 * rank)
        dist.barrier()
        print(time.perf_counter())

    both(worker, capsys)


@triton.jit
def gathered(row, x, y):
    tl.store(y, tl.load(x + tl.load(row)))


def test_a_number_that_a_kernel_reads_is_no_look_of_the_program(capsys):
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        x, y = torch.arange(8.0, device="cuda"), torch.zeros(1, device="cuda")
        gathered[(1,)](torch.full((1,), 5, device="cuda"), x, y)
        print(y.item(), time.perf_counter())
        dist.barrier()

    both(worker, capsys)


def test_triton_kernels_compute_the_same(capsys):
    seen = []
    for isolation in ("carrier", "process"):

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            gpu_programs.kernbench_layers(rank, WORLD, 16)

        found = outcome(worker, isolation, WORLD, lambda: capsys.readouterr().out)
        seen.append([(*operation[:5], *operation[10:11]) for operation in found.operations])
    assert seen[0] == seen[1]


def test_ranks_of_one_gpu_share_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        torch.cuda.set_device(rank // 3)  # three of them on the first GPU, which is the first one's own
        held = torch.empty((15 + rank) << 30, dtype=torch.uint8, device="cuda")
        print(rank, "begins", torch.cuda.mem_get_info())
        dist.barrier()
        if rank == 1:
            try:
                torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                print(error, *error.__notes__)
        dist.barrier()
        if rank == 2:
            del held
            torch.cuda.empty_cache()
        dist.barrier()
        if rank == 0:  # some of it is cached, and goes back for the rest
            del held
            held = torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
        dist.barrier()
        print(rank, "ends", torch.cuda.mem_get_info())
        if rank == 1:
            return
        time.sleep(1)
        print(rank, "is left", torch.cuda.mem_get_info(), held_bytes())

    def held_bytes() -> int:
        return torch.cuda.memory_reserved()

    both(worker, capsys, enable_data=False)


def test_memory_that_another_rank_had_taken_unheard_is_reported() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(0)
        time.sleep(1 - rank)
        held = torch.empty(50 << 30, dtype=torch.uint8, device="cuda")  # the first one has not heard of the other then
        time.sleep(2)
        del held

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx, pytest.raises(kernbench.SpawnException) as failed:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation="process")
    error = failed.value.errors[0]
    assert isinstance(error, torch.OutOfMemoryError)
    line = inspect.getsourcelines(worker)[1] + 3
    assert f"test_parity.py:{line} in worker it reserved 50.00 GiB of GPU 0" in str(error)
    assert "beside its own 755.00 MiB; rank 1 has 50.74 GiB" in str(error)
