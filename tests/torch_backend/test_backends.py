"""Backends: those that a program registers, those whose classes it calls itself, and what their operations promise."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from tests.torch_backend.conftest import Ranks

c10d: Any = dist.distributed_c10d


def spawn(body: Any, world_size: int = 2) -> list[Any]:
    """What ``body(rank)`` returns in each rank."""
    results: list[Any] = [None] * world_size

    def worker(rank: int) -> None:
        results[rank] = body(rank)

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=world_size)
    return results


class Doubling(dist.ProcessGroup):  # type: ignore[misc]
    """A third party's group: its all-reduce doubles."""

    def getBackendName(self) -> str:
        return "Doubling"

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors[0].mul_(2)
        done: Any = torch.futures.Future()
        done.set_result(tensors)
        return torch._C._distributed_c10d._create_work_from_future(done)


@pytest.mark.parametrize("backend", ["doubling", "doubling:one"])
def test_a_registered_backend_is_the_programs_own(backend: str) -> None:
    def body(rank: int) -> Any:
        dist.Backend.register_backend(backend, lambda store, rank, size, timeout: Doubling(rank, size), devices=["cpu"])
        dist.init_process_group(backend, rank=rank, world_size=2)
        x = torch.ones(2)
        dist.all_reduce(x)
        name = type(dist.group.WORLD).__name__
        dist.destroy_process_group()
        return x.tolist(), name

    assert spawn(body) == [([2.0, 2.0], "Doubling")] * 2
    assert not dist.is_backend_available(backend)  # forgotten with the ranks that registered it


def test_a_backend_of_the_simulation_beside_a_registered_one_is_an_error() -> None:
    def body(rank: int) -> None:
        dist.Backend.register_backend("doubling", lambda *args: None, devices=["cuda"])
        with pytest.raises(kernbench.KernbenchError, match="doubling is not of the simulation"):
            dist.init_process_group("cpu:gloo,cuda:doubling", rank=rank, world_size=2)

    spawn(body)


def test_a_backends_class_makes_a_group() -> None:
    def body(rank: int) -> Any:
        store = dist.FileStore("somewhere", 2)
        gloo = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=5))
        options = c10d.ProcessGroupNCCL.Options()
        nccl = c10d.ProcessGroupNCCL(store, rank, 2, options)
        x = torch.tensor([rank + 1.0])
        gloo.allreduce([x]).wait()
        y = torch.tensor([rank + 1.0], device="cuda")
        nccl.allreduce([y]).wait()
        kinds = [
            isinstance(group, kind) for group in (gloo, nccl) for kind in (dist.ProcessGroupGloo, c10d.ProcessGroupNCCL)
        ]
        return x.item(), y.item(), kinds

    assert spawn(body) == [(3.0, 3.0, [True, False, False, True])] * 2
    with pytest.raises(TypeError):
        dist.ProcessGroupGloo()  # torch's own again


def test_the_timeout_of_a_group_is_changed(ranks: Ranks) -> None:
    def body() -> Any:
        c10d._set_pg_timeout(timedelta(seconds=3), dist.group.WORLD)
        return dist.group.WORLD.timeout.total_seconds()  # type: ignore[union-attr]

    assert ranks(body, 2) == [3.0, 3.0]


def test_premultiplied_sums(ranks: Ranks) -> None:
    def body() -> Any:
        op = dist._make_nccl_premul_sum(0.25)
        x = torch.full((2,), dist.get_rank() + 1.0)
        dist.all_reduce(x, op)
        pieces = torch.arange(4.0)
        mine = torch.empty(2)
        dist.reduce_scatter_tensor(mine, pieces, op)
        return x.tolist(), mine.tolist(), pieces.tolist()

    whole = [0.0, 1.0, 2.0, 3.0]
    assert ranks(body, 2) == [([0.75, 0.75], [0.0, 0.5], whole), ([0.75, 0.75], [1.0, 1.5], whole)]


def test_autograd_does_not_notice_what_a_collective_writes(ranks: Ranks) -> None:
    """As on hardware: the backward pass reads what is in the memory then (relu's: where the result is positive)."""

    def body() -> Any:
        x = torch.tensor([-1.0, 2.0], requires_grad=True)
        y = torch.relu(x)
        version = y._version
        dist.all_reduce(y.detach())
        received = y.detach()
        (dist.send if dist.get_rank() == 0 else dist.recv)(received, 1 - dist.get_rank())
        y.sum().backward()
        assert x.grad is not None
        return y._version - version, y.tolist(), x.grad.tolist()

    assert ranks(body, 2) == [(0, [0.0, 4.0], [0.0, 1.0])] * 2


