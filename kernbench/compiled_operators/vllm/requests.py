"""What vLLM's scheduler does with requests, reported to the simulation: ``vllm.v1.core.sched.scheduler.Scheduler``.

Its two methods that the engine calls are wrapped when the module has been imported: one takes a request, the other takes what a
step has computed. What they do is unchanged. Where each of several ranks has an engine that does the same (its
``external_launcher``), the first one's tells. A token's moment is when the engine core has it; what the frontend does with it
then (detokenisation, streaming) takes no modelled time.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from kernbench.compiled_operators.request_names import RequestNames
from kernbench.reporting import report_engine_step, report_request

_DRAWN = re.compile(
    r"-[0-9a-f]{8}$|(?<=\bcmpl)-[0-9a-f]{16,32}\b|(?<=\bchatcmpl)-[0-9a-f]{16,32}\b|(?<=\bbench)-[0-9a-f]{8}\b"
)
"""What vLLM draws at random for a request's name: at its end, where its server makes one, and in those of its benchmark."""


def observe(module: ModuleType) -> None:
    """Have the scheduler report requests and steps, as far as this release has the methods that are known."""
    scheduler, names = getattr(module, "Scheduler", None), RequestNames(_DRAWN)
    for name, wrapper in (("add_request", _taking), ("update_from_output", _updating)):
        method = getattr(scheduler, name, None)
        if callable(method):
            setattr(scheduler, name, wrapper(method, names))


def _repeats(scheduler: object) -> bool:
    """Whether another rank's engine reports the same requests."""
    parallel: Any = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
    if getattr(parallel, "distributed_executor_backend", None) != "external_launcher":
        return False
    return bool(int(os.environ.get("RANK", "0")) % max(parallel.world_size, 1))


def _taking(method: Callable[..., Any], names: RequestNames) -> Callable[..., Any]:
    @functools.wraps(method)
    def add_request(self: Any, request: Any, *args: object, **kwargs: object) -> Any:
        if request.request_id not in self.requests and not _repeats(self):
            # `arrival_time` is of `time.time`; reports are of `time.perf_counter`
            at = min(request.arrival_time - time.time() + time.perf_counter(), time.perf_counter())
            report_request(names.of(request.request_id), "arrived", tokens=request.num_prompt_tokens, at=at)
        return method(self, request, *args, **kwargs)

    return add_request


def _updating(method: Callable[..., Any], names: RequestNames) -> Callable[..., Any]:
    @functools.wraps(method)
    def update_from_output(self: Any, scheduled: Any, *args: object, **kwargs: object) -> Any:
        if _repeats(self):
            return method(self, scheduled, *args, **kwargs)
        decode = prefill = 0
        for name, count in scheduled.num_scheduled_tokens.items():
            request = self.requests.get(name)
            if request is not None and request.num_output_tokens:
                decode += count
            else:
                prefill += count
        for name in getattr(scheduled, "preempted_req_ids", None) or ():
            report_request(names.of(name), "preempted")
        outputs = method(self, scheduled, *args, **kwargs)
        for each in (output for client in outputs.values() for output in client.outputs):
            if each.new_token_ids:
                report_request(names.of(each.request_id), "token", tokens=len(each.new_token_ids))
            if each.finish_reason is not None:
                report_request(names.of(each.request_id), "ended")
                names.forget(each.request_id)
        if scheduled.num_scheduled_tokens:
            pool = self.kv_cache_manager.block_pool
            report_engine_step(
                prefill=prefill, decode=decode, running=len(self.running), waiting=len(self.waiting),
                blocks=pool.num_gpu_blocks, blocks_used=pool.num_gpu_blocks - pool.get_num_free_blocks(),
            )  # fmt: skip
        return outputs

    return update_from_output
