"""Races of streams, hosts and collectives: found with both lines where they are, and nowhere else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.benches.order_cost import PROGRAMS, CostPlan, step_seconds
from kernbench.order import Races, mode_of
from kernbench.torch_backend.gpu.device.devices import bound_devices
from tests.order.stream_programs import PAIRS

Program = Callable[[bool], None]


def races_of(body: Callable[..., None], *args: Any, world: int = 2, **options: Any) -> Races:
    """The races of a program on simulated GPUs."""

    def worker(rank: int) -> None:
        dist.init_process_group()
        torch.cuda.set_device(rank)
        body(*args)

    with kernbench.simulate("dgx_h100", races="warn", **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=world)
        return ctx.simulation.order.races


def marked(program: Program, mark: str) -> int:
    """The line of a program that has a mark."""
    lines, first = inspect.getsourcelines(program)
    (found,) = [number for number, line in enumerate(lines, first) if line.rstrip().endswith(f"# {mark}")]
    return found


@pytest.mark.parametrize("data", [True, False], ids=["data", "no data"])
@pytest.mark.parametrize("program", PAIRS, ids=lambda program: program.__name__)
def test_a_race_is_found_where_it_is_and_only_there(program: Program, data: bool) -> None:
    found = races_of(program, False, enable_data=data).found
    assert found, "the program has a race"
    lines = {(race.first.where.line, race.second.where.line) for race in found}
    assert lines == {(marked(program, "first"), marked(program, "second"))}
    assert races_of(program, True, enable_data=data).found == []


@pytest.mark.parametrize("what", PROGRAMS)
def test_training_steps_of_torch_have_no_race(what: str) -> None:
    """Buckets, prefetched gathers, memory that is freed and resized, futures, functional collectives: all is ordered."""
    plan = CostPlan(width=64, layers=3, world=2, steps=1)
    assert step_seconds(PROGRAMS[what], plan, races=True) > 0


def test_memory_that_a_storage_gets_again_is_other_memory() -> None:
    """As FSDP1 does it: gathered on one stream, used on another, recorded, given back, and taken again for the next gather."""

    def body() -> None:
        gathers, part = torch.cuda.Stream(), torch.ones(64, device="cuda")
        gathers.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(gathers):
            whole = torch.empty(128, device="cuda")
            whole.untyped_storage().resize_(0)
        for _ in range(2):
            with torch.cuda.stream(gathers):
                whole.untyped_storage().resize_(512)
                dist.all_gather_into_tensor(whole, part)
            torch.cuda.current_stream().wait_stream(gathers)
            whole.sum()
            whole.record_stream(torch.cuda.current_stream())
            whole.untyped_storage().resize_(0)

    assert races_of(body).found == []


def test_a_comment_with_a_reason_excuses_a_line() -> None:
    def body(reason: bool) -> None:
        x = torch.ones(8, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        if reason:
            x.sum()  # kernbench: ordered: the sum is not used
        else:
            x.sum()  # kernbench: ordered
        work.wait()

    excused, found = races_of(body, True), races_of(body, False)
    assert [race.excuse for race in excused.excused] == ["the sum is not used"]
    assert (excused.found, found.excused) == ([], [])
    assert len(found.found) == 1  # both ranks run the same two lines


def test_a_race_is_raised_at_the_second_access_with_its_report() -> None:
    def worker(rank: int) -> None:
        x = torch.ones(8, device="cuda")
        there = x.to("cpu", non_blocking=True)
        there.tolist()

    with kernbench.simulate("dgx_h100", races=True) as ctx, pytest.raises(kernbench.SpawnException) as raised:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    error = raised.value.errors[0]
    assert isinstance(error, kernbench.RaceError)
    first, *lines = str(error).splitlines()
    assert first == "race: read after write of all of float32 [8], 32 bytes, and nothing orders the two."
    assert lines[1].startswith("  second: rank 0, host: tolist reads it, at ")
    assert "synchronize the default stream" in str(error)


def test_modes() -> None:
    assert (mode_of(True), mode_of(False), mode_of("warn")) == ("error", "off", "warn")
    with pytest.raises(kernbench.ConfigError, match="races='loud'"):
        mode_of("loud")


def test_parameters_without_a_shape_are_nobodys_memory() -> None:
    def body() -> None:
        model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d()).cuda()
        model(torch.ones(2, 3, device="cuda")).sum().backward()

    assert races_of(body, world=1).found == []


def test_what_a_host_waits_for_includes_receives_that_are_on_no_stream_yet() -> None:
    with kernbench.simulated_gpu("dgx_h100", races=True):
        host = bound_devices().mine().host
        assert host.order is not None
        torch.ones(2, device="cuda")
        host.order.queue("recv any->0")
        assert host.streams_of(host.sip) == host.streams_of(None) == ["compute", "recv any->0"]
        torch.ones(2, device="cuda:1")
        assert host.streams_of(host.sip) == ["compute"]


def _backward_beside_a_write(waits: bool) -> None:
    """``weight``, which the backward pass reads, is changed on a stream that it does not wait for."""
    weight, given = (torch.ones(64, 64, device="cuda", requires_grad=True) for _ in range(2))
    side = torch.cuda.Stream()
    loss = (given @ weight).sum()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        weight.data.mul_(2)
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    loss.backward()


def test_a_backward_pass_waits_for_no_stream_that_its_forward_pass_was_not_on() -> None:
    assert races_of(_backward_beside_a_write, True).found == []
    (race,) = races_of(_backward_beside_a_write, False).found
    assert race.kind == "read after write"
