"""What the host pays for operators, besides their launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.simulation.ranks.hosts import Host
from kernbench.topology.system import HostSpec
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (Reliance("torch._C._current_graph_task_id", "it is negative outside backward"),)


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds of the host around an operator, by its caller.

    Attributes:
        operator: the program.
        view: torch itself, and it launches nothing.
        subclass: the program, on tensors of a class that sees its operations.
        recorded: the program, and a gradient of it is wanted.
        backward: autograd.
        begin: autograd, for the first time in a backward pass, besides.
    """

    operator: float
    view: float
    subclass: float
    recorded: float
    backward: float
    begin: float

    @classmethod
    def of(cls, spec: HostSpec) -> HostCosts:
        """Those of a system's host."""
        called = spec.operator
        each = (called, spec.view, spec.subclass, called + spec.autograd, spec.backward, spec.begin)
        return cls(*(spec.factor * seconds for seconds in each))

    def of_view(self, inner: bool) -> float:
        """A view taken now; ``inner``: operators of torch take it, programs hardly do."""
        return self.view if inner or torch._C._current_graph_task_id() >= 0 else self.operator

    def around(self, host: Host, args: Sequence[Any]) -> float:
        """What comes on top of a launch of an operator with these arguments, or these tensors among them, called now."""
        task = torch._C._current_graph_task_id()
        if task >= 0:
            if task > host.graph_task:  # passes are numbered; one within another ends before that goes on
                host.graph_task = task
                return self.begin + self.backward
            return self.backward
        if torch.is_grad_enabled():
            for each in args:
                if isinstance(each, torch.Tensor):
                    if each.requires_grad:
                        return self.recorded
                elif type(each) in (list, tuple) and any(tensor.requires_grad for tensor in listed_tensors(each)):
                    return self.recorded
        return self.operator
