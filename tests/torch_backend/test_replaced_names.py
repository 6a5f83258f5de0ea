"""Names of torch and Python that are replaced while ranks run: set by each spawn, gone after it."""

from __future__ import annotations

import itertools
import random
import time
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from _pytest import timing

import kernbench
from kernbench import KernbenchError
from kernbench.torch_backend.patches import Patches


class Owner:
    first = 1


def test_patches_are_set_again_after_they_were_undone():
    patches = Patches()
    patches.set(Owner, "first", 2)
    patches.add(Owner, "second", 3)
    patches.set(Owner, "first", 4)
    patches.undo()
    assert Owner.first == 1
    assert not hasattr(Owner, "second")
    assert patches.redo()
    assert (Owner.first, Owner.second) == (4, 3)  # type: ignore[attr-defined]
    patches.undo()
    patches.undo()
    assert Owner.first == 1
    assert not hasattr(Owner, "second")


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
@pytest.mark.parametrize("lifts", [False, True])
def test_patches_of_one_attribute_are_undone_in_any_order(order: tuple[int, ...], lifts: bool) -> None:
    """Also where one gives it the value that another has found."""
    several = [Patches() for _ in range(3)]
    for number, each in enumerate(several):
        each.set(Owner, "first", f"{number}, to be replaced")
        each.set(Owner, "first", number)
        each.add(Owner, "second", number)
    left = list(range(3))
    for number in order:
        with several[left[-1]].lifted() if lifts and left[-1] != number else nullcontext():
            several[number].undo()
        left.remove(number)
        assert getattr(Owner, "second", None) == (left[-1] if left else None)
        assert Owner.first == (left[-1] if left else 1)


def test_patches_are_not_set_over_what_somebody_has_changed(monkeypatch):
    patches = Patches()
    patches.add(Owner, "third", 3)
    patches.set(Owner, "first", 2)
    patches.undo()
    monkeypatch.setattr(Owner, "first", 5)
    assert not patches.redo()
    assert Owner.first == 5
    assert not hasattr(Owner, "third")


def test_a_name_that_its_owner_does_not_have_cannot_be_replaced():
    patches = Patches()
    with pytest.raises(KernbenchError, match=r"test_replaced_names replaces 'fourth' of Owner.*torch 2"):
        patches.set(Owner, "fourth", 4)
    assert not hasattr(Owner, "fourth")
    patches.add(Owner, "fourth", 4)
    patches.set(Owner, "fourth", 5)
    assert vars(Owner)["fourth"] == 5
    patches.undo()
    assert not hasattr(Owner, "fourth")


def spawn(body, nprocs: int = 2, system: str | None = None) -> list:
    found: dict[int, object] = {}
    with kernbench.simulate(system) as ctx:
        ctx.multiprocessing.spawn(lambda rank: found.__setitem__(rank, body(rank)), nprocs=nprocs)
    return [found[rank] for rank in range(nprocs)]


def test_every_spawn_sets_them_and_takes_them_away():
    names = [(torch.cuda, "synchronize"), (torch, "zeros"), (time, "sleep"), (random, "random"), (dist, "TCPStore")]
    stock = [getattr(owner, name) for owner, name in names]
    seen = []
    for _ in range(2):
        seen.append(spawn(lambda rank: [getattr(owner, name) for owner, name in names])[0])
        assert [getattr(owner, name) for owner, name in names] == stock
    assert seen[0] == seen[1]
    assert all(inside is not outside for inside, outside in zip(seen[0], stock, strict=True))


def test_each_spawn_has_its_own_system_behind_the_same_names():
    count = torch.cuda.device_count
    assert spawn(lambda rank: (torch.cuda.device_count(), len(torch.cuda.default_generators)))[0] == (8, 8)
    assert spawn(lambda rank: torch.cuda.device_count(), system="dgx_h100")[0] == 8
    with kernbench.simulate(devices=[0, 1, 2]) as ctx:
        found = []
        ctx.multiprocessing.spawn(
            lambda rank: found.append((torch.cuda.device_count(), len(torch.cuda.default_generators))), nprocs=1
        )
        assert found == [(3, 3)]
    assert torch.cuda.device_count is count


def test_what_a_test_has_patched_before_is_what_ranks_build_on(monkeypatch):
    spawn(lambda rank: None)
    calls = []
    stock = torch.zeros

    def counted(*args, **kwargs):
        calls.append(args)
        return stock(*args, **kwargs)

    monkeypatch.setattr(torch, "zeros", counted)
    assert [tensor.tolist() for tensor in spawn(lambda rank: torch.zeros(2))] == [[0.0, 0.0]] * 2
    assert calls == [(2,), (2,)]
    assert torch.zeros is counted


def test_a_function_kept_from_a_rank_is_the_stock_one_outside():
    kept = {}

    def keep(rank):
        kept.update(sleep=time.sleep, clock=time.perf_counter, zeros=torch.zeros, uniform=random.random)

    spawn(keep)
    assert kept["clock"]() == pytest.approx(time.perf_counter(), abs=60)
    assert kept["zeros"](2).tolist() == [0.0, 0.0]
    random.seed(3)
    first = random.random()
    random.seed(3)
    assert kept["uniform"]() == first
    kept["sleep"](0.0)


def test_pytest_times_its_tests_by_the_machines_clock():
    """A fixture that opens a GPU makes the test a rank: what begins on one clock would end on the other."""
    times = []
    begin = timing.Instant()
    spawn(lambda rank: times.append(begin.elapsed().seconds), nprocs=1)
    assert 0 <= times[0] < 60


def test_a_simulation_inside_another_ones_ranks_time_has_names_of_its_own():
    """Ranks that have not been joined keep theirs while main runs another simulation."""
    times = []

    def body(rank):
        time.sleep(2.0)
        times.append(round(time.perf_counter(), 3))

    with kernbench.simulate() as outer:
        context = outer.multiprocessing.spawn(body, nprocs=1, join=False)
        with kernbench.simulate() as inner:
            inner.multiprocessing.spawn(body, nprocs=1)
        assert context is not None
        while not context.join():
            pass
    assert times == [2.0, 2.0]


_Event, _Stream, _Graph = torch.cuda.Event, torch.cuda.Stream, torch.cuda.CUDAGraph
"""As a module keeps them that says ``from torch.cuda import Event`` before there are simulated GPUs."""


def _made_of_event() -> object:
    """The class of what torch makes of its event where there are no simulated GPUs; in a build without CUDA an error's text."""
    try:
        return type(_Event())
    except RuntimeError as error:
        return str(error)


def test_classes_kept_from_before_make_what_the_names_mean_by_then() -> None:
    before, stock = _made_of_event(), [vars(cls)["__new__"] for cls in (_Event, _Stream, _Graph)]
    for _ in range(2):
        with kernbench.simulated_gpu("dgx_h100"):
            first, last = _Event(enable_timing=True), _Event(enable_timing=True)
            with torch.cuda.stream(_Stream(priority=-1)):
                first.record()
                torch.cuda._sleep(1_000_000)
                last.record()
            last.synchronize()
            assert first.elapsed_time(last) == pytest.approx(1.0, rel=0.1)
            assert [type(cls()) for cls in (_Event, _Stream, _Graph)] == [
                torch.cuda.Event, torch.cuda.Stream, torch.cuda.CUDAGraph,
            ]  # fmt: skip
    assert [vars(cls)["__new__"] for cls in (_Event, _Stream, _Graph)] == stock
    assert _made_of_event() == before
