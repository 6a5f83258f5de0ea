"""The values of a captured operation, computed again in the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.simulation.hosts import Host


def computes_again(host: Host, compute: Callable[[], Any], result: Any) -> Callable[[], None]:
    """A step of a graph that computes what ``compute`` gives into the memory of ``result``, which it gave before."""
    kept = _tensors(result)

    def step() -> None:
        with host.as_one(), torch.no_grad():
            for new, old in zip(_tensors(compute()), kept, strict=True):
                if new.data_ptr() != old.data_ptr():
                    old.copy_(new)

    return step


def _tensors(result: Any) -> list[torch.Tensor]:
    flat = result if isinstance(result, list | tuple) else (result,)
    return [each.detach() for each in flat if isinstance(each, torch.Tensor)]
