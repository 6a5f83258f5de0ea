"""Races of kernels: programs, ranks that share memory, signals by order and scope; found with both lines, and nowhere else."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl

import kernbench
from tests.order import kernel_programs
from tests.order.kernel_programs import PAIRS, N, _hand_over
from tests.order.test_streams import races_of


def line(mark: str) -> int:
    """The line of the module that has a mark."""
    lines = Path(kernel_programs.__file__).read_text().splitlines()
    (found,) = [number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}")]
    return found


@pytest.mark.parametrize("program", PAIRS, ids=lambda program: program.__name__)
def test_a_race_is_found_where_it_is_and_only_there(program: Callable[[bool], None]) -> None:
    found = races_of(program, False).found
    assert found, "the program has a race"
    expected = {line(mark) for mark in PAIRS[program]}
    assert {frozenset((race.first.where.line, race.second.where.line)) for race in found} == {frozenset(expected)}
    assert races_of(program, True).found == []


@triton.jit
def _columns(x, width: tl.constexpr, half: tl.constexpr, rows: tl.constexpr):
    at = tl.arange(0, rows)[:, None] * width + tl.program_id(0) * half + tl.arange(0, half)[None, :]
    tl.store(x + at, tl.load(x + at) + 1)


@triton.jit
def _rows_of_a_table(x, table, y, width: tl.constexpr, block: tl.constexpr):
    rows = tl.load(table + tl.program_id(0) * block + tl.arange(0, block))
    at = rows[:, None] * width + tl.arange(0, width)[None, :]
    tl.store(y + at, tl.load(x + at))


def test_programs_that_write_halves_of_rows_share_no_byte() -> None:
    def body() -> None:
        x = torch.zeros(16, 64, device="cuda")
        _columns[(2,)](x, 64, 32, 16)
        assert x.eq(1).all()

    assert races_of(body, world=1).found == []


def test_what_a_kernel_was_given_is_freed_with_its_last_reference() -> None:
    """Not when it is collected: torch takes gradients over that have no other owner, and memory comes back at once."""

    def body() -> None:
        gc.disable()
        try:
            x = torch.zeros(16, 64, device="cuda")
            _columns[(2,)](x, 64, 32, 16)
            torch.cuda.synchronize()
            del x
            left.append(torch.cuda.memory_allocated())
        finally:
            gc.enable()

    left: list[int] = []
    assert races_of(body, world=1).found == []
    assert left == [0]


@pytest.mark.parametrize("apart", [True, False])
def test_rows_that_a_table_says(apart: bool) -> None:
    """Looked-up addresses: two programs write different rows, or one row both."""

    def body() -> None:
        table = torch.arange(16, dtype=torch.int32)
        if not apart:
            table[8] = 0
        x, y = torch.ones(16, 64, device="cuda"), torch.zeros(16, 64, device="cuda")
        _rows_of_a_table[(2,)](x, table.cuda(), y, 64, 8)

    races = races_of(body, world=1).found
    assert [race.kind for race in races] == ([] if apart else ["write after write"])


def _wiped(of_kernel: bool) -> None:
    """Rank 1 clears its words after rank 0 has raised one of them, and waits for that one."""
    _, handle = kernel_programs.meet()
    x, out = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")

    def hand_over() -> None:
        if of_kernel:
            _hand_over[(1,)](
                x, handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, rank=handle.rank, BARRIER=True, BLOCK=N
            )
        elif handle.rank == 0:
            handle.put_signal(1, channel=3)
        else:
            handle.wait_signal(0, channel=3)
        torch.cuda.synchronize()

    if handle.rank == 0:
        hand_over()
        dist.barrier()
    else:
        dist.barrier()
        handle.get_signal_pad(1, (2048,), torch.int32).zero_()
        hand_over()


@pytest.mark.parametrize("of_kernel", [True, False], ids=["kernel", "wait_signal"])
def test_a_deadlock_says_who_has_wiped_the_signal(of_kernel: bool) -> None:
    with pytest.raises(kernbench.SpawnException) as caught:
        races_of(_wiped, of_kernel)
    report = str(caught.value.errors[1])
    assert "rank 1, the default stream has written it last: zero_ at " in report
    kernel = "program (0, 0, 0) of _hand_over has signalled: atomic_rmw at "
    call = "symm_mem put_signal on the default stream has signalled: symm_mem put_signal at "
    assert f"over what rank 0, {kernel if of_kernel else call}" in report
