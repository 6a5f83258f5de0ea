"""What a program to be timed is, and what trains a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kernbench.programs.gpu_clock import captured

Step = Callable[[], object]
"""One step; what it returns is dropped."""

Entered = Callable[[str], None]
"""Is called with the name of each phase that a step enters, and at its end with none."""

_ENTERED: list[Entered] = []


@contextmanager
def phases(entered: Entered) -> Iterator[None]:
    """Steps that train say here which phase they enter: forward, backward, optimizer."""
    _ENTERED.append(entered)
    try:
        yield
    finally:
        _ENTERED.remove(entered)


def enter(phase: str) -> None:
    """The running step enters a phase."""
    for each in _ENTERED:
        each(phase)


class TimedProgram(NamedTuple):
    """A program by its name; ``make`` builds its model and inputs on the current GPU."""

    group: str
    name: str
    make: Callable[[], Step]


def autocast(dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Mixed precision in ``dtype``; None: none."""
    return nullcontext() if dtype is None else torch.autocast("cuda", dtype=dtype)


def training(
    model: nn.Module,
    loss: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    dtype: torch.dtype | None = None,
    clip: float | None = None,
) -> Step:
    """A step that trains: ``loss`` under autocast in ``dtype`` (scaled for fp16), gradients, the optimizer."""
    model.train()
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)

    def step() -> None:
        enter("forward")
        with autocast(dtype):
            value = loss()
        enter("backward")
        scaler.scale(value).backward()
        enter("optimizer")
        if clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        enter("")

    return step


def inference(run: Callable[[], object], dtype: torch.dtype | None = None) -> Step:
    """A step that computes without gradients."""

    def step() -> None:
        with torch.no_grad(), autocast(dtype):
            run()

    return step


def graphed(run: Callable[[], object]) -> Step:
    """The step in a CUDA graph, replayed."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    return captured(run, 1).replay