def test_detail_finds_a_mismatch_in_the_call() -> None:
    level = dist.get_debug_level()

    def body(rank: int) -> Any:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        dist.init_process_group("gloo")
        with pytest.raises(kernbench.CollectiveMismatchError):
            dist.all_reduce(torch.ones(2 + rank), async_op=True)  # it has no waiter

    spawn(body)
    assert dist.get_debug_level() == level


@pytest.mark.parametrize("level", [dist.DebugLevel.OFF, dist.DebugLevel.DETAIL])
def test_no_group_is_a_wrapper_of_another(level: Any) -> None:
    """Programs that look for the backend inside of one ask that first."""

    def body(rank: int) -> Any:
        dist.set_debug_level(level)
        dist.init_process_group("nccl")
        wrapper: Any = dist.distributed_c10d._ProcessGroupWrapper  # type: ignore[attr-defined]
        group: Any = dist.group.WORLD
        return [isinstance(each, wrapper) for each in (group, group._get_backend(torch.device("cuda")))]

    assert spawn(body) == [[False, False]] * 2


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_detail_logs_hashes_of_objects(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """Which torch takes from a function that only its builds with NCCL have."""
    functions = torch._C._distributed_c10d
    own = getattr(functions, "_hash_tensors", None)

    def body(rank: int) -> Any:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        dist.init_process_group(backend)
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, {"of": rank})
        return objects

    with caplog.at_level("WARNING", logger="torch.distributed"):
        assert spawn(body) == [[{"of": 0}, {"of": 1}]] * 2
    hashes = [record.args[-1] for record in caplog.records if "hash value" in record.message]
    if backend == "nccl":
        assert len(hashes) == 6  # of what each sends, and of what each receives
        assert len(set(hashes)) == 2
    else:
        assert not hashes
    assert getattr(functions, "_hash_tensors", None) is own


def test_a_store_that_is_polled_lets_the_others_run() -> None:
    def body(rank: int) -> Any:
        store = dist.FileStore("polled", 2)
        if rank == 0:
            while store.add("arrived", 0) < 1:
                pass
            while not store.check(["done"]):
                pass
        else:
            store.add("arrived", 1)
            store.set("done", "")
        return store.num_keys()

    assert spawn(body) == [2, 2]


def test_polling_for_ever_is_a_deadlock() -> None:
    def body(rank: int) -> None:
        store = dist.FileStore("polled", 2)
        while not store.check(["never"]):
            pass

    with pytest.raises(kernbench.SpawnException) as caught:
        spawn(body)
    assert all(isinstance(error, kernbench.DeadlockError) for error in caught.value.errors.values())


def test_c_plus_plus_keeps_a_store_usable() -> None:
    def body(rank: int) -> Any:
        prefixed = dist.PrefixStore("a", dist.HashStore())  # nothing in Python keeps what is inside
        prefixed.set("key", "value")
        return prefixed.get("key"), prefixed.num_keys(), prefixed.delete_key("key"), prefixed.num_keys()

    assert spawn(body) == [(b"value", 1, True, 0)] * 2


def test_a_function_that_a_rank_replaces_is_its_own(ranks: Ranks) -> None:
    def body() -> Any:
        calls: list[int] = []
        stock = dist.all_reduce
        dist.barrier()

        def counting(*args: Any, **kwargs: Any) -> Any:
            calls.append(dist.get_rank())
            return stock(*args, **kwargs)

        dist.all_reduce = counting
        dist.barrier()
        dist.all_reduce(torch.ones(1))
        return calls

    stock = dist.all_reduce
    assert ranks(body, 3) == [[0], [1], [2]]
    assert dist.all_reduce is stock
    assert "RANK" not in os.environ


