"""``torch.profiler`` inside ranks.

torch's profiler records one session per process, and crashes when several ranks of one process open theirs. So inside a rank
``torch.autograd.profiler.profile``, on which ``torch.profiler`` stands, is torch's older one, which is per thread, with the
rank's collectives added in virtual time, named as their backend names them (``gloo:all_reduce``).

Relies on: ``torch.autograd.profiler_legacy.profile`` and ``FunctionEvent``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.autograd import profiler, profiler_legacy
from torch.autograd.profiler_util import EventList, FunctionEvent

from kernbench.torch_backend.patches import Patches

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


def profile_class(current: Callable[[], RuntimeContext]) -> type:
    """``torch.autograd.profiler.profile`` for the ranks of the ``current`` simulation."""

    class profile(profiler_legacy.profile):  # torch's name
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
            self, group_by_input_shape: bool = False, group_by_stack_n: int = 0, group_by_overload_name: bool = False
        ) -> Any:
            return super().key_averages(group_by_input_shape, group_by_stack_n)

        def export_chrome_trace(self, path: str, metadata: dict[str, str] | None = None) -> None:
            super().export_chrome_trace(path)

        def _start_trace(self) -> None:
            ctx = current()
            rank = ctx.scheduler.current_rank()
            self._first = 0 if rank is None else ctx.distributed.matcher.history.count(rank)
            super()._start_trace()

        def _prepare_trace(self) -> None:
            self.entered = True

        def __exit__(self, *exc: Any) -> Any:
            result = super().__exit__(*exc)
            rank = current().scheduler.current_rank()
            events: Any = self.function_events
            if events is not None and rank is not None:
                events += self._collectives(rank)
            return result

        def _collectives(self, rank: int) -> list[FunctionEvent]:
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
                for call in current().distributed.matcher.history.of(rank)
                if call.number >= self._first
            ]

        @property
        def self_cpu_time_total(self) -> float:
            return sum(event.self_cpu_time_total for event in self.function_events or EventList())

    return profile


def install(patches: Patches, current: Callable[[], RuntimeContext]) -> None:
    """Give the ranks of the ``current`` simulation profilers that do not meet."""
    patches.set(profiler, "profile", profile_class(current))
