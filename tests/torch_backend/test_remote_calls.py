"""``torch.distributed.rpc`` in ranks: it is set up, asked who there is, and shut down; calls are refused in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc

import kernbench

BOTH = pytest.mark.parametrize("isolation", ["carrier", "process"])


def _begin(rank: int, **options: Any) -> None:
    """As test suites do before every test: both at once, by an address of its own each."""
    dist.init_process_group("gloo", init_method="tcp://localhost:29511", rank=rank, world_size=3)
    rpc.init_rpc(
        f"Test{rank}", rank=rank, world_size=3, backend=rpc.BackendType.TENSORPIPE,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method="tcp://localhost:29512"), **options,
    )  # fmt: skip


def _end() -> None:
    rpc.shutdown()
    dist.destroy_process_group()


def _meets_the_others(rank: int) -> None:
    _begin(rank)
    assert [(info.id, info.name) for info in rpc.api._get_current_rpc_agent().get_worker_infos()] == [
        (each, f"Test{each}") for each in range(3)
    ]
    mine, last = rpc.get_worker_info(), rpc.get_worker_info("Test2")
    assert (mine.id, mine.name, last.id) == (rank, f"Test{rank}", 2)
    with pytest.raises(RuntimeError, match="Unknown destination worker Nobody"):
        rpc.get_worker_info("Nobody")
    with pytest.raises(RuntimeError, match="RPC is already initialized"):
        rpc.init_rpc("again", rank=rank, world_size=3)
    assert rpc.api._all_gather(rank * 10) == {"Test0": 0, "Test1": 10, "Test2": 20}
    if rank != 1:
        assert rpc.api._all_gather(rank, {"Test0", "Test2"}) == {"Test0": 0, "Test2": 2}
    x = torch.full((2,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [3.0, 3.0]
    _end()
    with pytest.raises(RuntimeError, match="RPC has not been initialized"):
        rpc.get_worker_info()
    _begin(rank)  # for the next test
    _end()


def _refuses_calls(rank: int) -> None:
    _begin(rank)
    calls: dict[str, Callable[[], Any]] = {
        r"rpc_sync\('Test1', _calls\.<locals>\.double\)": lambda: rpc.rpc_sync("Test1", double, args=(1,)),
        r"rpc_async\('Test1', _calls\.<locals>\.double\)": lambda: rpc.rpc_async("Test1", double, args=(1,)),
        r"remote\('Test1', _calls\.<locals>\.double\)": lambda: rpc.remote("Test1", double, args=(1,)),
        r"RRef\(Tensor\)": lambda: rpc.RRef(torch.ones(1)),
    }
    for words, call in calls.items():
        with pytest.raises(kernbench.KernbenchError, match=f"{words}: remote procedure calls are not simulated"):
            call()
    _end()


def _calls() -> Callable[[int], int]:
    def double(x: int) -> int:
        return 2 * x

    return double


double = _calls()


def _waits_for_all(rank: int) -> None:
    _begin(rank)
    with pytest.raises(TypeError, match="must be a member of BackendType"):
        rpc.init_rpc("other", backend="tensorpipe")  # type: ignore[arg-type]
    if rank == 2:
        dist.barrier()
        rpc.shutdown(graceful=False)
        return
    dist.barrier()
    rpc.shutdown()  # waits for the last one, which has gone without a word


@BOTH
@pytest.mark.parametrize("body", [_meets_the_others, _refuses_calls])
def test_remote_calls(body, isolation):
    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=3, isolation=isolation)


def test_a_shutdown_that_waits_for_a_worker_that_has_gone_is_found():
    with kernbench.simulate() as ctx, pytest.raises(kernbench.SpawnException) as failed:
        ctx.multiprocessing.spawn(_waits_for_all, nprocs=3)
    assert "Test2" in str(failed.value)


def _has_the_name_of_another(rank: int) -> None:
    with pytest.raises(RuntimeError, match="worker name same is not unique"):
        rpc.init_rpc("same", rank=rank, world_size=2)


def test_names_are_unique():
    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(_has_the_name_of_another, nprocs=2)
