"""A kernel that is broken off from outside, by Ctrl-C in a notebook or a limit of a test: the GPU stays usable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import kernbench
from kernbench.sim_engine import DataExecutor
from kernbench.simulation.launches import sampled_launch, triton_launch
from kernbench.simulation.launches.sampled_launch import SampledLaunch
from kernbench.triton_engine.machine import Execution


@triton.jit
def add_one(x, BLOCK: tl.constexpr):
    at = x + tl.arange(0, BLOCK)
    tl.store(at, tl.load(at) + 1)


def launch_all(parts: list[torch.Tensor]) -> None:
    for part in parts:
        with torch.cuda.stream(torch.cuda.Stream()):
            add_one[(1,)](part, BLOCK=16)
    torch.cuda.synchronize()


PLACES = {
    "before it is kept": [(DataExecutor, "submit"), (SampledLaunch, "price")],
    "in its programs": [(Execution, "run"), (SampledLaunch, "cost")],
    "when it is priced": [(sampled_launch, "note_cost"), (triton_launch, "note_cost")],
}


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_what_comes_after_goes_on(monkeypatch, data: bool, streams: int, place: list[tuple[Any, str]]) -> None:
    left = [KeyboardInterrupt]

    def breaking_off(stock: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            if left:
                raise left.pop()
            return stock(*args)

        return call

    for owner, name in place:
        monkeypatch.setattr(owner, name, breaking_off(getattr(owner, name)))
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        parts = [torch.zeros(16, device="cuda") for _ in range(streams)]
        torch.cuda.synchronize()
        with pytest.raises(KeyboardInterrupt):
            launch_all(parts)
        torch.cuda.synchronize()
        for part in parts:
            add_one[(1,)](part, BLOCK=16)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        found = [part.tolist() for part in parts]
        end.record()
        torch.cuda.synchronize()
        assert begin.elapsed_time(end) > 0
        if data:
            assert found[0] == [2.0 if place is PLACES["when it is priced"] else 1.0] * 16  # it had run, then
