"""Optimizer steps of simulated ranks, by torch's own hooks on all optimizers.

The hooks are there while ranks run, and gone when they have ended.

A call of ``step`` without gradients is no step: one for which no parameter has any, or the one with gradients of zeros and a
learning rate of zero by which ``torch.distributed.checkpoint.state_dict`` makes the state of a fresh optimizer, to load into.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.training_steps import Steps
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.patches import Patches

_made: Any = Optimizer.__init__

_GRADIENTS = ("grad", "main_grad", "decoupled_grad")
"""Attributes of parameters that gradients are in: torch's, Megatron-Core's, Transformer Engine's."""


class OptimizerSteps:
    """Tells a simulation when its ranks make optimizers, and when these step, from :meth:`open` to :meth:`close`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._handles: list[Any] = []
        self._patches = Patches()
        self._passes: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._empty: WeakKeyDictionary[Optimizer, None] = WeakKeyDictionary()

    def open(self) -> None:
        """Listen."""
        steps = self._simulation.steps
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        self._patches.set(Optimizer, "__init__", _telling(steps))

    def close(self) -> None:
        """Listen no more. Idempotent."""
        while self._handles:
            self._handles.pop().remove()
        self._patches.undo()

    def _before(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        host = self._simulation.hosts.current()
        passes = host.backward_passes
        told_how = any(each is not None for each in (*args[1:], kwargs.get("closure")))
        with host.as_one():  # a parameter may be of the program's class, and its gradient what that computes
            steps = told_how or _has_gradients(optimizer, made=passes > self._passes.get(optimizer, 0))
            given = _with_gradients(optimizer) if steps else []
        if not steps:
            self._empty[optimizer] = None
            return
        self._empty.pop(optimizer, None)  # its last step raised
        self._passes[optimizer] = passes
        self._simulation.steps.begin(optimizer)
        self._spend(host, given)

    def _spend(self, host: Host, given: list[torch.Tensor]) -> None:
        """The host's time for an optimizer's Python, where the parameters with gradients are on a GPU."""
        if given and block_of(given[0]) is not None:
            spec = self._simulation.topology.system.host
            host.prepare(spec.factor * (spec.step + spec.parameter * len(given)))

    def _after(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        if optimizer in self._empty:
            del self._empty[optimizer]
        else:
            self._simulation.steps.end(optimizer)


def _with_gradients(optimizer: Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]


def _has_gradients(optimizer: Optimizer, *, made: bool) -> bool:
    """Whether a step has gradients; ``made``: whether there has been a backward pass since the last one. Without a pass, a
    program may have set them itself; it then has a learning rate, too."""
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    if not any(getattr(each, name, None) is not None for each in parameters for name in _GRADIENTS):
        return False
    return made or not all(_is_zero(group.get("lr")) for group in optimizer.param_groups)


def _is_zero(rate: object) -> bool:
    """Whether a learning rate is zero; of one on a GPU that is not asked, as that would be a look."""
    if isinstance(rate, torch.Tensor):
        return rate.device.type == "cpu" and not rate.item()
    return rate == 0


def _telling(steps: Steps) -> Any:
    """``Optimizer.__init__`` that tells of the optimizer: torch has no hook for that."""

    @functools.wraps(_made)
    def made(self: Optimizer, *args: object, **kwargs: object) -> None:
        _made(self, *args, **kwargs)
        steps.made(self)

    return made
