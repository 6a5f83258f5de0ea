"""SGD with momentum, one kernel for the parameters of each format."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch

from ..multi_tensor_apply import multi_tensor_applier
from .fused import FusedOptimizer


class FusedSGD(FusedOptimizer):
    """SGD; ``wd_after_momentum`` adds weight decay to the change instead of the gradient."""

    def __init__(
        self, params: Iterable[object], lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, wd_after_momentum: bool = False, materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:  # fmt: skip
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
        }  # fmt: skip
        super().__init__(params, defaults, set_grad_none)
        self.wd_after_momentum = wd_after_momentum

    def _step_group(self, group: dict[str, Any]) -> None:
        lists: dict[tuple[torch.dtype, bool], list[list[torch.Tensor]]] = {}
        for param in group["params"]:
            if param.grad is None:
                continue
            state = self.state[param]
            first = "momentum_buffer" not in state
            if first:
                state["momentum_buffer"] = torch.zeros_like(param)
            columns = lists.setdefault((param.dtype, first), [[], [], []])
            for column, each in zip(columns, (param.grad, param, state["momentum_buffer"]), strict=True):
                column.append(each)
        for (_, first), columns in lists.items():
            multi_tensor_applier(
                importlib.import_module("amp_C").multi_tensor_sgd, self._dummy_overflow_buf, columns,
                group["weight_decay"], group["momentum"], group["dampening"], group["lr"], group["nesterov"], first,
                self.wd_after_momentum, 1.0,
            )  # fmt: skip
