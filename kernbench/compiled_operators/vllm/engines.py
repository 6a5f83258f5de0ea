"""Engines of vLLM: what they have to wait for at their start, and those side by side, which are refused."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from kernbench.errors import ConfigError


def refuse_side_by_side(module: ModuleType) -> None:
    """Have an engine's process say that data parallelism of a dense model is not there, where it would wait for ever:
    ``vllm.config.parallel``.

    Each of its engines is a world of its own, and of the worlds of a command one runs after the other.
    """
    config: Any = getattr(module, "ParallelConfig", None)
    method = getattr(config, "reconfigure_for_independent_dp_rank", None)
    if not callable(method):
        return

    @functools.wraps(method)
    def reconfigure(self: Any, *args: object, **kwargs: Any) -> Any:
        if (count := self.data_parallel_size) > 1:
            raise ConfigError(
                f"vLLM with data_parallel_size={count} and a dense model is {count} engines that share nothing, each a world "
                f"of its own, and kernbench runs one world at a time: run one engine with a {count}th of the requests, or "
                "tensor or pipeline parallelism"
            )
        return method(self, *args, **kwargs)

    config.reconfigure_for_independent_dp_rank = reconfigure


def finish_warm_up(module: ModuleType) -> None:
    """Have an engine begin when the kernels of its warm-up have ended: ``vllm.model_executor.warmup.kernel_warmup``.

    Each of hundreds of them is compiled just before it is launched, so that they end with the last compilation; here compiling
    takes no time, and they would lie before the first request.
    """
    name = "kernel_warmup"
    warm_up: Any = getattr(module, name, None)
    if not callable(warm_up):
        return

    @functools.wraps(warm_up)
    def warmed_up(*args: object, **kwargs: object) -> Any:
        result = warm_up(*args, **kwargs)
        torch.accelerator.synchronize()
        return result

    setattr(module, name, warmed_up)
