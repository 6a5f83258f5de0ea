"""Steps of a training program: found, stopped after, timed, extrapolated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import kernbench
from kernbench.errors import ConfigError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.trace.rank_times import rank_times
from kernbench.trace.step_times import TOLERANCE, StepTime, StepTimes, achieved
from kernbench.trace.steps_report import duration, steps_report

PROGRAM = Path(__file__).with_name("training_program.py")
Body = Callable[[int], None]


def spawned(body: Body, world: int = 2, **options: Any) -> tuple[StepTimes, RuntimeContext]:
    """The steps of ``body``, run by every rank on a GPU of its own."""

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        try:
            body(rank)
        finally:
            dist.destroy_process_group()

    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=world)
        return StepTimes.of(ctx.simulation), ctx


def model_and_data() -> tuple[torch.nn.Module, torch.Tensor]:
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
    return DistributedDataParallel(model.cuda()), torch.randn(512, 256, device="cuda")


def train(steps: int, *, accumulate: int = 1, told: list[int] | None = None) -> Body:
    def body(rank: int) -> None:
        model, x = model_and_data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            for _ in range(accumulate):
                kernbench.report_batch(tokens=100, samples=10)
                model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if told is not None:
                told.append(step)

    return body


def test_steps_add_up_to_the_run() -> None:
    times, ctx = spawned(train(5))
    assert [step.number for step in times.steps] == [1, 2, 3, 4, 5]
    assert times.ranks == 2
    assert times.stopped is None
    assert times.notes == ()
    for before, after in zip(times.steps, times.steps[1:], strict=False):
        assert before.end == after.begin
    assert times.steps[0].begin == 0
    whole = max(line.total for line in rank_times(ctx.simulation))
    assert times.steps[-1].end <= whole < times.steps[-1].end + times.steps[-1].seconds
    for step in times.steps:
        shares = step.compute or 0, step.communication or 0, step.idle or 0
        assert sum(shares) == pytest.approx(1)
        assert min(shares) > 0


def test_shares_are_those_of_the_whole_run() -> None:
    """Seconds of compute, step by step, add up to what the ranks' table says, but for what comes after the last step."""
    times, ctx = spawned(train(3))
    computing = sum((step.compute or 0) * step.seconds for step in times.steps)
    lines = rank_times(ctx.simulation)
    assert computing == pytest.approx(sum(line.compute for line in lines) / len(lines), rel=0.01)


def test_repeated_steps_are_equal_and_are_extrapolated() -> None:
    times, _ = spawned(train(6))
    assert len(times.steady) >= 3
    seconds = [step.seconds for step in times.steady]
    assert max(seconds) <= min(seconds) * (1 + TOLERANCE)
    longer, _ = spawned(train(12))
    assert times.extrapolate(12) == pytest.approx(longer.steps[-1].end, rel=1e-3)
    assert times.extrapolate(2) == times.steps[1].end
    report = "\n".join(steps_report(times, None, extrapolate=1000))
    assert f"steps {times.steady[0].number}-6 are equal (within 0.1%)" in report
    assert "1000 steps: " in report


def test_steps_are_the_same_each_time() -> None:
    assert spawned(train(2), seed=1)[0] == spawned(train(2), seed=2)[0]


def test_accumulated_gradients_are_one_step() -> None:
    times, _ = spawned(train(3, accumulate=4))
    assert len(times.steps) == 3
    assert [(step.tokens, step.samples) for step in times.steps] == [(400, 40)] * 3


def test_steps_without_gradients_are_no_steps() -> None:
    """After a resume: ``get_state_dict`` makes the state of a fresh optimizer by a step of zeros."""

    def body(rank: int, *, resumed: bool) -> None:
        model, x = model_and_data()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if resumed:
            get_state_dict(model, optimizer)
            assert optimizer.state
        for _ in range(2):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.step()  # none has a gradient

    for resumed in (False, True):
        times, _ = spawned(partial(body, resumed=resumed))
        assert [step.number for step in times.steps] == [1, 2]
        stopped, _ = spawned(partial(body, resumed=resumed), stop_after_steps=1)
        assert stopped.steps == times.steps[:1]


