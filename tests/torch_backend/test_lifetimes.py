"""A simulation that has ended leaves nothing behind: no context, no thread, no file descriptor, no object of ours."""

from __future__ import annotations

import contextlib
import gc
import os
import time
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import kernbench


def train(rank: int) -> None:
    dist.init_process_group("gloo")
    layer = torch.nn.Linear(4, 4)
    layer(torch.ones(2, 4)).sum().backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad)
    torch.ones(3, device="cuda")
    group = dist.new_group([0, 1])
    dist.barrier(group) if rank < 2 else None


def fail(rank: int) -> None:
    train(rank)
    if rank == 1:
        raise ValueError("on purpose")
    dist.barrier()


def simulate_once(body, isolation: str = "carrier") -> list[weakref.ref]:
    with kernbench.simulate() as ctx:
        found = [weakref.ref(ctx), weakref.ref(ctx.engine)]
        if isolation == "greenlet":
            ctx.multiprocessing.spawn(
                lambda rank: ctx.distributed.all_reduce(ctx.ones(4)), nprocs=3, isolation=isolation
            )
            return found
        with pytest.raises(kernbench.SpawnException) if body is fail else contextlib.nullcontext():
            ctx.multiprocessing.spawn(body, nprocs=3)
    return found


@pytest.mark.parametrize(("body", "isolation"), [(train, "carrier"), (fail, "carrier"), (train, "greenlet")])
def test_a_context_is_collected_after_its_end(body, isolation):
    references = simulate_once(body, isolation)
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def ours() -> Counter[str]:
    """Live objects of kernbench's classes, by class."""
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    return Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("kernbench."))


def system_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads and descriptors as Linux shows them")
def test_spawn_after_spawn_nothing_grows():
    for _ in range(2):
        simulate_once(train)
        simulate_once(fail)
    objects, threads, descriptors = ours(), system_threads(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        simulate_once(train)
        simulate_once(fail)
    assert ours() - objects == Counter()
    assert system_threads() <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.mark.long  # seconds
def test_many_spawns_in_one_context_do_not_pile_up():
    with kernbench.simulate() as ctx:
        for _ in range(2):
            ctx.multiprocessing.spawn(train, nprocs=3)
        per_spawn = {"Operation", "MemoryRange", "Call", "CollectiveTrace", "PlanRun", "Request", "Collective", "ProcessGroup",
                     "Signature", "Location", "TransferPlan", "Arrival", "Ledger", "Extent"}  # fmt: skip
        before = ours()
        for _ in range(3):
            ctx.multiprocessing.spawn(train, nprocs=3)
        grown = {name for name, count in (ours() - before).items() if count >= 3}
        assert grown <= per_spawn  # what the log and its records are made of


def test_a_look_at_the_clock_keeps_nothing() -> None:
    """A frame that has itself lives, with its callers, until it is collected."""
    left = []

    def looks() -> None:
        held = torch.ones(64, device="cuda")
        held.add_(time.perf_counter())

    def body(rank: int) -> None:
        gc.disable()
        try:
            looks()
            left.append(torch.cuda.memory_allocated())
        finally:
            gc.enable()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    assert left == [0]
