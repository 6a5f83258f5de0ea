"""Optimizer steps of simulated ranks, by torch's own hooks on all optimizers.

The hooks are there while ranks run, and gone when they have ended.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from kernbench.simulation.simulation import Simulation
from kernbench.simulation.steps import Steps
from kernbench.torch_backend.patches import Patches

_made: Any = Optimizer.__init__


class OptimizerSteps:
    """Tells a simulation when its ranks make optimizers, and when these step, from :meth:`open` to :meth:`close`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._handles: list[Any] = []
        self._patches = Patches()

    def open(self) -> None:
        """Listen."""
        steps = self._simulation.steps
        self._handles = [
            register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: steps.begin(optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, args, kwargs: steps.end(optimizer)),
        ]
        self._patches.set(Optimizer, "__init__", _telling(steps))

    def close(self) -> None:
        """Listen no more. Idempotent."""
        while self._handles:
            self._handles.pop().remove()
        self._patches.undo()


def _telling(steps: Steps) -> Any:
    """``Optimizer.__init__`` that tells of the optimizer: torch has no hook for that."""

    @functools.wraps(_made)
    def made(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        _made(self, *args, **kwargs)
        steps.made(self)

    return made
