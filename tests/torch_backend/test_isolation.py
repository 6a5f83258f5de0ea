"""What belongs to a process belongs to a rank, and nothing is left afterwards."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.fx.experimental.proxy_tensor import make_fx

import kernbench
from tests.torch_backend.conftest import Ranks


def test_random_generators_are_each_ranks_own(ranks: Ranks) -> None:
    def body() -> tuple[float, float, float]:
        rank = dist.get_rank()
        random.seed(rank)
        np.random.seed(rank)
        torch.manual_seed(rank)
        random.random(), np.random.randn(), torch.rand(1)
        dist.barrier()  # others use theirs
        return random.random(), float(np.random.randn()), torch.rand(1).item()

    for rank, (python, numpy, of_torch) in enumerate(ranks(body)):
        own, state, generator = random.Random(rank), np.random.RandomState(rank), torch.Generator().manual_seed(rank)
        own.random(), state.randn(), torch.rand(1, generator=generator)
        assert python == own.random()
        assert numpy == state.randn()
        assert of_torch == torch.rand(1, generator=generator).item()


def test_ranks_draw_different_numbers_and_the_same_in_every_run(ranks: Ranks) -> None:
    def body() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), float(np.random.rand())

    first = ranks(body)
    assert len(set(first)) == len(first)
    assert first == ranks(body)


def test_environment_and_default_dtype(ranks: Ranks) -> None:
    def body() -> tuple[str, str, torch.dtype]:
        rank = dist.get_rank()
        os.environ["KERNBENCH_TEST"] = str(rank)
        if rank == 1:
            torch.set_default_dtype(torch.float64)
        dist.barrier()
        return os.environ["RANK"], os.environ["KERNBENCH_TEST"], torch.ones(1).dtype

    kinds = [torch.float32, torch.float64, torch.float32, torch.float32]
    assert ranks(body) == [(str(rank), str(rank), kind) for rank, kind in enumerate(kinds)]
    assert "KERNBENCH_TEST" not in os.environ
    assert os.system('test -z "$KERNBENCH_TEST"') == 0


def test_command_line_path_and_working_directory(ranks: Ranks, tmp_path: Path) -> None:
    before = os.getcwd(), [*sys.argv], [*sys.path]

    def body() -> tuple[str, list[str], str]:
        rank = dist.get_rank()
        sys.argv.append(f"--rank={rank}")
        sys.path.insert(0, f"/nowhere/{rank}")
        if rank != 1:
            (tmp_path / str(rank)).mkdir()
            os.chdir(tmp_path / str(rank))
        dist.barrier()
        return os.getcwd(), sys.argv[len(before[1]) :], sys.path[0]

    folders = [before[0] if rank == 1 else str(tmp_path / str(rank)) for rank in range(4)]
    assert ranks(body) == [(folders[rank], [f"--rank={rank}"], f"/nowhere/{rank}") for rank in range(4)]
    assert (os.getcwd(), sys.argv, sys.path) == before


def test_where_a_rank_prints(ranks: Ranks) -> None:
    """One that redirects its output while it waits for the others has its own text there, and they theirs."""

    def body() -> tuple[str, bool]:
        before, own = sys.stdout, io.StringIO()
        if dist.get_rank() != 1:
            with contextlib.redirect_stdout(own):
                dist.barrier()
                print(dist.get_rank())
                dist.barrier()
                if dist.get_rank() == 0:  # the first to begin ends first
                    dist.barrier()
            if dist.get_rank() != 0:
                dist.barrier()
        else:
            for _ in range(3):
                dist.barrier()
                print("of rank 1")
        return own.getvalue(), sys.stdout is before

    outside = sys.stdout
    assert ranks(body) == [(f"{rank}\n" if rank != 1 else "", True) for rank in range(len(ranks(body)))]
    assert sys.stdout is outside


def test_the_debug_level(ranks: Ranks) -> None:
    """Also as the environment says: C++ reads the process's."""
    before = dist.get_debug_level()

    def body() -> dist.DebugLevel:
        rank = dist.get_rank()
        if rank < 2:
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = ("DETAIL", "INFO")[rank]
        dist.barrier()
        if rank < 3:
            dist.set_debug_level_from_env()
        dist.barrier()
        return dist.get_debug_level()

    assert ranks(body) == [dist.DebugLevel.DETAIL, dist.DebugLevel.INFO, dist.DebugLevel.OFF, before]
    assert dist.get_debug_level() == before
    assert os.system('test -z "$TORCH_DISTRIBUTED_DEBUG"') == 0


