"""Pointers that a kernel reads from memory, to tensors that the program has taken from the garbage collector."""

from __future__ import annotations

import gc

import pytest
import torch
import triton
import triton.language as tl

import kernbench
from kernbench.triton_engine.memory import find_live


@triton.jit
def copied(table, out, BLOCK: tl.constexpr):
    source = tl.load(table).to(tl.pointer_type(tl.int32))
    tl.store(out + tl.arange(0, BLOCK), tl.load(source + tl.arange(0, BLOCK)))


def test_a_frozen_tensor_is_found_and_stays_frozen() -> None:
    def worker(rank: int) -> None:
        source, out = (
            torch.arange(64, dtype=torch.int32, device="cuda"),
            torch.empty(64, dtype=torch.int32, device="cuda"),
        )
        table = torch.tensor([source.data_ptr()], dtype=torch.uint64, device="cuda")
        gc.freeze()
        try:
            copied[(1,)](table, out, BLOCK=64)
            assert out.tolist() == list(range(64))
            assert gc.get_freeze_count() > 0
        finally:
            gc.unfreeze()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)


def test_what_a_transform_shows_of_a_tensor_is_no_memory() -> None:
    def worker(rank: int) -> None:
        source, out = (
            torch.arange(64, dtype=torch.int32, device="cuda"),
            torch.empty(64, dtype=torch.int32, device="cuda"),
        )
        table = torch.tensor([source.data_ptr()], dtype=torch.uint64, device="cuda")
        shown = []
        torch.func.grad(lambda given: (shown.append(given), given.sum())[1])(torch.ones(3))
        copied[(1,)](table, out, BLOCK=64)
        assert out.tolist() == list(range(64))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)


def test_no_object_is_looked_at_for_a_small_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tables of indices have, -1 among them."""
    monkeypatch.delattr(gc, "get_objects")
    assert [find_live(each) for each in (-1, 0, 17, 1 << 16)] == [None] * 4
