"""Random programs give the same values, times and memory in every way to run them, and have no races."""

from __future__ import annotations

import gc
import multiprocessing
import time
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from hypothesis import Phase, given, settings

import kernbench
from tests.pairs.statements import STATEMENTS, WORLD, Own

PROGRAMS = st.lists(st.tuples(st.sampled_from(sorted(STATEMENTS)), st.integers(0, 99)), min_size=2, max_size=12)
"""Names of statements, each with the seed of its random numbers."""

WAYS: dict[str, dict[str, Any]] = {
    "again": {},
    "process": {"isolation": "process"},
    "no_data": {"enable_data": False},
    "no_data_process": {"enable_data": False, "isolation": "process"},
    "races": {"races": "error"},
    "weak": {"memory": "weak"},
    "filled": {"fill_uninitialized": "nan"},
}


def _rank(rank: int, program: list[tuple[str, int]], found: Any) -> None:
    # Garbage is collected at one point of all runs, where no rank is still making any: carriers share a collector.
    gc.disable()
    torch._dynamo.config.run_gc_after_compile = False
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    own = Own(rank)
    for name, seed in program:
        STATEMENTS[name](own, Random(seed))
    for work in own.works:
        work.wait()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    dist.barrier()
    gc.collect()
    seen = [*own.seen, time.perf_counter(), peak, torch.cuda.memory_allocated()]
    results = [each.cpu() for each in own.results]
    found.put((rank, seen, [(each.dtype, each.shape, each.flatten().view(torch.uint8).tolist()) for each in results]))
    dist.destroy_process_group()


def _run(program: list[tuple[str, int]], isolation: str = "carrier", **options: Any) -> list[Any]:
    """By rank: its number, what it has seen, its values."""
    found = multiprocessing.get_context("fork").SimpleQueue()
    with kernbench.simulate("dgx_h100", **options) as ctx:
        ranks = ctx.multiprocessing.spawn(_rank, (program, found), nprocs=WORLD, isolation=isolation, join=False)
        of_ranks = sorted(found.get() for _ in range(WORLD))
        while not ranks.join():
            pass
    return of_ranks


def _check(program: list[tuple[str, int]], ways: list[str]) -> None:
    wanted = _run(program)
    for way in ways:
        for (rank, seen, values), (_, wanted_seen, wanted_values) in zip(
            _run(program, **WAYS[way]), wanted, strict=True
        ):
            assert seen == wanted_seen, (way, rank)
            if WAYS[way].get("enable_data", True):
                assert values == wanted_values, (way, rank)


@settings(max_examples=2, derandomize=True, phases=(Phase.generate,))
@given(PROGRAMS)
def test_a_random_program_is_the_same_in_every_way(program):
    _check(program, list(WAYS))


@pytest.mark.long
@settings(max_examples=40, derandomize=True, phases=(Phase.generate, Phase.shrink))
@given(PROGRAMS)
def test_many_random_programs_are_the_same_in_every_way(program):
    _check(program, list(WAYS))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_is_the_same_in_every_way(name):
    _check([(name, 0), (name, 1)], list(WAYS))
