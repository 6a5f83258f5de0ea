"""Unwritten memory: reads are found with the line of the allocation, and nothing where it is written first."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed._symmetric_memory as symm_mem

import kernbench
from kernbench.order import ByteRegion, MemoryAccess, Strand, Undefined, UndefinedRead
from kernbench.simulation.ranks.locations import Location
from tests.order import undefined_programs
from tests.order.test_streams import races_of
from tests.order.undefined_programs import PAIRS, all_that_is_right


def _lines(mark: str) -> set[int]:
    lines = inspect.getsource(undefined_programs).splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}")}


BY_A_KERNEL = {
    undefined_programs.accumulated_by_a_kernel: ("atomic_rmw", "updates"),
    undefined_programs.buffer_of_a_peer_in_a_kernel: ("load", "reads"),
}


@pytest.mark.parametrize("program", PAIRS, ids=lambda program: program.__name__)
def test_a_look_is_found_where_it_is_and_only_there(program: Callable[[bool], None]) -> None:
    found = races_of(program, False).found
    assert found
    lines, first = inspect.getsourcelines(program)
    body = range(first, first + len(lines))
    for read in found:
        assert isinstance(read, UndefinedRead)
        assert read.origin.where.line in _lines("made")
        if program in BY_A_KERNEL:
            assert (read.access.name, read.does) == BY_A_KERNEL[program]
        else:
            assert read.where.line in _lines("look")
            assert read.where.line in body
    assert races_of(program, True).found == []


def test_memory_that_is_written_first_is_no_finding() -> None:
    assert races_of(all_that_is_right).found == []


def test_a_look_is_raised_with_its_report() -> None:
    def worker(rank: int) -> None:
        x = torch.empty(8, device="cuda")
        y = x * 2
        y.tolist()

    with kernbench.simulate("dgx_h100", races=True) as ctx, pytest.raises(kernbench.SpawnException) as raised:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    error = raised.value.errors[0]
    assert isinstance(error, kernbench.UndefinedMemoryError)
    first, look, made, origin, remedy = str(error).splitlines()
    assert first == "read of unwritten memory: all of float32 [8], 32 bytes."
    assert look.startswith("  looked at by: rank 0, host: tolist reads it, at ")
    assert made.startswith("  made by:      mul.Tensor at ")
    assert origin.startswith("  allocated by: empty at ")
    assert "torch.zeros" in remedy


def test_a_comment_excuses_a_look() -> None:
    def body() -> None:
        torch.empty(8, device="cuda").tolist()  # kernbench: ordered: shows what memory holds

    races = races_of(body, world=1)
    assert (races.found, [each.excuse for each in races.excused]) == ([], ["shows what memory holds"])


@pytest.mark.parametrize(
    ("fill", "value", "number"), [("nan", math.nan, 2**31 - 1), ("0xAA", -3.0316488252093987e-13, -0x55555556)]
)
@pytest.mark.parametrize("races", ["off", "warn"])
def test_fresh_memory_is_filled(fill: str, value: float, number: int, races: str) -> None:
    seen = []

    def worker(rank: int) -> None:
        for device in ("cuda", "cpu"):
            x = torch.empty(3, device=device)
            seen.append(x.tolist()[2])
            seen.append(x.new_empty(2, dtype=torch.int32).tolist()[0])
            seen.append(torch.zeros(2, device=device).tolist()[0])

    with kernbench.simulate("dgx_h100", fill_uninitialized=fill, races=races) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert seen == pytest.approx([value, number, 0.0] * 2, abs=0, nan_ok=True)
    with (
        pytest.raises(kernbench.ConfigError, match="fill_uninitialized='ones'"),
        kernbench.simulate(fill_uninitialized="ones"),
    ):
        pass


@pytest.mark.parametrize(("fill", "value"), [("off", 0.0), ("nan", math.nan), ("0xAA", -3.0316488252093987e-13)])
def test_fresh_symmetric_memory_is_filled(fill: str, value: float) -> None:
    seen = []

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        seen.append(symm_mem.empty(4, device="cuda").tolist()[1])

    with kernbench.simulate("dgx_h100", fill_uninitialized=fill) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert seen == pytest.approx([value], abs=0, nan_ok=True)


def test_words_that_no_backend_has_cleared_are_not_counted_up() -> None:
    def body() -> None:
        symm_mem.set_backend("NVSHMEM")
        words = symm_mem.empty(4, dtype=torch.int32, device="cuda")
        undefined_programs._count[(1,)](words)

    (read,) = races_of(body, world=1).found
    assert isinstance(read, UndefinedRead)
    assert (read.does, read.origin.name) == ("updates", "symm_mem.empty")


def test_ranges() -> None:
    made = MemoryAccess(Strand("host", 0, None), 1, "empty", Location("a.py", 1, "f"))
    undefined = Undefined(made, ByteRegion(0, 100))
    assert undefined.define(ByteRegion(10, 20))
    assert undefined.define(ByteRegion(40, 50))
    assert undefined.define(ByteRegion(15, 45))
    checks = [undefined.whole(ByteRegion(lo, hi)) for lo, hi in ((0, 10), (0, 11), (50, 100), (49, 60))]
    assert checks == [True, False, True, False]
    assert [undefined.any(ByteRegion(lo, hi)) for lo, hi in ((10, 50), (9, 12), (49, 51))] == [False, True, True]
    assert undefined.define(ByteRegion(0, 99))
    assert not undefined.define(ByteRegion(90, 100))
    assert not undefined.any(ByteRegion(0, 100))
