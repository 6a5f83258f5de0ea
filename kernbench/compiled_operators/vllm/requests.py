"""What vLLM's scheduler does with requests, told to the simulation: ``vllm.v1.core.sched.scheduler.Scheduler``.

Its two methods that the engine calls are wrapped when the module has been imported: one takes a request, the other takes what a
step has computed. What they do is unchanged. Where each of several ranks has an engine that does the same (its
``external_launcher``), the first one's tells. A token's moment is when the engine core has it; what the frontend does with it
then (detokenisation, streaming) takes no modelled time.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from kernbench.reporting import report_engine_step, report_request
from kernbench.simulation.active_simulation import current_simulation
from kernbench.torch_backend.hollow.stand_ins import state


def observe(module: ModuleType) -> None:
    """Have the scheduler tell of requests and steps, as far as this release has the methods that are known."""
    scheduler: Any = getattr(module, "Scheduler", None)
    for name, wrapper in (("add_request", _taking), ("update_from_output", _updating)):
        method = getattr(scheduler, name, None)
        if callable(method):
            setattr(scheduler, name, wrapper(method))


def observe_sampling(module: ModuleType) -> None:
    """Without data, say how many tokens the V2 runner samples: one of each sequence whose prompt is computed by then.

    Its kernels count them on the GPU, beside tokens that are not known; the host knows, and says so to nothing but metrics.
    """
    sampler: Any = getattr(module, "Sampler", None)
    if sampler is None or not callable(sampler):
        return
    method = sampler.__call__

    @functools.wraps(method)
    def sample(self: Any, logits: Any, batch: Any, *args: object, **kwargs: object) -> Any:
        found = method(self, logits, batch, *args, **kwargs)
        whole = batch.num_computed_tokens_np + batch.num_scheduled_tokens >= batch.prefill_len_np
        _state(found.num_sampled, torch.from_numpy(whole[: len(found.num_sampled)].astype("int64")))
        return found

    sampler.__call__ = sample


def _state(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """In a simulation without data: these are a tensor's values."""
    simulation = current_simulation()
    if simulation is not None and not simulation.engine.enable_data:
        with simulation.hosts.current().as_one():
            state(simulation.storages, tensor, values.to(tensor.dtype))


def _repeats(scheduler: Any) -> bool:
    """Whether another rank's engine tells of the same requests."""
    parallel: Any = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
    if getattr(parallel, "distributed_executor_backend", None) != "external_launcher":
        return False
    return bool(int(os.environ.get("RANK", "0")) % max(parallel.world_size, 1))


def _taking(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def add_request(self: Any, request: Any, *args: object, **kwargs: object) -> Any:
        if request.request_id not in self.requests and not _repeats(self):
            # `arrival_time` is of `time.time`; reports are of `time.perf_counter`
            at = min(request.arrival_time - time.time() + time.perf_counter(), time.perf_counter())
            report_request(request.request_id, "arrived", tokens=request.num_prompt_tokens, at=at)
        return method(self, request, *args, **kwargs)

    return add_request


def _updating(method: Callable[..., Any]) -> Callable[..., Any]:
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
            report_request(name, "preempted")
        outputs = method(self, scheduled, *args, **kwargs)
        for each in (output for client in outputs.values() for output in client.outputs):
            if each.new_token_ids:
                report_request(each.request_id, "token", tokens=len(each.new_token_ids))
            if each.finish_reason is not None:
                report_request(each.request_id, "ended")
        if scheduled.num_scheduled_tokens:
            pool = self.kv_cache_manager.block_pool
            report_engine_step(
                prefill=prefill, decode=decode, running=len(self.running), waiting=len(self.waiting),
                blocks=pool.num_gpu_blocks, blocks_used=pool.num_gpu_blocks - pool.get_num_free_blocks(),
            )  # fmt: skip
        return outputs

    return update_from_output
