"""Collectives of one flat tensor: on thousands of ranks, its thousands of cells are made only where values move."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.sim_engine.op_log import MemoryRange, MemoryRanges
from kernbench.torch_backend.process_groups import arguments


@pytest.fixture
def cut(monkeypatch):
    """The tensors that have been cut into cells."""
    found: list[int] = []
    stock = arguments._parts
    monkeypatch.setattr(arguments, "_parts", lambda tensor, size: (found.append(size), stock(tensor, size))[1])
    return found


def _gather_and_scatter(rank: int, size: int, found: dict) -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    flat = torch.empty(4 * size, device="cuda")
    dist.all_gather_into_tensor(flat, torch.arange(4.0, device="cuda") + 10 * rank)
    part = torch.empty(4, device="cuda")
    dist.reduce_scatter_tensor(part, flat)
    found[rank] = flat.tolist(), part.tolist()


@pytest.mark.parametrize("size", [2, 8])
def test_values_and_ranges(size, cut):
    found: dict[int, tuple[list[float], list[float]]] = {}
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda rank: _gather_and_scatter(rank, size, found), nprocs=size)
        records = [each for each in ctx.engine.op_log.records(steps=False) if each.kind == "collective"]
    whole = [number + 10.0 * rank for rank in range(size) for number in range(4)]
    for rank, (gathered, scattered) in found.items():
        assert gathered == whole
        assert scattered == [size * number for number in whole[4 * rank : 4 * rank + 4]]
    assert cut, "values move cell by cell"
    gathers = [each for each in records if each.name == "all_gather" and each.nbytes == 16]
    scatters = [each for each in records if each.name == "reduce_scatter"]
    assert len(gathers) == len(scatters) == size
    for gather, scatter in zip(gathers, scatters, strict=True):
        own, *cells = gather.operands
        assert [own.access, *{each.access for each in cells}] == ["r", "w"]
        assert [each.address - cells[0].address for each in cells] == [16 * number for number in range(size)]
        *given, got = scatter.operands
        assert [each[:4] for each in given] == [each[:4] for each in cells], "what was gathered is scattered"
        assert [*{each.access for each in given}, got.access] == ["r", "w"]
        assert got.nbytes == 16


def test_without_data_no_cell_is_made_and_times_are_the_same(cut):
    found: dict[bool, dict[int, float]] = {}
    for data in (True, False):
        cut.clear()
        times = found[data] = {}

        def worker(rank: int, times=times) -> None:
            dist.init_process_group("nccl")
            torch.cuda.set_device(rank)
            flat = torch.empty(1 << 16, device="cuda")
            dist.all_gather_into_tensor(flat, torch.empty(1 << 14, device="cuda"))
            dist.reduce_scatter_tensor(torch.empty(1 << 14, device="cuda"), flat)
            torch.cuda.synchronize()
            times[rank] = ctx.now()

        with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=4)
        assert bool(cut) is data
    assert found[True] == found[False]


def test_ranges_behind_one_another():
    first, other = MemoryRange("hbm", 3, 4096, 64, "w", "x"), MemoryRange("hbm", 3, 0, 8, "r")
    ranges = MemoryRanges([(other, 1), (first, 3)])
    expected = [other, *(first._replace(address=4096 + 64 * number) for number in range(3))]
    assert list(ranges) == expected
    assert [ranges[at] for at in range(-4, 4)] == [*expected, *expected]
    assert ranges[1:3] == tuple(expected[1:3])
    assert list(pickle.loads(pickle.dumps(ranges))) == expected, "ranks that are processes send them"
    with pytest.raises(IndexError):
        ranges[4]
