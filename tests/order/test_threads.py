"""Threads of one program: they may run on by themselves between two places where they meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from kernbench.order import Race
from tests.order.test_streams import races_of

N = 512


@triton.jit
def _copy_and_back(x, y, meets: tl.constexpr, shift: tl.constexpr, BLOCK: tl.constexpr):
    """Through memory: what was stored is loaded ``shift`` elements further on."""
    at = tl.arange(0, BLOCK)
    tile = tl.load(x + at)
    tl.store(y + at, tile)
    if meets == "barrier":
        tl.debug_barrier()
    elif meets == "sum":
        tile += tl.sum(tile)
    back = tl.load(y + shift + at, mask=at < BLOCK - shift)
    tl.store(x + at, tile + back)


@triton.jit
def _shift_in_place(x, meets: tl.constexpr, shift: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tile = tl.load(x + shift + at, mask=at < BLOCK - shift)
    if meets == "barrier":
        tl.debug_barrier()
    elif meets == "sum":
        tile += tl.sum(tile)
    tl.store(x + at, tile)


@triton.jit
def _two_loops(x, y, meets: tl.constexpr, shift: tl.constexpr, BLOCK: tl.constexpr):
    """Written in one loop, read in the next one, in other pieces if there is a ``shift``."""
    half: tl.constexpr = BLOCK // 2
    piece: tl.constexpr = half // 2 if shift else half
    for at in range(0, BLOCK, half):
        places = at + tl.arange(0, half)
        tl.store(y + places, tl.load(x + places))
    total = 0.0
    if meets == "barrier":
        tl.debug_barrier()
    elif meets == "sum":
        total += tl.sum(tl.load(x + tl.arange(0, half)))
    for at in range(0, BLOCK, piece):
        places = at + tl.arange(0, piece)
        tl.store(x + places, tl.load(y + places) + total)


@triton.jit
def _lock(x, lock, meets: tl.constexpr, BLOCK: tl.constexpr):
    """Programs add to one tile, one after the other."""
    at = tl.arange(0, BLOCK)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(x + at, tl.load(x + at) + 1)
    if meets == "barrier":
        tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def _counts_its_tiles(x, count, BLOCK: tl.constexpr):
    """What one thread releases is for no other to acquire: programs store tiles of their own and count themselves."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + 1)
    tl.atomic_add(count, 1)


def said_of(kernel: Any, grid: int, *args: Any, **options: Any) -> list[Race]:
    def body() -> None:
        x, y = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
        memory = {"x": x, "y": y, "lock": torch.zeros(1, dtype=torch.int32, device="cuda")}
        memory["count"] = memory["lock"]
        pointers = [memory[name] for name in kernel.arg_names if name in memory]
        kernel[(grid,)](*pointers, *args, BLOCK=N // grid if kernel is _counts_its_tiles else N, **options)
        torch.cuda.synchronize()

    return [race for race in races_of(body, world=1).found if isinstance(race, Race)]


@pytest.mark.parametrize(
    ("kernel", "kind"), [(_copy_and_back, "read after write"), (_shift_in_place, "write after read")]
)
def test_bytes_at_another_place_of_a_tile(kernel: Any, kind: str) -> None:
    (race,) = said_of(kernel, 1, "", 1)
    assert race.kind == kind
    assert "threads of the program hold: put tl.debug_barrier() between" in str(race)


@pytest.mark.parametrize("kernel", [_copy_and_back, _shift_in_place, _two_loops])
def test_bytes_at_the_same_place_or_behind_a_meeting(kernel: Any) -> None:
    assert said_of(kernel, 1, "", 0) == []
    for meets in ("barrier", "sum"):
        assert said_of(kernel, 1, meets, 1) == []


def test_a_warp_alone_goes_in_step() -> None:
    assert said_of(_copy_and_back, 1, "", 1, num_warps=1) == []


def test_pieces_of_another_size_in_another_loop() -> None:
    """Of ``y`` what was stored is read, of ``x`` what was read is overwritten."""
    assert {race.kind for race in said_of(_two_loops, 1, "", 1)} == {"read after write", "write after read"}


def test_a_lock_is_released_when_all_threads_have_stored() -> None:
    assert said_of(_lock, 4, "barrier") == []
    found = said_of(_lock, 4, "")
    assert {race.kind for race in found} == {"read after write", "write after write"}
    assert "one thread of the program has released what all of them have done" in str(found[0])


def test_who_acquires_nothing_meets_nothing() -> None:
    assert said_of(_counts_its_tiles, 4) == []
