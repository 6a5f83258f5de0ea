"""``do_bench`` and autotuning, answered with modelled time.

Running a configuration would change the buffers it works on, and its wall-clock here says nothing about the device.
A few programs of each launch run without storing anything; their counts, scaled to the grid, go to the duration
model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernbench.triton_engine.duration import estimate
from kernbench.triton_engine.launching import sampled_launches

from .resources import current_device


def modelled_seconds(fn: Callable[[], Any]) -> float:
    """Modelled duration of the launches that ``fn`` makes; the launches change nothing."""
    with sampled_launches() as records:
        fn()
    device = current_device()
    return sum(estimate(r.counts, None, device) for r in records)


def do_bench(
    kernel_call: Callable[[], Any],
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    **options: Any,
) -> Sequence[float] | float:
    """Milliseconds, as ``triton.testing.do_bench`` reports them."""
    ms = modelled_seconds(kernel_call) * 1e3
    if quantiles is not None:
        return [ms] * len(quantiles) if len(quantiles) > 1 else ms
    return [ms] if return_mode == "all" else ms


class _Event:
    """An event on a clock that advances by modelled time only."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = DeviceInterface.clock

    def elapsed_time(self, end: _Event) -> float:
        """Milliseconds."""
        return max((end.at - self.at) * 1e3, 1e-3)

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True


class DeviceInterface:
    """The part of ``torch.cuda`` that Triton's own testing utilities use."""

    Event = _Event
    clock = 0.0

    @staticmethod
    def synchronize(device: Any = None) -> None:
        pass

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def set_device(device: Any) -> None:
        pass

    @staticmethod
    def device_count() -> int:
        return 1