def test_deterministic_algorithms(ranks: Ranks) -> None:
    def body() -> tuple[bool, bool, bool, bool]:
        rank = dist.get_rank()
        first = torch.are_deterministic_algorithms_enabled()
        dist.barrier()
        if rank < 2:
            torch.use_deterministic_algorithms(True, warn_only=rank == 1)
        dist.barrier()
        found = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        if rank == 0:
            torch.use_deterministic_algorithms(False)
        dist.barrier()
        return first, *found, torch.are_deterministic_algorithms_enabled()

    off = (False,) * 4
    assert ranks(body) == [(False, True, False, False), (False, True, True, True), off, off]
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_debug_mode_of_deterministic_algorithms(ranks: Ranks) -> None:
    """The other name of the same setting; what was set before is there again in the end, as it was."""

    def body() -> int:
        torch.set_deterministic_debug_mode(("default", "warn", "error", "error")[dist.get_rank()])
        dist.barrier()
        return torch.get_deterministic_debug_mode()

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert ranks(body) == [0, 1, 2, 2]
        assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_submodule_is_bound_for_all_who_import_it(ranks: Ranks) -> None:
    """Though that name has been set before, to leave the import out, say."""
    name = "torch.distributed._mesh_layout"
    module = importlib.import_module(name)

    def body() -> bool:
        if dist.get_rank() == 0:
            dist._mesh_layout = None
            del sys.modules[name]
            importlib.import_module(name)
        dist.barrier()
        return dist._mesh_layout is sys.modules[name]

    try:
        assert ranks(body) == [True] * 4
    finally:
        dist._mesh_layout = sys.modules[name] = module


def test_thread_local_modes_do_not_leak(ranks: Ranks) -> None:
    def body() -> bool:
        if dist.get_rank() == 0:
            with torch.no_grad():
                dist.barrier()
                return torch.is_grad_enabled()
        dist.barrier()
        return torch.is_grad_enabled()

    assert ranks(body) == [False, True, True, True]


@pytest.fixture
def stateful() -> Any:
    """A module that keeps state in a rebound name and in a list."""
    module = ModuleType("kernbench_stateful")
    exec("COUNT = 0\nSEEN = []\ndef bump(x):\n    global COUNT\n    COUNT += x\n    SEEN.append(x)", vars(module))
    vars(module)["bump"].__module__ = module.__name__
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_per_rank_modules(ranks: Ranks, stateful: Any) -> None:
    def body() -> tuple[int, list[int], object]:
        rank = dist.get_rank()
        stateful.bump(rank)
        stateful.label = f"rank {rank}"  # set from outside
        dist.barrier()
        stateful.bump(10)
        return stateful.COUNT, stateful.SEEN, stateful.label

    expected = [(rank + 10, [rank, 10], f"rank {rank}") for rank in range(4)]
    assert ranks(body, per_rank_modules=["kernbench_stateful"]) == expected
    assert (stateful.COUNT, stateful.SEEN) == (0, [])
    assert not hasattr(stateful, "label")
    assert type(stateful) is ModuleType


def test_clocks(ranks: Ranks) -> None:
    def body() -> tuple[float, bool]:
        begin = time.perf_counter()
        time.sleep(dist.get_rank() * 10.0)
        slept = time.perf_counter() - begin
        while time.time() < 1e9 + 60:  # polling ends
            pass
        return slept, time.monotonic() < 1e6

    assert [round(slept, 3) for slept, _ in ranks(body)] == [0.0, 10.0, 20.0, 30.0]


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_the_time_of_a_process_is_virtual_too_and_does_not_pass_while_it_sleeps(isolation: Any, tmp_path: Path) -> None:
    def worker(rank: int) -> None:
        begins = time.process_time(), time.thread_time(), time.process_time_ns()
        time.sleep(10.0)
        torch.cuda._sleep(20_000_000)  # of a clock of 1 GHz
        torch.cuda.synchronize()
        ends = time.process_time(), time.thread_time(), time.process_time_ns() / 1e9
        begins = *begins[:2], begins[2] / 1e9
        (tmp_path / f"{isolation}-{rank}").write_text(
            repr([end - begin for begin, end in zip(begins, ends, strict=True)])
        )

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
    for rank in range(2):
        assert eval((tmp_path / f"{isolation}-{rank}").read_text()) == pytest.approx([0.02] * 3, rel=0.02)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left(fails: bool) -> None:
    watched = [
        (dist.distributed_c10d, "_world"), (dist, "TCPStore"), (torch.cuda, "is_available"), (torch, "tensor"),
        (torch.Tensor, "to"), (torch.Tensor, "device"), (time, "sleep"), (time, "time"), (random, "random"),
        (np.random, "rand"), (sys, "excepthook"), (torch, "Generator"), (torch.accelerator, "current_accelerator"),
    ]  # fmt: skip
    before = [getattr(owner, name) for owner, name in watched]
    state, threads, environment = torch.get_rng_state(), torch.get_num_threads(), dict(os.environ)
    meta_path = list(sys.meta_path)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.rand(3, device="cuda")
        if fails:
            raise ValueError

    with kernbench.simulate() as ctx:
        if fails:
            with pytest.raises(kernbench.SpawnException):
                ctx.multiprocessing.spawn(worker, nprocs=2)
        else:
            ctx.multiprocessing.spawn(worker, nprocs=2)
    assert [getattr(owner, name) for owner, name in watched] == before
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_num_threads(), dict(os.environ), sys.meta_path) == (threads, environment, meta_path)
    assert not dist.is_initialized()
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        torch.zeros(1, device="cuda")


