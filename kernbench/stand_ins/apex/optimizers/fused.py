"""What the fused optimizers have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class FusedOptimizer(torch.optim.Optimizer):
    """An optimizer with kernels over lists of tensors.

    Args:
        params, defaults: as of ``torch.optim.Optimizer``.
        set_grad_none: whether ``zero_grad`` drops gradients unless it is asked otherwise.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], set_grad_none: bool) -> None:
        super().__init__(params, defaults)
        self.set_grad_none = set_grad_none
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int, device="cuda")

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Gradients are none, or zeros."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """One step of all parameters that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        raise NotImplementedError
