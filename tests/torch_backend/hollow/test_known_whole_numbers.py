"""Without data: whole numbers that the host has made are known wherever they go, whatever their size."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import kernbench

RANKS = 3
MANY = 5000
"""Elements that take more bytes than are computed of what a GPU has."""


def run(body: Callable[[int], Any], *, nprocs: int = RANKS, isolation: str = "carrier", unknown: str = "error") -> None:
    """Run ``body`` on ranks with a group of NCCL; a look at what is not known raises."""
    with kernbench.simulate("dgx_h100", enable_data=False, unknown=unknown) as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl", rank=rank, world_size=nprocs)
            body(rank)

        ctx.multiprocessing.spawn(worker, nprocs=nprocs, isolation=isolation)


def numbers(rank: int) -> torch.Tensor:
    """``[MANY]`` on the host, others on each rank."""
    return torch.from_numpy(np.arange(MANY) * (rank + 1))


def same(tensor: torch.Tensor, expected: Any) -> None:
    np.testing.assert_array_equal(tensor.cpu().numpy(), expected)


def said(rank: int, size: int) -> tuple[int, bytes]:
    """An object that takes more bytes than ``size``."""
    return rank, bytes([rank]) * size


def all_gather_object(rank: int, size: int) -> None:
    found: list[Any] = [None] * RANKS
    dist.all_gather_object(found, said(rank, size + rank))
    assert found == [said(each, size + each) for each in range(RANKS)]


def gather_object(rank: int, size: int) -> None:
    found: list[Any] | None = [None] * RANKS if rank == 1 else None
    dist.gather_object(said(rank, size + rank), found, dst=1)
    assert rank != 1 or found == [said(each, size + each) for each in range(RANKS)]


def broadcast_object_list(rank: int, size: int) -> None:
    found = [said(1, size), said(2, 2 * size)] if rank == 1 else [None, None]
    dist.broadcast_object_list(found, src=1)
    assert found == [said(1, size), said(2, 2 * size)]


def scatter_object_list(rank: int, size: int) -> None:
    found: list[Any] = [None]
    dist.scatter_object_list(found, [said(each, size + each) for each in range(RANKS)] if rank == 0 else None, src=0)
    assert found == [said(rank, size + rank)]


def send_object_list(rank: int, size: int) -> None:
    found: list[Any] = [None]
    if rank == 0:
        dist.send_object_list([said(7, size)], dst=2)
    elif rank == 2:
        dist.recv_object_list(found, src=0)
        assert found == [said(7, size)]


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize("size", [1500, 9000, 300_000])
@pytest.mark.parametrize(
    "exchange", [all_gather_object, gather_object, broadcast_object_list, scatter_object_list, send_object_list]
)
def test_objects_arrive_whatever_their_size(exchange, size, isolation):
    run(lambda rank: exchange(rank, size), isolation=isolation)


def test_a_small_object_beside_a_large_one():
    """Torch gives its bytes the size of the largest one, by ``resize_``."""
    sizes = [5_000, 9_000, 100]

    def body(rank: int) -> None:
        found: list[Any] = [None] * RANKS
        dist.all_gather_object(found, said(rank, sizes[rank]))
        assert found == [said(each, sizes[each]) for each in range(RANKS)]
        found = [None] * RANKS
        dist.gather_object(said(rank, sizes[-1 - rank]), found if rank == 2 else None, dst=2)
        assert rank != 2 or found == [said(each, sizes[-1 - each]) for each in range(RANKS)]

    run(body)


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_tensors_of_whole_numbers_go_through_every_collective(isolation):
    def body(rank: int) -> None:
        mine, at = numbers(rank).cuda(), np.arange(MANY)
        everybody = np.concatenate([at * (each + 1) for each in range(RANKS)])

        gathered = torch.empty(RANKS * MANY, dtype=torch.int64, device="cuda")
        dist.all_gather_into_tensor(gathered, mine)
        same(gathered, everybody)
        rows = [torch.empty_like(mine) for _ in range(RANKS)]
        dist.all_gather(rows, mine)
        same(torch.cat(rows), everybody)

        exchanged = torch.empty_like(gathered)
        dist.all_to_all_single(exchanged, gathered)
        same(exchanged, np.concatenate([at * (rank + 1)] * RANKS))

        scattered = torch.empty_like(mine)
        dist.scatter(scattered, list(gathered.chunk(RANKS)) if rank == 0 else None, src=0)
        same(scattered, at * (rank + 1))

        part = torch.empty_like(mine)
        dist.reduce_scatter_tensor(part, gathered)
        same(part, at * (rank + 1) * RANKS)
        dist.all_reduce(mine)
        same(mine, at * sum(range(1, RANKS + 1)))

    run(body, isolation=isolation)


def test_an_empty_buffer_is_known_part_by_part():
    def body(rank: int) -> None:
        buffer = torch.empty(RANKS, MANY, dtype=torch.int64, device="cuda")
        for each in range(RANKS - 1):
            if each == rank:
                buffer[each].copy_(numbers(each))
            dist.broadcast(buffer[each], src=each)
            same(buffer[each], np.arange(MANY) * (each + 1))
        with pytest.raises(kernbench.KernbenchError, match="not computed"):
            buffer[RANKS - 1].cpu().numpy()
        with pytest.raises(kernbench.KernbenchError, match="not computed"):
            buffer.cpu().numpy()
        dist.broadcast(buffer[RANKS - 1].copy_(numbers(RANKS - 1)), src=0)
        same(buffer, np.outer(np.arange(1, RANKS + 1), np.arange(MANY)))

    run(body)


def test_a_small_empty_tensor_is_known_once_each_of_its_elements_is():
    def body(rank: int) -> None:
        sizes = torch.empty(3, device="cuda")
        sizes[0] = 5
        assert sizes[0].item() == 5
        with pytest.raises(kernbench.KernbenchError, match="not computed"):
            sizes.tolist()
        sizes[1:] = torch.tensor([6.0, 7.0])
        assert sizes.tolist() == [5, 6, 7]

    run(body, nprocs=1)


def into_empty(host: torch.Tensor) -> torch.Tensor:
    return torch.empty(MANY, dtype=torch.int64, device="cuda").copy_(host)


def resized(host: torch.Tensor) -> torch.Tensor:
    return host[:10].clone().cuda().resize_(MANY).copy_(host)


ROADS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cuda": lambda host: host.cuda(),
    "pinned": lambda host: host.pin_memory().to("cuda", non_blocking=True),
    "another GPU": lambda host: host.cuda().to("cuda:1"),
    "made there": lambda host: torch.tensor(host.tolist(), device="cuda"),
    "as_tensor": lambda host: torch.as_tensor(host.numpy(), device="cuda"),
    "new_tensor": lambda host: torch.zeros(1, dtype=torch.int64, device="cuda").new_tensor(host.tolist()),
    "new": lambda host: torch.zeros(1, dtype=torch.int64, device="cuda").new(host.tolist()),
    "into an empty one": into_empty,
    "resized": resized,
    "clone": lambda host: host.cuda().clone(),
    "deepcopy": lambda host: copy.deepcopy(host.cuda()),
    "cat of parts": lambda host: torch.cat(host.cuda().split(100)),
    "stack and index": lambda host: torch.stack([host.cuda(), -host.cuda()])[0],
    "other bits": lambda host: host.cuda().view(torch.uint8).clone().view(torch.int64),
    "arithmetic": lambda host: (host.cuda() + 1) * 2 // 2 - 1,
    "back and forth": lambda host: host.cuda().cpu().cuda(),
}  # fmt: skip


@pytest.mark.parametrize("road", ROADS)
def test_every_road_to_a_gpu_keeps_what_is_known(road):
    run(lambda rank: same(ROADS[road](numbers(0)), np.arange(MANY)), nprocs=1)


@pytest.mark.parametrize("make", ["tensor", "from_numpy"])
def test_tensors_of_a_context_do_too(make):
    values = np.arange(MANY)
    with kernbench.simulate("dgx_h100", enable_data=False, unknown="error") as ctx:
        np.testing.assert_array_equal(getattr(ctx, make)(values).numpy(), values)


def test_sizes_that_follow_from_them_are_theirs():
    def body(rank: int) -> None:
        marks = torch.from_numpy(np.arange(2 * MANY) % 5 == 0).cuda()
        assert marks.sum().item() == 2 * MANY // 5
        assert marks.nonzero().shape == (2 * MANY // 5, 1)

    run(body, nprocs=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(MANY).cuda(),
        lambda: numbers(0).cuda().float(),
        lambda: torch.randint(0, 9, (MANY,), device="cuda"),
        lambda: numbers(0).cuda().expand(MANY, MANY).contiguous(),
        lambda: torch.ones(MANY, MANY, dtype=torch.bool, device="cuda").copy_(torch.tensor(True)),
        lambda: nn.Buffer(numbers(0)),
    ],
    ids=[
        "numbers with a point",
        "made of whole ones",
        "made on the GPU",
        "many of few",
        "filled with one",
        "a module's",
    ],
)
def test_what_weighs_has_no_values(make):
    def body(rank: int) -> None:
        tensor = make()
        if isinstance(tensor, nn.Buffer):
            module = nn.Module()
            module.weight = tensor
            tensor = module.cuda().weight
        with pytest.raises(kernbench.KernbenchError, match="not computed"):
            tensor.cpu().numpy()

    run(body, nprocs=1)


def test_what_is_written_over_known_numbers_is_assumed():
    def body(rank: int) -> None:
        known = numbers(0).cuda()
        known[:4] = torch.randint(0, 9, (MANY,), device="cuda")[:4]
        found = known.cpu().numpy()
        np.testing.assert_array_equal(found[4:], np.arange(4, MANY))
        assert known.cpu()[0].item() == 4
        known.copy_(torch.randint(0, 9, (MANY,), device="cuda"))
        assert set(known.tolist()) == {4}

    run(body, nprocs=1, unknown="assume")


@pytest.mark.long  # seconds
def test_a_module_without_values_is_saved_by_dcp_with_its_objects(tmp_path):
    from torch.distributed import checkpoint

    def body(rank: int) -> None:
        names = {f"layer {each} of rank {rank}": each for each in range(2000)}  # whose plan is large
        checkpoint.save({"weight": torch.randn(MANY, device="cuda"), **names}, checkpoint_id=tmp_path)

    run(body, unknown="assume")
    stored = checkpoint.FileSystemReader(tmp_path).read_metadata().state_dict_metadata
    assert len(stored) == 1 + RANKS * 2000
