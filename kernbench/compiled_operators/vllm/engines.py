"""Engines of vLLM side by side, which are refused: ``vllm.config.parallel``."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from kernbench.errors import ConfigError


def refuse_side_by_side(module: ModuleType) -> None:
    """Have an engine's process say that data parallelism of a dense model is not there, where it would wait for ever.

    Each of its engines is a world of its own, and of the worlds of a command one runs after the other.
    """
    config: Any = getattr(module, "ParallelConfig", None)
    method = getattr(config, "reconfigure_for_independent_dp_rank", None)
    if not callable(method):
        return

    @functools.wraps(method)
    def reconfigure(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (count := self.data_parallel_size) > 1:
            raise ConfigError(
                f"vLLM with data_parallel_size={count} and a dense model is {count} engines that share nothing, each a world "
                f"of its own, and kernbench runs one world at a time: run one engine with a {count}th of the requests, or "
                "tensor or pipeline parallelism"
            )
        return method(self, *args, **kwargs)

    config.reconfigure_for_independent_dp_rank = reconfigure
