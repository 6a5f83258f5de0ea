"""``torch.profiler`` inside ranks.

torch's profiler records one session per process, and crashes when several ranks of one process open theirs. So inside a rank
``torch.autograd.profiler.profile``, on which ``torch.profiler`` stands, is torch's older one, which is per thread, with the
rank's collectives added in virtual time, named as their backend names them (``gloo:all_reduce``).
"""

from __future__ import annotations

import warnings
from typing import Any

import torch.distributed as dist
from torch.autograd import profiler, profiler_legacy
from torch.autograd.profiler_util import EventList, FunctionEvent

from kernbench.torch_backend.gpu.devices import RankDevice, current_device, current_rank
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance(
        "torch.autograd.profiler.profile", "what a rank profiles with is made in its place",
        looked_up_by=("torch.profiler.profiler",),
    ),
    Reliance(
        "torch.autograd.profiler_legacy.profile", "it records the thread that asks, so that ranks do not meet", subclassed=True,
        has=("_start_trace", "__exit__", "key_averages", "export_chrome_trace"),
        parameters=("enabled", "record_shapes", "with_flops", "profile_memory", "with_stack", "with_modules"),
    ),
    Reliance(
        "torch.autograd.profiler_util.FunctionEvent", "a rank's collectives are events among those of its thread",
        parameters=("id", "name", "thread", "start_us", "end_us"),
    ),
    Reliance("torch.autograd.profiler_util.EventList", "it is what events are kept in"),
)  # fmt: skip


class profile(profiler_legacy.profile):  # torch's name
    """``torch.autograd.profiler.profile`` for the rank that runs."""

    def __init__(
        self, enabled: bool = True, *, record_shapes: bool = False, with_flops: bool = False,
        profile_memory: bool = False, with_stack: bool = False, with_modules: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(
                enabled, record_shapes=record_shapes, with_flops=with_flops, profile_memory=profile_memory,
                with_stack=with_stack, with_modules=with_modules,
            )  # fmt: skip
        self.use_device = kwargs.get("use_device")
        self.kineto_results = None
        self._first = 0

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0, *later: Any, **named_later: Any
    ) -> Any:
        return super().key_averages(group_by_input_shape, group_by_stack_n)

    def export_chrome_trace(self, path: str, metadata: dict[str, str] | None = None) -> None:
        super().export_chrome_trace(path)

    def _start_trace(self) -> None:
        mine = current_device()
        rank = current_rank()
        self._first = 0 if mine is None or rank is None else mine.simulation.matcher.history.count(rank)
        super()._start_trace()

    def _prepare_trace(self) -> None:
        self.entered = True

    def __exit__(self, *exc: Any) -> Any:
        result = super().__exit__(*exc)
        mine = current_device()
        events: Any = self.function_events
        if events is not None and mine is not None:
            events += self._collectives(mine)
        return result

    def _collectives(self, mine: RankDevice) -> list[FunctionEvent]:
        rank: Any = mine.host.rank
        backend = dist.get_backend() if dist.is_initialized() else "kernbench"
        return [
            FunctionEvent(
                id=call.number,
                name=f"{backend}:{call.profiled_name}",
                thread=rank,
                start_us=call.op.enqueue * 1e6,
                end_us=(call.op.enqueue if call.op.end is None else call.op.end) * 1e6,
                input_shapes=[list(shape) for shape in call.shapes],
                is_async=True,
                stack=[],
            )
            for call in mine.simulation.matcher.history.of(rank)
            if call.number >= self._first
        ]

    @property
    def self_cpu_time_total(self) -> float:
        return sum(event.self_cpu_time_total for event in self.function_events or EventList())


def install(patches: Patches) -> None:
    """Give the ranks profilers that do not meet."""
    patches.set(profiler, "profile", profile)