def test_gradients_that_no_backward_pass_has_made_are_gradients() -> None:
    """Of a program with gradients of its own, and of one whose learning rate begins at zero."""

    def by_hand(rank: int) -> None:
        weight = torch.nn.Parameter(torch.ones(64, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            weight.grad = torch.ones_like(weight)
            optimizer.step()

    def warming_up(rank: int) -> None:
        model, x = model_and_data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 2)
        for _ in range(3):
            model(x).square().mean().backward()
            optimizer.step()
            schedule.step()

    for body in (by_hand, warming_up):
        assert [step.number for step in spawned(body)[0].steps] == [1, 2, 3]


@pytest.mark.parametrize("count", [1, 3])
def test_the_program_is_stopped_after_some_steps(count: int) -> None:
    told: list[int] = []
    times, ctx = spawned(train(50, told=told), stop_after_steps=count)
    assert (len(times.steps), times.stopped) == (count, count)
    assert told == sorted([*range(count - 1)] * 2)  # what follows the last step's optimizer is not run
    assert not _global_optimizer_post_hooks
    assert not _global_optimizer_pre_hooks
    whole, _ = spawned(train(count + 1))
    assert times.steps[0] == whole.steps[0]  # from its end on clocks have settled
    for mine, theirs in zip(times.steps, whole.steps[:count], strict=True):
        assert replace(mine, begin=0, end=0, compute=0, communication=0, idle=0) == replace(
            theirs, begin=0, end=0, compute=0, communication=0, idle=0
        )
    assert all(op.end is not None for op in ctx.engine.op_log.operations)
    assert f"stopped after {count} step" in "\n".join(steps_report(times, None))


def test_optimizers_made_outside_are_as_they_were() -> None:
    init = torch.optim.Optimizer.__init__
    spawned(train(1))
    assert torch.optim.Optimizer.__init__ is init


def test_less_than_a_step_is_an_error() -> None:
    with pytest.raises(ConfigError, match="expected a whole number from 1 on"), kernbench.simulate(stop_after_steps=0):
        pass


def adversarial(ratio: int, rounds: int) -> Body:
    """Two models with an optimizer each: the first steps ``ratio`` times for each step of the second."""

    def body(rank: int) -> None:
        critic, x = model_and_data()
        generator, _ = model_and_data()
        first = torch.optim.SGD(critic.parameters(), lr=0.1)
        second = torch.optim.SGD(generator.parameters(), lr=0.1)
        for _ in range(rounds):
            for _ in range(ratio):
                critic(x).mean().backward()
                first.step()
            generator(x).mean().backward()
            second.step()

    return body


@pytest.mark.parametrize("ratio", [1, 3])
def test_of_several_optimizers_the_rarest_counts(ratio: int) -> None:
    times, ctx = spawned(adversarial(ratio, 4))
    assert len(times.steps) == 4
    ends = ctx.simulation.steps.of_rank[0].ends
    assert [len(each) for each in ends.values()] == [4 * ratio, 4]
    assert times.steps[-1].end == max(mine.ends[1][-1].time for mine in ctx.simulation.steps.of_rank.values())


def test_a_stop_waits_for_the_optimizers_that_have_not_stepped() -> None:
    times, ctx = spawned(adversarial(1, 4), stop_after_steps=1)
    assert len(times.steps) == 1
    assert [len(each) for each in ctx.simulation.steps.of_rank[0].ends.values()] == [1, 1]


def test_an_optimizer_that_is_never_used_does_not_keep_a_program_running() -> None:
    def body(rank: int) -> None:
        model, x = model_and_data()
        spare = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(50):
            model(x).mean().backward()
            optimizer.step()
        spare.step()

    times, _ = spawned(body, stop_after_steps=2)
    assert (len(times.steps), times.stopped) == (2, 2)


def test_optimizers_that_step_during_backward_are_one_step() -> None:
    def body(rank: int) -> None:
        model, x = model_and_data()
        for parameter in model.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1)

            def step(_: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.step()

            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(x).mean().backward()

    assert len(spawned(body)[0].steps) == 3
    assert len(spawned(body, stop_after_steps=2)[0].steps) == 2


def test_an_optimizer_that_calls_another_makes_one_step() -> None:
    def body(rank: int) -> None:
        model, x = model_and_data()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        for _ in range(3):
            model(x).mean().backward()
            optimizer.step()

    assert len(spawned(body)[0].steps) == 3
    assert len(spawned(body, stop_after_steps=2)[0].steps) == 2


def test_a_program_tells_of_its_steps() -> None:
    def body(rank: int) -> None:
        model, x = model_and_data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            for _ in range(2):
                model(x).mean().backward()
                optimizer.step()
            kernbench.report_step()

    assert len(spawned(body)[0].steps) == 3
    assert len(spawned(body, stop_after_steps=2)[0].steps) == 2


def test_a_program_that_swallows_the_stop_makes_no_more_steps() -> None:
    swallowed: list[int] = []

    def body(rank: int) -> None:
        model, x = model_and_data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            try:
                model(x).mean().backward()
                optimizer.step()
            except BaseException:
                swallowed.append(step)

    times, _ = spawned(body, stop_after_steps=2)
    assert (len(times.steps), times.stopped) == (2, 2)
    assert sorted(swallowed) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_ranks_that_wait_for_stopped_ones_are_stopped_too() -> None:
    def body(rank: int) -> None:
        model, x = model_and_data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            model(x).mean().backward()
            if rank == 0:
                optimizer.step()
        raise AssertionError("nobody gets here")

    times, ctx = spawned(body, stop_after_steps=2)
    assert len(times.steps) == 2
    assert ctx.simulation.steps.of_rank[1].released
    assert any("rank 1 made no optimizer step" in note for note in times.notes)
    assert any("rank 1 had not ended" in note for note in times.notes)


def test_a_real_deadlock_is_still_one() -> None:
    def body(rank: int) -> None:
        if rank == 0:
            dist.all_reduce(torch.ones(1, device="cuda"))

    with pytest.raises(kernbench.SpawnException, match="DeadlockError"):
        spawned(body, stop_after_steps=2)


def test_programs_without_steps_have_none() -> None:
    times, ctx = spawned(lambda rank: None, stop_after_steps=2)
    assert times.steps == times.steady == times.typical == ()
    assert achieved(times, ctx.topology.device) is None
    assert [*steps_report(times, None)] == []
    assert "nothing to extrapolate" in "\n".join(steps_report(times, None, extrapolate=10))
    assert "nothing to count" in "\n".join(steps_report(times, None, wanted=True))


def test_utilization_by_hand() -> None:
    times, ctx = spawned(train(4))
    device = ctx.topology.device
    figures = achieved(times, device)
    assert figures is not None
    per_rank = 3 * 2 * 512 * 256 * 1024 * 2 - 2 * 512 * 256 * 1024  # the first layer's input needs no gradient
    step = times.steady[0]
    assert step.flops == {"fp32": 2 * per_rank}
    assert figures.mfu == pytest.approx(per_rank / device.matrix_rate("fp32") / step.seconds, rel=TOLERANCE)
    assert figures.hfu == figures.mfu
    assert (figures.tokens, figures.samples) == (100, 10)
    told = achieved(times, device, tokens=7)
    assert told is not None
    assert (told.tokens, told.samples) == (7, 10)


def test_ranks_that_are_run_once_count_as_all() -> None:
    every, ctx = spawned(train(3), 8, enable_data=False)
    some, folded = spawned(train(3), 8, enable_data=False, ranks="0,7")
    assert len(folded.simulation.steps.of_rank) == 2
    assert (some.ranks, [step.flops for step in some.steps]) == (8, [step.flops for step in every.steps])
    whole, part = achieved(every, ctx.topology.device), achieved(some, folded.topology.device)
    assert whole is not None
    assert part is not None
    assert part.mfu == pytest.approx(whole.mfu, rel=0.05)


def test_values_or_not_steps_take_as_long() -> None:
    assert spawned(train(3))[0] == spawned(train(3), enable_data=False)[0]


def test_shares_of_what_the_log_has_dropped_are_not_made_up() -> None:
    times, _ = spawned(train(6), log_limit=60)
    assert [step.compute is None for step in times.steps][:3] == [True] * 3
    assert times.steps[-1].compute is not None
    assert [step.seconds for step in times.steps] == [step.seconds for step in spawned(train(6))[0].steps]
    assert "-" in [*steps_report(times, None)][1]


def test_ranks_that_report_different_batches() -> None:
    def body(rank: int) -> None:
        kernbench.report_batch(tokens=rank + 1)
        kernbench.report_step()

    times, _ = spawned(body)
    assert times.steps[0].tokens == 2
    assert any("different batches" in note for note in times.notes)


def test_reports_outside_a_simulation_do_nothing() -> None:
    code = (
        "import sys, kernbench; kernbench.report_batch(tokens=3); kernbench.report_step(); "
        "print('torch' in sys.modules, len([m for m in sys.modules if m.startswith('kernbench')]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "3"]


@pytest.mark.parametrize("batch", [{"tokens": -1}, {"samples": 1.5}, {"tokens": True}])
def test_batches_are_whole_numbers(batch: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected a whole number"):
        kernbench.report_batch(**batch)


def made_of(*seconds: float) -> StepTimes:
    ends = [sum(seconds[: number + 1]) for number in range(len(seconds))]
    steps = (StepTime(at + 1, end - seconds[at], end, 0.5, 0.25, 0.25) for at, end in enumerate(ends))
    return StepTimes(tuple(steps), ranks=1)


@pytest.mark.parametrize(
    ("seconds", "groups", "steady"),
    [
        ((1,), [1], []),
        ((2, 1, 1, 1), [1, 3], [2, 3, 4]),
        ((1, 1, 2, 1, 1), [2, 1, 2], [4, 5]),
        ((1, 1, 1, 2, 1, 1), [3, 1, 2], [1, 2, 3]),
        ((1, 1.0009, 1.0018), [2, 1], [1, 2]),
        ((1, 2, 3), [1, 1, 1], []),
    ],
)
def test_which_steps_are_equal(seconds: tuple[float, ...], groups: list[int], steady: list[int]) -> None:
    times = made_of(*seconds)
    assert [len(group) for group in times.equal()] == groups
    assert [step.number for step in times.steady] == steady


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (made_of(5, 1, 1), "1000 steps: 16.73 min"),
        (made_of(5), "one step does not say"),
        (made_of(5, 2), "1000 steps: about 33.38 min, if all to come are as step 2"),
        (made_of(5, 1, 2), "1000 steps: about 25.06 min; they differ: 1 s to 2 s each"),
    ],
)
def test_extrapolation_says_what_it_rests_on(times: StepTimes, expected: str) -> None:
    assert expected in [*steps_report(times, None, extrapolate=1000)][-1]


def test_many_different_steps_are_shown_in_part() -> None:
    lines = [*steps_report(made_of(*range(1, 101)), None)]
    assert len(lines) == 1 + 8 + 1 + 8 + 1
    assert lines[9].strip() == "..."
    p50, p90 = (np.percentile(range(2, 101), share, method="inverted_cdf") for share in (50, 90))
    assert lines[-1] == f"steps 2-100: p50 {p50:g} s, p90 {p90:g} s"


def test_steps_that_are_as_good_as_equal_have_no_percentiles() -> None:
    assert not any("p50" in line for line in steps_report(made_of(9, *[1] * 20), None))
    assert not any("p50" in line for line in steps_report(made_of(9, 1, 2, 3), None))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 us"), (41.2e-3, "41.2 ms"), (1.5, "1.5 s"), (3600, "60 min"), (1e6, "11.57 days"), (86400, "24 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
