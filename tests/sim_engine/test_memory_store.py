"""Modelled memories: allocator, bounds, reads and writes by address."""

from __future__ import annotations

import gc
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench
from kernbench.errors import MemoryAccessError, OutOfMemoryError
from kernbench.sim_engine import MemoryStore
from kernbench.sim_engine.memory_store import ALIGNMENT, AddressSpace


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(st.tuples(st.just("allocate"), st.integers(0, 3000)), st.tuples(st.just("free"), st.integers(0, 99))),
        max_size=60,
    )
)
def test_live_allocations_never_overlap_and_freed_memory_comes_back(steps):
    space = AddressSpace("hbm", 0, 16 * 1024)
    live = []
    for what, number in steps:
        if what == "allocate":
            try:
                live.append(space.allocate(number))
            except OutOfMemoryError:
                # first fit: no hole is long enough
                edges = [(a.address, a.address + max(ALIGNMENT, -(-a.nbytes // ALIGNMENT) * ALIGNMENT)) for a in live]
                edges = [(0, 0), *sorted(edges), (space.size, space.size)]
                holes = [after[0] - before[1] for before, after in pairwise(edges)]
                assert max(holes) < max(ALIGNMENT, number)
        elif live:
            space.free(live.pop(number % len(live)))
        taken = sorted((a.address, a.address + max(a.nbytes, 1)) for a in live)
        assert all(before[1] <= after[0] for before, after in pairwise(taken))
        assert all(a.address % ALIGNMENT == 0 for a in live)
        assert [a.address for a in space.allocations()] == [begin for begin, _ in taken]
        assert space.used <= space.peak <= space.size
    for allocation in live:
        space.free(allocation)
    assert space.used == 0
    assert space.allocate(space.size).address == 0


def test_freeing_twice_is_an_error():
    space = AddressSpace("hbm", 0, 4096)
    allocation = space.allocate(10)
    space.free(allocation)
    with pytest.raises(MemoryAccessError, match="freed twice"):
        space.free(allocation)


def test_read_and_write_by_address(topology):
    store = MemoryStore(topology.topology_obj)
    backing = np.zeros(100, dtype=np.uint8)
    allocation = store.allocate("hbm", 3, 100, name="weights", backing=backing)
    store.write("hbm", 3, allocation.address + 10, np.arange(5, dtype=np.uint8))
    assert backing[10:15].tolist() == [0, 1, 2, 3, 4]
    copy = store.read("hbm", 3, allocation.address + 10, 5)
    backing[:] = 9
    assert copy.tolist() == [0, 1, 2, 3, 4]
    for address, nbytes in (
        (allocation.address + 98, 3),
        (allocation.address + 100, 1),
        (allocation.address + 5000, 1),
    ):
        with pytest.raises(MemoryAccessError, match=r"outside every live allocation.*weights \(100 bytes at hbm\[3\]"):
            store.read("hbm", 3, address, nbytes)
    store.free(allocation)
    with pytest.raises(MemoryAccessError, match="nothing is allocated before it"):
        store.read("hbm", 3, allocation.address, 1)
    with pytest.raises(MemoryAccessError, match="no memory 'l3' on SIP 0"):
        store.space("l3", 0)


def test_tensors_are_found_by_modelled_and_by_host_address(ctx):
    x = ctx.arange(10, dtype="int32", name="x")
    allocation = ctx.engine.memory.find_host(x.data_ptr() + 8)
    assert allocation.name == "x"
    assert allocation.nbytes == 40
    values = ctx.engine.memory.read("hbm", 0, allocation.address, 40).view(np.int32)
    assert values.tolist() == list(range(10))
    ctx.engine.memory.write("hbm", 0, allocation.address, np.zeros(4, dtype=np.uint8))
    y = ctx.zeros(10, dtype="int32")
    assert y.tolist() == [0] * 10
    assert x[1].item() == 1


def test_memory_comes_back_when_tensors_die(ctx):
    gc.collect()
    before = ctx.accelerator.memory_allocated()
    x = ctx.empty(1000)
    view = x[10:20]
    assert ctx.accelerator.memory_allocated() == before + 4096
    del x
    assert ctx.accelerator.memory_allocated() == before + 4096
    del view
    assert ctx.accelerator.memory_allocated() == before


def test_out_of_memory_says_how_much_there_is():
    with kernbench.simulate(enable_data=False) as ctx:
        x = ctx.empty(80 << 30, dtype="int8", name="x")
        message = r"Tried to allocate 32.00 GiB. GPU 0 has a total capacity of 96.00 GiB of which 16.00 GiB is free"
        with pytest.raises(torch.OutOfMemoryError, match=message):
            ctx.empty(32 << 30, dtype="int8", name="y")
        del x
        ctx.empty(90 << 30, dtype="int8")


def test_each_rank_allocates_on_its_own_sip(ctx):
    def worker(rank):
        x = ctx.ones(4)
        ctx.accelerator.set_device_index(7 - rank)
        y = ctx.ones(4)
        sips.append([ctx.simulation.storages.of(each).allocation.sip for each in (x, y)])

    sips: list[list[int]] = []
    ctx.multiprocessing.spawn(worker, nprocs=8)
    assert sips == [[rank, 7 - rank] for rank in range(8)]
