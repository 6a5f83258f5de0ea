"""``do_bench`` and autotuning, answered with modelled time.

Running a configuration would change the buffers it works on, and its wall-clock here says nothing about the device.
A few programs of each launch run without storing anything; their counts, scaled to the grid, go to the duration
model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from triton.runtime.autotuner import Autotuner

from kernbench.triton_engine.duration import estimate
from kernbench.triton_engine.launching import LaunchRecord, record_launches, sampled_launches, say

from .resources import current_device
from .torch_names import ESTIMATE


def modelled_seconds(fn: Callable[[], object]) -> float:
    """Modelled duration of the launches that ``fn`` makes; the launches change nothing."""
    device = current_device()
    with sampled_launches(device) as records:
        fn()
    for record in records:
        _tell_of_updates(record, fn)
    return sum(estimate(r.counts, None, device, kernel=r.kernel, cold=True).seconds for r in records)


def _tell_of_updates(record: LaunchRecord, call: Callable[[], object]) -> None:
    """Say which arguments autotuning leaves on a GPU with what many runs have made of them."""
    if not record.updated or not isinstance(call, FunctionType):
        return
    of = inspect.getclosurevars(call).nonlocals
    tuner, config = of.get("self"), of.get("config")
    if not isinstance(tuner, Autotuner) or tuner.user_defined_pre_hook or getattr(config, "pre_hook", None) is not None:
        return
    left = [name for name in record.updated if name not in (*tuner.reset_to_zero, *tuner.restore_value)]
    if left:
        names = ", ".join(left)
        say(
            f"autotuning runs {record.name} many times on hardware, each on what the one before has left in {names}, which it "
            "reads and writes: unless that changes nothing, its first result there is another one than here. Name it in "
            "restore_value or reset_to_zero of triton.autotune"
        )


def do_bench(
    kernel_call: Callable[[], object],
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    **options: object,
) -> Sequence[float] | float:
    """Milliseconds, as ``triton.testing.do_bench`` reports them."""
    ms = modelled_seconds(kernel_call) * 1e3
    if quantiles is not None:
        return [ms] * len(quantiles) if len(quantiles) > 1 else ms
    return [ms] if return_mode == "all" else ms


class _Timeline:
    """Launches since the first event after the last synchronisation, for events to be positions in."""

    def __init__(self) -> None:
        self.records: list[LaunchRecord] = []
        self.open: Any = None
        #: Times that Triton's ``do_bench`` cleared the cache: it does so between two events only to estimate.
        self.clears = 0

    def mark(self) -> tuple[int, int]:
        if self.open is None:
            self.open = record_launches()
            self.records = self.open.__enter__()
        return len(self.records), self.clears

    def close(self) -> None:
        if self.open is not None:
            self.open.__exit__(None, None, None)
            self.open = None


timeline = _Timeline()


class _Event:
    """A position among the launches; the time between two is modelled."""

    def __init__(self, enable_timing: bool = False, **_: object) -> None:
        self.at = (0, 0)
        self.records: list[LaunchRecord] = []

    def record(self, stream: object = None) -> None:
        self.at = timeline.mark()
        self.records = timeline.records

    def elapsed_time(self, end: _Event) -> float:
        """Milliseconds."""
        if end.at[1] - self.at[1] > 1:
            return ESTIMATE
        device = current_device()
        launches = self.records[self.at[0] : end.at[0]]
        return 1e3 * sum(estimate(r.counts, None, device, kernel=r.kernel, cold=True).seconds for r in launches)

    def synchronize(self) -> None:
        timeline.close()

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True


class DeviceInterface:
    """The part of ``torch.cuda`` that Triton's own testing utilities use."""

    Event = _Event

    @staticmethod
    def synchronize(device: object = None) -> None:
        timeline.close()

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def set_device(device: object) -> None:
        pass

    @staticmethod
    def device_count() -> int:
        return 1
