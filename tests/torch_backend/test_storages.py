"""Storages of simulated GPUs, and tensors of GPUs in files and pickles: where they were, or where ``map_location`` says."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench


def written(obj: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return file


def _in_rank(body: Any, ranks: int = 1, **options: Any) -> None:
    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=ranks)


def _storages(rank: int) -> None:
    x = torch.arange(3.0, device="cuda")
    storage = x.untyped_storage()
    assert (str(storage.device), storage.is_cuda, storage.is_shared()) == ("cuda:0", True, True)
    assert str(storage.cpu().device) == str(torch.ones(2).untyped_storage().device) == "cpu"
    assert not torch.ones(2).untyped_storage().is_shared()
    copy = storage.clone()
    assert str(copy.device) == "cuda:0"
    assert torch.empty(0, device="cuda").set_(copy).tolist() == [0.0, 1.0, 2.0]
    there = torch.full((2,), 7.0).untyped_storage().cuda(1)
    assert str(there.device) == "cuda:1"
    made = torch.UntypedStorage(8, device="cuda")
    made.copy_(there)
    assert torch.empty(0, device="cuda").set_(made).tolist() == [7.0, 7.0]
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]
    before = torch.cuda.memory_allocated()
    kept = torch.UntypedStorage(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() - before == kept.nbytes()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("data", [True, False])
def test_storages_say_where_they_are(data: bool) -> None:
    before = vars(torch.UntypedStorage).copy()
    if data:
        _in_rank(_storages)
    else:
        _in_rank(lambda rank: str(torch.empty(1 << 30, device="cuda").untyped_storage().device), enable_data=False)
    assert vars(torch.UntypedStorage).keys() == before.keys(), "all is put back"
    assert str(torch.UntypedStorage(2).device) == "cpu"


def _files(rank: int) -> None:
    torch.cuda.set_device(rank)
    saved = {"on": torch.full((2,), rank + 1.0, device="cuda"), "host": torch.ones(1)}
    mine = torch.device("cuda", rank)
    for options, on, host in (
        ({}, mine, "cpu"),
        ({"weights_only": False}, mine, "cpu"),
        ({"map_location": "cpu"}, "cpu", "cpu"),
        ({"map_location": "cuda"}, mine, mine),
        ({"map_location": torch.device("cuda", 0)}, "cuda:0", "cuda:0"),
        ({"map_location": {str(mine): "cuda:1"}}, "cuda:1", "cpu"),
        ({"map_location": lambda storage, location: storage}, "cpu", "cpu"),
        ({"map_location": lambda storage, location: storage.cuda(1)}, "cuda:1", "cuda:1"),
    ):
        loaded = torch.load(written(saved), **options)
        assert loaded["on"].device == torch.device(on), options
        assert loaded["host"].device == torch.device(host), options
        assert loaded["on"].tolist() == [rank + 1.0] * 2
    assert (saved["on"] + torch.load(written(saved))["on"]).tolist() == [2 * (rank + 1.0)] * 2
    again = pickle.loads(pickle.dumps(saved["on"]))
    assert again.device == mine
    assert again.tolist() == [rank + 1.0] * 2
    locations = []
    torch.load(written(saved), map_location=lambda storage, location: locations.append(location))
    assert sorted(locations) == ["cpu", str(mine)]


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_file_says_where_its_tensors_were(isolation: str) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_files, nprocs=2, isolation=isolation)


def _of_a_gpu_that_is_not_there(rank: int) -> None:
    file = written(torch.ones(1, device="cuda"))
    content = file.getvalue().replace(b"cuda:0", b"cuda:9")
    with pytest.raises(RuntimeError, match=r"CUDA device 9 but torch.cuda.device_count\(\) is 8"):
        torch.load(io.BytesIO(content))


def test_a_gpu_that_is_not_there_is_torchs_error() -> None:
    _in_rank(_of_a_gpu_that_is_not_there)


def _objects(rank: int) -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    found: list[Any] = [None] * 2
    dist.all_gather_object(found, torch.full((2,), float(rank), device="cuda"))
    assert [str(each.device) for each in found] == ["cuda:0", "cuda:1"]
    assert [each.tolist() for each in found] == [[0.0, 0.0], [1.0, 1.0]]


def test_objects_that_ranks_exchange_arrive_on_the_senders_gpu() -> None:
    """As on hardware, where it fills the memory of others."""
    _in_rank(_objects, ranks=2)


@pytest.mark.parametrize("data", [True, False])
def test_a_file_of_a_gpus_tensor_takes_the_time_of_copies(data: bool) -> None:
    seconds: list[tuple[float, float]] = []

    def body(rank: int) -> None:
        import time

        x = torch.ones(1 << 22, device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        file = written(x)
        between = time.perf_counter()
        torch.load(file)
        seconds.append((between - begin, time.perf_counter() - between))

    _in_rank(body, enable_data=data)
    (saving, loading) = seconds[0]
    link = (1 << 24) / 64e9  # as quick as PCIe 5 is at most
    assert link < saving < 10 * link
    assert link < loading < 10 * link


@pytest.mark.parametrize("enable_data", [True, False])
def test_a_slice_is_a_part_of_its_storage(enable_data: bool) -> None:
    """As trainers lay gradients out in one buffer."""
    with kernbench.simulated_gpu("dgx_h100", enable_data=enable_data):
        buffer = torch.zeros(16, device="cuda")
        taken = torch.cuda.memory_allocated()
        whole = buffer.untyped_storage()
        part = whole[16:48]
        inner = part[8:16]
        assert [str(each.device) for each in (part, inner)] == ["cuda:0"] * 2
        assert [each.nbytes() for each in (part, inner)] == [32, 8]
        first = torch.empty([], dtype=torch.float32, device=part.device)
        first.set_(source=part)
        rows = torch.empty(0, device="cuda").set_(part, 2, (2, 3))
        halves = torch.empty(0, dtype=torch.float16, device="cuda").set_(inner)
        assert [tuple(each.shape) for each in (first, rows, halves)] == [(8,), (2, 3), (4,)]
        first.add_(torch.ones(8, device="cuda"))
        rows.mul_(5)
        halves.zero_()
        if enable_data:
            assert buffer.tolist() == [0.0] * 4 + [1.0, 1.0, 0.0, 0.0, 5.0, 5.0, 5.0, 5.0] + [0.0] * 4
        del first, rows, halves, part, inner
        assert torch.cuda.memory_allocated() == taken
        with pytest.raises(kernbench.KernbenchError, match="cannot begin at byte 2 of a storage"):
            torch.empty(0, device="cuda").set_(whole[2:10])
