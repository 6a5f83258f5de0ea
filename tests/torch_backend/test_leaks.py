"""Greenlet ranks share a thread: waiting with some of torch's per-thread state changed is an error that says what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import kernbench
from kernbench.torch_backend.rank_state import greenlets


@contextmanager
def _grad_mode() -> Iterator[None]:
    torch.set_grad_enabled(False)
    try:
        yield
    finally:
        torch.set_grad_enabled(True)


@contextmanager
def _hooks() -> Iterator[None]:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        yield


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


LEAKS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]] = {
    "no_grad": (torch.no_grad, "grad mode"),
    "set_grad_enabled": (_grad_mode, "grad mode"),
    "inference_mode": (torch.inference_mode, "inference_mode"),
    "autocast": (lambda: torch.autocast("cpu"), "autocast"),
    "device": (lambda: torch.device("meta"), "function mode"),
    "function mode": (_FunctionMode, "function mode"),
    "dispatch mode": (_DispatchMode, "dispatch mode"),
    "anomaly": (torch.autograd.detect_anomaly, "detect_anomaly"),
    "saved tensors": (_hooks, "saved_tensors_hooks"),
    "profiler": (lambda: torch.autograd.profiler.profile(), "profiler"),
}

WAITS: dict[str, Callable[[Any], Any]] = {
    "collective": lambda ctx: ctx.distributed.barrier(),
    "sleep": lambda ctx: ctx.sleep(1e-3),
}


@pytest.mark.parametrize("wait", list(WAITS))
@pytest.mark.parametrize("leak", list(LEAKS))
@pytest.mark.filterwarnings("ignore:Anomaly")
def test_waiting_inside_is_an_error(leak: str, wait: str) -> None:
    enter, named = LEAKS[leak]
    after: list[bool] = []

    def body(rank: int, ctx: Any) -> None:
        ctx.distributed.init_process_group()
        with enter():
            torch.ones(2) + 1  # without a wait, anything goes
        ctx.distributed.barrier()
        if rank == 1:
            with enter():
                try:
                    WAITS[wait](ctx)
                finally:
                    after.append(True)
        ctx.distributed.barrier()

    with kernbench.simulate() as ctx:
        with pytest.raises(kernbench.SpawnException) as caught:
            ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=2, isolation="greenlet")
        assert ctx.scheduler.before_switch is None
    (error,) = caught.value.errors.values()
    assert isinstance(error, kernbench.KernbenchError)
    assert "rank 1" in str(error)
    assert named in str(error)
    assert "isolation='carrier'" in str(error)
    assert after
    assert torch.is_grad_enabled()


def test_waiting_inside_backward_is_an_error() -> None:
    def body(rank: int, ctx: Any) -> None:
        ctx.distributed.init_process_group()
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.register_hook(lambda grad: ctx.distributed.barrier())
        y.sum().backward()

    with kernbench.simulate() as ctx, pytest.raises(kernbench.SpawnException, match="backward pass"):
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=2, isolation="greenlet")


def test_what_main_has_set_holds_for_all() -> None:
    seen = []

    def body(rank: int, ctx: Any) -> None:
        ctx.distributed.init_process_group()
        with torch.no_grad():
            ctx.distributed.barrier()
        seen.append(torch.is_grad_enabled())

    with kernbench.simulate() as ctx, torch.no_grad():
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=2, isolation="greenlet")
    assert seen == [False, False]


def test_it_may_wait_again_when_the_error_is_caught() -> None:
    def body(rank: int, ctx: Any) -> None:
        ctx.distributed.init_process_group()
        with torch.no_grad(), pytest.raises(kernbench.KernbenchError, match="grad mode"):
            ctx.sleep(1e-3)
        ctx.distributed.barrier()
        assert ctx.scheduler.before_switch is None  # and a switch looks no more

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=2, isolation="greenlet")


def test_functions_are_torchs_own_again() -> None:
    before = [getattr(owner, name) for owner, name in greenlets.ENTRIES]
    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(lambda rank: None, nprocs=2, isolation="greenlet")
    assert [getattr(owner, name) for owner, name in greenlets.ENTRIES] == before


def test_ranks_of_one_thread_that_wait_in_a_copy_leave_the_dispatcher_as_it_was() -> None:
    """A copy to a GPU waits, and other ranks run meanwhile: not as if they were in that operation."""

    def body(rank: int, ctx: kernbench.RuntimeContext) -> None:
        for _ in range(2):
            x = ctx.empty(4)
            x.copy_(torch.full((4,), float(rank)))
            assert (torch.ones(1, requires_grad=True) * 2).grad_fn is not None
        assert x.tolist() == [float(rank)] * 4

    with kernbench.simulate("sip8") as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=3, isolation="greenlet")
    assert (torch.ones(1, requires_grad=True) * 2).grad_fn is not None


BEYOND = {
    "init_process_group": lambda: torch.distributed.init_process_group("gloo"),
    "current_device": lambda: torch.cuda.current_device(),
}


@pytest.mark.parametrize("what", BEYOND)
def test_what_looks_beyond_the_simulation_is_refused(what: str) -> None:
    """A group of torch's own waited for processes that were not there."""

    def body(rank: int) -> None:
        with pytest.raises(kernbench.KernbenchError, match="isolation='carrier'"):
            BEYOND[what]()

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2, isolation="greenlet")
