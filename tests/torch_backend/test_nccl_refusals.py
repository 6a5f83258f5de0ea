"""What torch's groups of NCCL refuse, in their words, of one rank and of several."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench

FACTS: dict[str, str] = json.loads(Path(__file__).with_name("cuda_refusals.json").read_text())["nccl"]
"""What a group of one rank says to each call; empty: it carries it out."""


def ones(*shape: int, dt: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, device="cuda").to(dt)


def said(call: Callable[[], Any]) -> tuple[type, str] | None:
    """The class and the first line of what a call raises; None if it raises nothing."""
    try:
        call()
    except Exception as error:
        return type(error), str(error).partition("\n")[0]
    return None


def spawned(body: Callable[[int], Any], nprocs: int, *, data: bool = True, **spawn: Any) -> dict[int, Any]:
    """What each rank's ``body(rank)`` returns, in a group of NCCL."""
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[rank] = body(rank)
        dist.destroy_process_group()

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=nprocs, **spawn)
    return found


REWORDED = {
    "monitored_barrier is only implemented for GLOO backend.": "monitored_barrier requires a group with a CPU-capable backend",
}
"""What torch says since 2.15 in place of what it said when the GPU was asked."""


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_a_group_says_what_it_says_on_a_gpu(data: bool) -> None:
    names = {"torch": torch, "dist": dist, "c": ones, "h": torch.float16}

    def body(rank: int) -> dict[str, Any]:
        return {text: said(lambda text=text: eval(text, names)) for text in FACTS}  # type: ignore[misc]

    for text, what in spawned(body, 1, data=data)[0].items():
        kind, _, words = FACTS[text].partition(": ")
        if not kind:
            assert what is None, text
            continue
        assert what is not None, text
        assert kind in {each.__name__ for each in what[0].__mro__}, text
        assert what[1].startswith((words.removesuffix("."), REWORDED.get(words, words))), text


def test_several_ranks_are_told_what_is_wrong_with_their_own_call() -> None:
    def body(rank: int) -> list[Any]:
        x, room = ones(4), torch.empty(8, device="cuda")
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_gather_into_tensor(room[:6], x),
            lambda: dist.all_gather_into_tensor(room.double(), x),
            lambda: dist.reduce_scatter_tensor(x[:3], room),
            lambda: dist.gather(x, [x, x[:2]] if rank == 0 else None) if rank == 0 else _fail(),
            lambda: dist.all_to_all_single(x, x, [1, 2], [2, 2]),
            lambda: dist.all_to_all_single(x[:3], x),
            lambda: dist.recv(x),
            lambda: dist.broadcast(x, 2),
            lambda: dist.barrier(device_ids=[8]),
            lambda: dist.all_reduce(x, async_op=True).is_success(),
        ]  # fmt: skip
        return [said(call) for call in calls]

    words = [
        "output tensor size must be equal to world_size times input tensor size: all_gather: output has 6",
        "output tensor must have the same type as input tensor: torch.float64 and torch.float32",
        "input tensor must be the same size as output size times world size",
        "ProcessGroupNCCL::gather: invalid tensor size at index 1 (expected (4), got (2))",
        "Split sizes doesn't match total dim 0 size: all_to_all: output split sizes [1, 2]",
        "Tensor's dim 0 does not divide equally across group size",
        "ProcessGroupNCCL does not support recvAnysource",
        "NCCL error in: invalid argument",
        "CUDA error: invalid device ordinal",
        "WorkNCCL::isSuccess() is deprecated",
    ]
    for found in spawned(body, 2).values():
        for what, wanted in zip(found, words, strict=True):
            assert what is not None, wanted
            assert what[1].startswith(wanted) or what[1] == "not the root"


def _fail() -> None:
    raise RuntimeError("not the root")


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_lists_of_results_and_parts_need_not_be_contiguous(isolation: str) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_strided, nprocs=2, isolation=isolation)


def _strided(rank: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    room = torch.zeros(4, 2, device="cuda")
    dist.all_gather([room[:, 0], room[:, 1]], torch.full((4,), rank + 1.0, device="cuda"))
    assert room.tolist() == [[1.0, 2.0]] * 4
    mine = torch.empty(4, device="cuda")
    dist.reduce_scatter(mine, [room[:, 0], room[:, 1]])
    assert mine.tolist() == [2.0 * (rank + 1)] * 4
    dist.destroy_process_group()


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize("end", ["destroy", "abort"])
def test_a_communicator_that_is_ended_takes_nothing_more(end: str, isolation: str) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        world, x = dist.group.WORLD, torch.ones(2, device="cuda")
        assert world is not None
        dist.all_reduce(x)
        dist.destroy_process_group() if end == "destroy" else world.abort()
        with pytest.raises(
            dist.DistBackendError, match=f"NCCL communicator was aborted on rank {rank}. .* at .*test_nccl"
        ):
            world.allreduce([x])

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)


def test_the_priority_of_a_stream_is_in_its_range() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        assert [torch.cuda.Stream(priority=priority).priority for priority in (3, 0, -1, -9)] == [0, 0, -1, -3]