def test_what_ranks_replace_with_mock_is_their_own(ranks: Ranks) -> None:
    """Attributes of classes and of modules that all ranks share, while the others run, and while they replace the same."""
    stock = torch.Tensor.backward, torch.nn.functional.relu, torch.nn.Module.extra_repr

    def body() -> Any:
        rank = dist.get_rank()
        with (
            mock.patch.object(torch.Tensor, "backward", autospec=True, side_effect=stock[0]) as backward,
            mock.patch("torch.nn.functional.relu", wraps=stock[1]) as relu,
        ):
            for _ in range(rank + 1):
                torch.nn.functional.relu(torch.ones(4, requires_grad=True)).sum().backward()
            dist.barrier()
            if rank == 1:
                with mock.patch.object(torch.nn.Module, "extra_repr", return_value="another"):
                    dist.barrier()
                    mine = repr(torch.nn.Identity())
            else:
                dist.barrier()
                mine = repr(torch.nn.Identity())
            dist.barrier()
        dist.barrier()
        assert (torch.Tensor.backward, torch.nn.functional.relu) == stock[:2]
        return [backward.call_count, relu.call_count, mine]

    assert ranks(body, 3) == [[1, 1, "Identity()"], [2, 2, "Identity(another)"], [3, 3, "Identity()"]]
    assert (torch.Tensor.backward, torch.nn.functional.relu, torch.nn.Module.extra_repr) == stock


@mock.patch.dict(os.environ, {"NAME_OF_A_TEST": "its own"})
@mock.patch.object(torch.nn.Identity, "extra_repr", return_value="another")
def _with_decorators(extra_repr: mock.MagicMock) -> tuple[int, str]:
    """What ranks call at a time; the first one that has come leaves first."""
    for _ in range(dist.get_rank() + 1):
        repr(torch.nn.Identity())
    dist.barrier()
    return extra_repr.call_count, os.environ["NAME_OF_A_TEST"]


def test_ranks_are_within_one_decorator_of_mock_at_a_time(ranks: Ranks) -> None:
    def body() -> list[Any]:
        os.environ["NAME_OF_A_TEST"] = str(dist.get_rank())
        found = _with_decorators()
        dist.barrier()
        return [*found, repr(torch.nn.Identity()), os.environ["NAME_OF_A_TEST"]]

    assert ranks(body, 3) == [[n + 1, "its own", "Identity()", str(n)] for n in range(3)]
    assert ("NAME_OF_A_TEST" in os.environ, repr(torch.nn.Identity())) == (False, "Identity()")


def test_a_trace_is_of_the_rank_that_makes_it(ranks: Ranks) -> None:
    """While one traces, and waits for a collective, others run layers, and trace, too."""

    def waits(x: torch.Tensor) -> torch.Tensor:
        dist.barrier()
        return x + 1

    def body() -> list[Any]:
        rank, x = dist.get_rank(), torch.ones(2)
        if rank == 2:
            dist.barrier()
            found: list[Any] = [torch.fx._symbolic_trace.is_fx_tracing(), torch.nn.Linear(2, 1)(x).shape]
        else:
            traced = make_fx(waits)(x)
            found = [torch.fx._symbolic_trace.is_fx_tracing(), traced(x).tolist()]
        dist.barrier()
        return found

    assert ranks(body, 3) == [[False, [2.0, 2.0]], [False, [2.0, 2.0]], [False, torch.Size([1])]]


def test_a_package_that_kept_the_functions_of_time_has_the_ranks_clock(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ModuleType("progress_bars.bar")
    kept.perf_counter, kept.sleep = time.perf_counter, time.sleep  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kept.__name__, kept)
    stock = kept.perf_counter

    def body() -> float:
        begin: float = kept.perf_counter()
        kept.sleep(1000.0)
        return float(kept.perf_counter() - begin)

    assert all(1000 <= passed < 1000.1 for passed in ranks(body))
    assert kept.perf_counter is stock
