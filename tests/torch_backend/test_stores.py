"""What stores and groups take from programs that reach them through torch's own C++ objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench

ISOLATIONS = ["carrier", "process"]


def ranks(program: Callable[[int], Any], isolation: str = "carrier", backend: str = "gloo") -> None:
    def worker(rank: int) -> None:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(backend)
        program(rank)
        dist.destroy_process_group()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_timeout_that_is_set_through_prefixes_holds(isolation: str) -> None:
    def program(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        assert type(store) is dist.PrefixStore
        begin = time.monotonic()
        inner = dist.PrefixStore("inner", store)
        for each, seconds in ((store, 2), (inner, 3)):
            each.set_timeout(timedelta(seconds=seconds))
            assert store.underlying_store.timeout == timedelta(seconds=seconds)
            with pytest.raises(dist.DistStoreError, match=f"wait timeout after {seconds}000ms"):
                each.get("never")
        assert time.monotonic() - begin == pytest.approx(5, abs=0.1)  # virtual

    ranks(program, isolation)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_key_that_never_comes_is_a_deadlock(isolation: str, backend: str) -> None:
    def program(rank: int) -> None:
        if rank == 1:
            dist.distributed_c10d._get_default_store().get("never")

    with pytest.raises(kernbench.SpawnException) as caught:
        ranks(program, isolation, backend)
    assert isinstance(caught.value.errors[1], kernbench.DeadlockError)
    assert "rank 1: waits for store wait for default_pg/0//never" in str(caught.value.errors[1])


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_store_that_waited_too_long_says_what_the_others_do(isolation: str) -> None:
    def program(rank: int) -> None:
        if rank == 0:
            time.sleep(10)
        else:
            dist.distributed_c10d._get_default_store().wait(["late"], timedelta(seconds=5))

    with pytest.raises(kernbench.SpawnException) as caught:
        ranks(program, isolation)
    first, other, *_ = str(caught.value.errors[1]).splitlines()
    assert first == "wait timeout after 5000ms, keys: default_pg/0//late"
    assert other.startswith("  rank 0: waits for sleep")


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_queues_and_keys_are_reached_through_prefixes(isolation: str) -> None:
    def program(rank: int) -> None:
        store = dist.TCPStore("localhost", 29600, 2, rank == 0)
        outer = dist.PrefixStore("a", store)
        inner = dist.PrefixStore("b", outer)
        if rank == 0:
            inner.queue_push("jobs", b"one")
            outer.queue_push("b/jobs", "two")
            inner.set("k", "v")
        else:
            assert [inner.queue_pop("jobs"), store.queue_pop("a/b/jobs")] == [b"one", b"two"]
            assert inner.queue_len("jobs") == 0
            with pytest.raises(dist.QueueEmptyError, match=r"^queue is empty$"):
                inner.queue_pop("jobs", block=False)
            inner.wait(["k"])
            assert (store.list_keys(), outer.list_keys(), inner.list_keys()) == (["a/b/k"], ["b/k"], ["k"])

    ranks(program, isolation)


@pytest.mark.parametrize(
    ("backend", "words"),
    [("foo", "Unknown backend type foo"), ("cpu:gloo,cuda:foo", "Unknown c10d backend type FOO")],
)
def test_a_backend_that_there_is_not_is_refused(backend: str, words: str) -> None:
    def program(rank: int) -> None:
        with pytest.raises(AssertionError, match=f"^{words}$"):
            dist.new_group(backend=backend)

    ranks(program)


def test_split_sizes_are_lists() -> None:
    def program(rank: int) -> None:
        into, given = torch.empty(2, device="cuda"), torch.ones(2, device="cuda")
        dist.all_to_all_single(into, given, [1, 1], list(torch.ones(2, dtype=torch.int64)))  # of whatever is a number
        with pytest.raises(TypeError, match="incompatible function arguments"):
            dist.all_to_all_single(into, given, torch.ones(2, dtype=torch.int64))

    ranks(program, backend="nccl")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("root", [-1, 2])
def test_a_root_that_there_is_not_is_refused(backend: str, root: int) -> None:
    def program(rank: int) -> None:
        group, device = dist.group.WORLD, "cuda" if backend == "nccl" else "cpu"
        one = torch.ones(2, device=device)
        calls: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            "gather": (dist.GatherOptions(), lambda how: group.gather([[one, one]], [one], how)),
            "scatter": (dist.ScatterOptions(), lambda how: group.scatter([one], [[one, one]], how)),
            "broadcast": (dist.BroadcastOptions(), lambda how: group.broadcast([one], how)),
            "reduce": (dist.ReduceOptions(), lambda how: group.reduce([one], how)),
        }
        for op, (how, call) in calls.items():
            how.rootRank = root
            if backend == "gloo":
                error, words = RuntimeError, f"^ProcessGroupGloo::{op}: invalid root rank: {root}$"
            elif op in ("gather", "scatter"):
                error, words = ValueError, f"^ProcessGroupNCCL::{op}: invalid root rank: {root}$"
            else:
                error, words = dist.DistBackendError, f"there is no rank {root} in a group of 2"
            with pytest.raises(error, match=words):
                call(how)
        with pytest.raises(NotImplementedError, match="no tensor arguments to this function"):
            group.gather([[one, one]], [], dist.GatherOptions())

    ranks(program, backend=backend)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("hosted", [False, True])
@pytest.mark.parametrize("limit", [{}, {"timeout": timedelta(seconds=5)}], ids=["no limit", "5 s"])
def test_a_store_that_no_rank_has_made_is_said_to_be_one(isolation: str, hosted: bool, limit: dict[str, Any]) -> None:
    """As one is that a process has made before it was a rank."""

    def program(rank: int) -> None:
        if rank == 1:
            dist.TCPStore("localhost", 29612, is_master=False, **limit).get("never")
        elif hosted:
            dist.TCPStore("localhost", 29612, is_master=True)

    with pytest.raises(kernbench.SpawnException) as caught:
        ranks(program, isolation)
    error = caught.value.errors[1]
    late = dist.DistStoreError if hosted else dist.DistNetworkError
    assert isinstance(error, late if limit else kernbench.DeadlockError)
    words = "make it after that" if limit else "server at localhost:29612"
    assert (words in str(error)) is not hosted
