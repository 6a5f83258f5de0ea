"""What the host pays for operators, besides their launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernbench.simulation.tensors import listed_tensors
from kernbench.topology.system import HostSpec
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (Reliance("torch._C._current_graph_task_id", "it is negative outside backward"),)


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds of the host around an operator, by who calls it.

    Attributes:
        view: it launches nothing.
        autograd: the program, and a gradient of it is wanted.
        backward: autograd.
    """

    view: float
    autograd: float
    backward: float

    @classmethod
    def of(cls, spec: HostSpec) -> HostCosts:
        """Those of a system's host."""
        return cls(*(spec.factor * seconds for seconds in (spec.view, spec.autograd, spec.backward)))

    def around_call(self, args: Sequence[Any]) -> float:
        """The same, of an operator with these arguments."""
        if torch._C._current_graph_task_id() >= 0:
            return self.backward
        return self.around(listed_tensors(args)) if torch.is_grad_enabled() else 0.0

    def around(self, inputs: Sequence[torch.Tensor]) -> float:
        """What comes on top of a launch of an operator with these inputs, called now."""
        if torch._C._current_graph_task_id() >= 0:
            return self.backward
        if torch.is_grad_enabled():
            for each in inputs:
                if each.requires_grad:
                    return self.autograd
        return 0.0
