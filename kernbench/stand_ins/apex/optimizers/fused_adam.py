"""Adam and AdamW, one kernel for the parameters of each format."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch

from ..multi_tensor_apply import multi_tensor_applier
from .fused import FusedOptimizer


class FusedAdam(FusedOptimizer):
    """Adam with decoupled weight decay (``adam_w_mode``), or with weight decay in the gradient.

    Moments are in float32, except of parameters in float16 and bfloat16, which have the parameters' format, as in apex.
    ``capturable`` and ``master_weights`` are refused.
    """

    def __init__(
        self, params: Iterable[object], lr: float = 1e-3, bias_correction: bool = True, betas: tuple[float, float] = (0.9,
        0.999), eps: float = 1e-8, adam_w_mode: bool = True, weight_decay: float = 0.0, amsgrad: bool = False,
        set_grad_none: bool = True, capturable: bool = False, master_weights: bool = False,
    ) -> None:  # fmt: skip
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        if capturable or master_weights:
            raise NotImplementedError(
                "The stand-in for apex has FusedAdam without capturable and master_weights: use torch.optim.AdamW(fused=True, "
                "capturable=True), or transformer_engine's FusedAdam."
            )
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults, set_grad_none)
        self.adam_w_mode = 1 if adam_w_mode else 0

    def _step_group(self, group: dict[str, Any]) -> None:
        group["step"] = group.get("step", 0) + 1
        lists: dict[torch.dtype, list[list[torch.Tensor]]] = {}
        for param in group["params"]:
            if param.grad is None:
                continue
            if param.grad.is_sparse:
                raise RuntimeError("FusedAdam does not support sparse gradients, please consider SparseAdam instead")
            state = self.state[param]
            if not state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
            columns = lists.setdefault(param.dtype, [[], [], [], []])
            for column, each in zip(columns, (param.grad, param, state["exp_avg"], state["exp_avg_sq"]), strict=True):
                column.append(each)
        for columns in lists.values():
            multi_tensor_applier(
                importlib.import_module("amp_C").multi_tensor_adam, self._dummy_overflow_buf, columns, group["lr"],
                *group["betas"], group["eps"], group["step"], self.adam_w_mode, int(group["bias_correction"]),
                group["weight_decay"],
            )  # fmt: skip
