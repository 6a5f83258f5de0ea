"""The layer of ``flash_attn.losses.cross_entropy``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..ops.triton.cross_entropy import cross_entropy_loss

Tensor = torch.Tensor


class CrossEntropyLoss(nn.Module):
    """The loss of logits ``[rows, classes]``; with a ``process_group``, each rank has its classes of them."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, logit_scale: float = 1.0,
        lse_square_scale: float = 0.0, inplace_backward: bool = False, process_group: object = None,
        return_z_loss: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("Only support reduction = 'mean' or 'none' or 'sum'")
        self.ignore_index, self.reduction, self.return_z_loss = ignore_index, reduction, return_z_loss
        self.label_smoothing, self.logit_scale, self.lse_square_scale = label_smoothing, logit_scale, lse_square_scale
        self.inplace_backward, self.process_group = inplace_backward, process_group

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Tensor | None = None) -> Any:
        """The loss; with its part that is the square's, if that is wanted."""
        found = cross_entropy_loss(
            input, target, precomputed_lse, self.label_smoothing, self.logit_scale, self.lse_square_scale,
            self.ignore_index, self.inplace_backward, self.process_group,
        )  # fmt: skip
        loss, z_loss = found if self.reduction == "none" else tuple(each.sum() for each in found)
        if self.reduction == "mean":
            count = (target != self.ignore_index).sum()
            loss, z_loss = loss / count, z_loss / count
        return (loss, z_loss) if self.return_z_loss else loss
