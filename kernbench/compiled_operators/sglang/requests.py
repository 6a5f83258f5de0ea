"""What SGLang's scheduler does with requests, reported to the simulation: ``sglang.srt.managers.scheduler.Scheduler``.

Two of its methods are wrapped: one takes a request, the other takes what a batch has computed. What they do is unchanged. With
tensor parallelism each rank has a scheduler that does the same, and the first one's tells. A request carries when it was made.
A token's moment is when the scheduler has it.
"""

from __future__ import annotations

import functools
import re
import time
from types import ModuleType
from typing import Any

import torch

from kernbench.compiled_operators.request_names import RequestNames
from kernbench.reporting import report_engine_step, report_request

_DRAWN = re.compile(r"\b[0-9a-f]{32}\b")
"""What SGLang draws at random for a request's name."""

_CREATED = "created_time"
"""When a request was made, s of ``time.perf_counter()``: an attribute of its times."""


def carry_times(module: ModuleType) -> None:
    """Have requests carry when they were made to other processes: ``sglang.srt.observability.req_time_stats``."""
    times: Any = getattr(module, "APIServerReqTimeStats", None)
    method = getattr(times, "__getstate__", None)
    if times is None or method is None:
        return

    @functools.wraps(method)
    def state(self: object) -> Any:
        return {_CREATED: getattr(self, _CREATED, 0.0), **method(self)}

    times.__getstate__ = state


def observe(module: ModuleType) -> None:
    """Have the scheduler report requests and steps, as far as this release has the methods that are known."""
    scheduler, names = getattr(module, "Scheduler", None), RequestNames(_DRAWN)
    for name, wrapper in (("handle_generate_request", _taking), ("process_batch_result", _updating)):
        method = getattr(scheduler, name, None)
        if callable(method):
            setattr(scheduler, name, wrapper(method, names))


def _repeats() -> bool:
    """Whether another rank's scheduler reports the same requests."""
    return torch.distributed.is_initialized() and torch.distributed.get_rank() != 0


def _taking(method: Any, names: RequestNames) -> Any:
    @functools.wraps(method)
    def handle(self: object, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not _repeats():
            now = time.perf_counter()
            at = min(getattr(request.time_stats, _CREATED, 0.0) or now, now)
            report_request(names.of(request.rid), "arrived", tokens=len(request.input_ids or ()), at=at)
        return method(self, request, *args, **kwargs)

    return handle


def _updating(method: Any, names: RequestNames) -> Any:
    @functools.wraps(method)
    def process(self: Any, batch: Any, *args: object, **kwargs: Any) -> Any:
        if _repeats():
            return method(self, batch, *args, **kwargs)
        before = [(each, len(each.output_ids), each.finished()) for each in batch.reqs]
        prefill = (batch.extend_num_tokens or 0) if batch.forward_mode.is_extend() else 0
        found = method(self, batch, *args, **kwargs)
        decode = 0
        for request, count, ended in before:
            new = len(request.output_ids) - count
            if new > 0:
                report_request(names.of(request.rid), "token", tokens=new)
                decode += not prefill
            if request.finished() and not ended:
                report_request(names.of(request.rid), "ended")
                names.forget(request.rid)
        if prefill or decode:
            pool = self.token_to_kv_pool_allocator
            report_engine_step(
                prefill=prefill, decode=decode, running=len(before), waiting=len(self.waiting_queue), blocks=pool.size,
                blocks_used=pool.size - pool.available_size(),
            )  # fmt: skip
        return found

    return process
