"""Threads of one rank that wait for GPUs: the others go on meanwhile, each with what it is doing itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import kernbench

WORK = 20_000_000
"""Cycles of ``torch.cuda._sleep``, whose clock has 1 GHz: 20 ms."""


@pytest.fixture(params=["carrier", "process"])
def in_rank(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., list[float]]:
    """Numbers that ``body()`` gives in a rank."""

    def run(body: Callable[[], list[float]], **options: object) -> list[float]:
        def worker(rank: int) -> None:
            (tmp_path / "found").write_text(" ".join(map(repr, body())))

        with kernbench.simulate("dgx_h100", **options) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=1, isolation=request.param)
        return [float(each) for each in (tmp_path / "found").read_text().split()]

    return run


def elapsed(work: Callable[[], object]) -> float:
    """Virtual ms."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def wait_on(gpu: int) -> float:
    """Wait for work on a GPU, by a value: when that is there, virtual ms."""
    with torch.cuda.device(gpu):
        torch.cuda._sleep(WORK)
        assert torch.ones(2, device="cuda").sum().item() == 2
    return time.perf_counter() * 1e3


@pytest.mark.parametrize("enable_data", [True, False])
def test_threads_wait_for_gpus_at_once(in_rank: Callable[..., list[float]], enable_data: bool) -> None:
    def body() -> list[float]:
        with ThreadPoolExecutor(3) as pool:
            return [elapsed(lambda: list(pool.map(wait_on, range(3))))]

    (took,) = in_rank(body, enable_data=enable_data)
    assert 20 < took < 21


def test_a_rank_works_while_its_thread_waits(in_rank: Callable[..., list[float]]) -> None:
    def body() -> list[float]:
        x = torch.ones(1 << 20, device="cuda")
        torch.cuda._sleep(WORK)
        ended = torch.cuda.Event()
        ended.record()
        with ThreadPoolExecutor(1) as pool:
            waited = pool.submit(elapsed, ended.synchronize)
            launched = elapsed(lambda: [x.add_(1) for _ in range(100)])
            time.sleep(0.005)
            return [waited.result(), launched, elapsed(torch.cuda.synchronize)]

    waited, launched, left = in_rank(body)
    assert 18 < waited < 21
    assert launched < 2
    assert left < 2  # the additions, behind what the thread has waited for


def test_a_thread_that_is_within_a_custom_operation_leaves_the_others_alone(
    in_rank: Callable[..., list[float]],
) -> None:
    """Nor do others see that one copies for the program, or calls a collective."""

    @torch.library.custom_op("kernbench_tests::waits", mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(WORK)
        return x + x.sum().item()

    def body() -> list[float]:
        x, begun = torch.ones(2, device="cuda"), threading.Event()

        def work() -> float:
            begun.set()
            return float(waits(x)[0])

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(work)
            begun.wait()
            time.sleep(0.001)
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                made = torch.ones(1 << 28, device="cuda")
                end.record()
            end.synchronize()
            return [begin.elapsed_time(end), float(made.is_cuda), found.result()]

    took, is_cuda, found = in_rank(body)
    assert took > 0.2  # a gigabyte is written: it is recorded, though a custom operation takes no time of its own
    assert (is_cuda, found) == (1.0, 3.0)


def test_what_a_thread_has_waited_for_is_what_was_there_when_it_began() -> None:
    """What another one enqueues meanwhile is not over: reading its memory from another stream is a race."""

    def worker(rank: int) -> None:
        x, side = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream()
        torch.cuda._sleep(WORK)
        with ThreadPoolExecutor(1) as pool:
            waited = pool.submit(torch.cuda.synchronize)
            time.sleep(0.001)
            x.add_(1)
            waited.result()
        with torch.cuda.stream(side):
            x.sum()

    with kernbench.simulate("dgx_h100", races="warn") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        (race,) = ctx.simulation.order.races.found
    assert "add_" in str(race)


@pytest.mark.parametrize("chooses", [False, True])
@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_new_thread_is_on_the_first_gpu(isolation: str, chooses: bool, tmp_path: Path) -> None:
    """As with CUDA, whose current device is each thread's own; unless the program has chosen none: that is its rank's here."""

    def worker(rank: int) -> None:
        if chooses:
            torch.cuda.set_device(rank)
        with torch.cuda.device(rank):
            torch.ones(1, device="cuda")
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(lambda: torch.ones(1, device="cuda").device.index).result()
            again = pool.submit(torch.cuda.current_device).result()
        own = torch.ones(1, device="cuda").device.index
        (tmp_path / str(rank)).write_text(f"{made} {again} {own}")

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
        said = [each for each in ctx.simulation.remarks if "in a thread that has not called" in each]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["0 0 0", "0 0 1" if chooses else "1 1 1"]
    assert len(said) == chooses
