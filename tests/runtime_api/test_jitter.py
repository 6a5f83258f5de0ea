"""Ranks that are not equally quick: draws, what they change, and that nothing else changes them."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

import kernbench
from kernbench.cli import app
from kernbench.errors import ConfigError
from kernbench.sim_engine.operation import ON_PES, Operation
from kernbench.simulation.active_simulation import current_simulation
from kernbench.simulation.time.jitter import Jitter, pace_of, slowest_of
from kernbench.trace.notes import notes_of
from kernbench.trace.rank_times import rank_times
from tests.processes.outcomes import assert_equal, outcome

STEPS = 3


def worker(rank: int, steps: int = STEPS, size: int = 512) -> None:
    """Steps of a product and a sum of little of it over all ranks."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    x = torch.full((size, size), 0.5, device="cuda")
    for _ in range(steps):
        y = (x @ x)[0, :64]
        dist.all_reduce(y)
        torch.cuda.synchronize()
        kernbench.report_step()
    y.cpu()
    dist.destroy_process_group()


def operations(ranks: int = 4, **options: Any) -> list[Operation]:
    with kernbench.simulate("dgx_h100", enable_data=False, **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks)
        return sorted(ctx.engine.op_log.operations, key=lambda op: -1 if op.rank is None else op.rank)


def test_draws_have_the_mean_and_the_deviation_that_are_asked_for() -> None:
    drawn = [pace_of(7, rank, step, 0.1) for rank in range(100) for step in range(100)]
    assert statistics.fmean(drawn) == pytest.approx(1.0, abs=0.003)
    assert statistics.pstdev(drawn) == pytest.approx(0.1, rel=0.03)
    assert min(drawn) > 0
    assert len(set(drawn)) == len(drawn)
    assert pace_of(8, 3, 5, 0.1) != pace_of(7, 3, 5, 0.1) == pace_of(7, 3, 5, 0.1)


@pytest.mark.parametrize(("ranks", "deviations"), [(1, 0.0), (2, 0.5642), (8, 1.4236), (100, 2.5076), (1000, 3.2414)])
def test_the_slowest_is_what_tippett_says(ranks: int, deviations: float) -> None:
    assert slowest_of(ranks, 1e-4) == pytest.approx(1 + deviations * 1e-4, abs=2e-7)


def test_the_slowest_is_the_mean_of_the_largest_draws() -> None:
    largest = [max(pace_of(1, rank, step, 0.2) for rank in range(16)) for step in range(1500)]
    assert statistics.fmean(largest) == pytest.approx(slowest_of(16, 0.2), rel=0.01)


def test_nothing_is_said_of_the_slowest_where_no_rank_ran() -> None:
    assert not list(Jitter(0.05, {}, 0).sentences(0))
    assert "slowest of 2" in next(Jitter(0.05, {}, 0).sentences(2))


def test_kernels_take_their_ranks_pace_and_nothing_else_does() -> None:
    even, uneven = operations(), operations(jitter=0.1, stragglers={2: 1.5}, seed=3)
    seen: dict[int, int] = {}
    assert len(even) == len(uneven)
    for before, after in zip(even, uneven, strict=True):
        assert (before.name, before.rank, before.kind) == (after.name, after.rank, after.kind)
        if before.kind in ON_PES and before.rank is not None and before.duration:
            if before.kind == "gemm":
                step = seen[before.rank] = seen.get(before.rank, -1) + 1
                expected = pace_of(3, before.rank, step, 0.1) * (1.5 if before.rank == 2 else 1.0)
                assert after.duration == pytest.approx(before.duration * expected)
        elif before.kind == "dma":
            assert after.duration == before.duration
    assert seen == dict.fromkeys(range(4), STEPS - 1)


def test_collectives_wait_for_the_slowest() -> None:
    found = operations(jitter=0.1, seed=5)
    products = [op for op in found if op.kind == "gemm"]
    sums = [op for op in found if op.name == "all_reduce"]
    assert len(products) == len(sums) == 4 * STEPS
    for step in range(STEPS):
        last = max(op.end or 0.0 for op in products[step::STEPS])
        assert all((op.end or 0.0) > last for op in sums[step::STEPS])


@pytest.mark.parametrize("isolation", ["greenlet", "process"])
def test_what_keeps_ranks_apart_changes_nothing(isolation: str, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"jitter": 0.05, "stragglers": {1: 1.3}, "seed": 2}

    def printed() -> str:
        return capsys.readouterr().out

    def body(rank: int) -> None:
        simulation = current_simulation()
        assert simulation is not None
        distributed: Any = simulation.distributed
        x = torch.full((256, 256), 0.5)
        for _ in range(STEPS):
            y = x @ x
            distributed.all_reduce(y)
            kernbench.report_step()
        print(y.sum())

    one, other = (outcome(body, each, 2, printed, **options) for each in ("carrier", isolation))
    assert len({operation[8] for operation in one.operations if operation[1] == "gemm"}) == 2 * STEPS
    assert_equal(one, other)


def test_values_change_nothing() -> None:
    def times(enable_data: bool) -> list[Any]:
        with kernbench.simulate("dgx_h100", enable_data=enable_data, jitter=0.05, stragglers={1: 1.3}) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=2)
            return [(op.name, op.rank, op.start, op.end) for op in ctx.engine.op_log.operations]

    assert times(True) == times(False)


def test_folded_ranks_take_what_the_slowest_is_expected_to() -> None:
    more = slowest_of(8, 0.08) - 1
    assert more == pytest.approx(1.42 * 0.08, rel=0.05)

    def length(**options: Any) -> float:
        with kernbench.simulate("dgx_a100", enable_data=False, log_limit=None, **options) as ctx:
            ctx.multiprocessing.spawn(worker, args=(100, 4096), nprocs=8)
            folding = ctx.simulation.hosts.folding
            assert (folding is not None) == ("ranks" in options)
            notes = notes_of(ctx.simulation, rank_times(ctx.simulation))
            assert any(f"slowest of 8 are expected to take {more:.2%}" in note for note in notes) == (
                "jitter" in options
            )
            return ctx.engine.latest_end

    even = length()
    all_run, folded = length(jitter=0.08), length(jitter=0.08, ranks="auto")
    assert folded - even == pytest.approx(all_run - even, rel=0.07)
    assert all_run > 1.02 * even


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a share"):
        Jitter(1.5)
    with pytest.raises(ConfigError, match="straggler 3"):
        Jitter(stragglers={3: 0.0})
    with (
        pytest.raises(ConfigError, match="not one of 2 ranks"),
        kernbench.simulate("dgx_h100", stragglers={5: 2.0}) as ctx,
    ):
        ctx.multiprocessing.spawn(worker, nprocs=2)
    with (
        pytest.raises(ConfigError, match="--ranks 0,3,7"),
        kernbench.simulate("dgx_h100", enable_data=False, ranks="auto", stragglers={3: 2.0}) as ctx,
    ):
        ctx.multiprocessing.spawn(worker, nprocs=8)
    result = CliRunner().invoke(app, ["run", "--straggler", "3", "x.py"])
    assert result.exit_code == 2
    assert "such as 3:1.2" in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--straggler", "1:2", "--straggler", "1:3"], "rank 1 has 2 factors"), (["--nnodes", "2:1"], "MIN comes first")],
)
def test_options_that_contradict_themselves_are_refused(options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["run", *options, "x.py"])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