def test_what_programs_ask_nccl_about_its_communicators(ranks: Ranks) -> None:
    def body() -> list[object]:
        torch.cuda.set_device(dist.get_rank())
        device = torch.device("cuda", dist.get_rank())
        world = dist.group.WORLD._get_backend(device)  # type: ignore[union-attr]
        found: list[object] = [world._is_initialized(), world.comm_split_count()]  # type: ignore[attr-defined]
        dist.all_reduce(torch.ones(1, device=device))
        found.append(world._is_initialized())  # type: ignore[attr-defined]
        part = dist.new_group([0, 1])._get_backend(device)
        found.append(part._is_initialized())
        part.abort()
        return [*found, issubclass(dist.DistBackendError, RuntimeError)]

    assert ranks(body, 2, backend="nccl") == [[False, 0, True, False, True]] * 2


REFUSED: dict[str, tuple[Any, str]] = {
    "reduce": (lambda gloo, two: gloo.reduce(two, 0), "reduce: requires a single-element tensor list"),
    "gather": (lambda gloo, two: gloo.gather([two], two, 0), "gather: requires a single-element input tensor list"),
    "scatter": (lambda gloo, two: gloo.scatter(two, [two], 0), "scatter: requires a single-element output tensor list"),
    "reduce_scatter": (lambda gloo, two: gloo.reduce_scatter(two, [two, two]), "reduce_scatter only supports 1 output"),
    "send": (lambda gloo, two: gloo.send(two, 0, 0), "send takes a single tensor"),
    "recv": (lambda gloo, two: gloo.recv(two, 0, 0), "send takes a single tensor"),
    "recv_anysource": (lambda gloo, two: gloo.recv_anysource(two, 0), "send takes a single tensor"),
}
"""Calls of gloo's with two tensors for one rank, and what torch 2.13's own gloo answers."""


@pytest.mark.parametrize(("call", "answer"), REFUSED.values(), ids=REFUSED)
def test_gloo_refuses_a_second_tensor_in_its_own_words(call: Any, answer: str) -> None:
    def body(rank: int) -> None:
        gloo = dist.ProcessGroupGloo(dist.FileStore("refused", 1), rank, 1, timedelta(seconds=5))
        with pytest.raises(RuntimeError, match=answer):
            call(gloo, [torch.ones(2), torch.ones(2)])

    spawn(body, 1)


FAKE = """
import sys, kernbench, torch, torch.distributed as dist
assert "MODULE" not in sys.modules

def body(rank):
    import MODULE
    dist.init_process_group("nccl", rank=rank, world_size=2)
    alone, both = dist.new_group([0], backend="fake"), dist.new_group([0, 1], backend="fake")
    x = torch.full((2,), rank + 3.0, device="cuda")
    dist.all_reduce(x, group=both)
    assert (dist.get_backend(both), x.tolist()) == ("fake", [rank + 3.0] * 2)
    mesh = dist.init_device_mesh("cuda", (2,), mesh_dim_names=("world",))
    mesh = mesh._unflatten(0, (1, 2), ("pp", "dp"), backend_override={"pp": "fake"})
    dist.all_reduce(x, group=mesh.get_group("pp"))
    dist.all_reduce(x, group=mesh.get_group("dp"))
    assert x.tolist() == [7.0, 7.0]

for _ in range(2):
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2)
print("done")
"""


@pytest.mark.long  # seconds: processes that import torch
@pytest.mark.parametrize("module", ["torch.distributed.fsdp", "torch.testing._internal.distributed.fake_pg"])
def test_groups_that_send_nothing_are_there_once_torch_has_registered_them(module: str, warm_python: str) -> None:
    """Where a rank is the first to import the module, and in the next simulation, which finds it imported."""
    done = subprocess.run(
        [warm_python, "-c", FAKE.replace("MODULE", module)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_what_a_rank_registers_is_its_own_and_goes_with_it(isolation: str) -> None:
    def worker(rank: int) -> None:
        assert not dist.is_backend_available("ours")
        if rank == 0:
            dist.init_process_group("gloo")
        made: list[int] = []
        dist.Backend.register_backend("ours", lambda *args: made.append(rank), devices=["cpu"])
        assert dist.Backend("ours") == dist.Backend.OURS == "ours"  # type: ignore[attr-defined]
        assert dist.is_backend_available("ours")
        if rank == 1:
            dist.init_process_group("gloo")
        dist.barrier()
        dist.Backend._plugins["OURS"].creator_fn()
        assert made == [rank]

    for _ in range(2):
        with kernbench.simulate("dgx_h100") as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
        assert "ours" not in dist.Backend.backend_list
        assert not hasattr(dist.Backend, "OURS")
