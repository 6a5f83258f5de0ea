"""The speed bench of torch.distributed: all sides run the same program, and verdicts are what they say."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from benches.distributed_speed import Figure, all_reduces
from benches.harness.distributed_sides import SIDES


def total(rank: int, world_size: int, value: float) -> list[float]:
    """What an all-reduce of ``value`` gives."""
    tensor = torch.full((4,), value)
    dist.all_reduce(tensor)
    return [float(tensor.sum())]


@pytest.mark.parametrize("side", ["kernbench", "processes", "threaded"])
def test_a_side_runs_the_program_in_every_rank(side):
    run = SIDES[side](3, total, 0.5)
    assert run.result == [6.0]
    assert run.seconds > 0
    assert not dist.is_initialized()


@pytest.mark.parametrize("side", ["kernbench", "threaded", "local tensors"])
def test_a_side_times_all_reduces(side):
    (seconds,) = SIDES[side](2, all_reduces, 16, 1).result
    assert seconds > 0


def test_a_side_raises_what_a_rank_raised():
    def broken(rank: int, world_size: int) -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        SIDES["threaded"](2, broken)


def test_goals_are_numbers_or_ratios():
    assert Figure("x", "us", {"kernbench": 5.0}, 6.0).verdict == "ok"
    assert Figure("x", "us", {"kernbench": 12.0}, 6.0).verdict == "x 2.0"
    beside = Figure("x", "ms", {"kernbench": 5.0, "gloo": 10.0}, 0.6, "gloo")
    assert beside.limit == 6.0
    assert beside.verdict == "ok"
    assert beside.ratio("gloo") == "10 (2x)"
    assert Figure("x", "ms", {"kernbench": 5.0, "gloo": "cannot: no gloo"}, 0.6, "gloo").verdict == ""
