"""The function of ``flash_attn.ops.triton.cross_entropy``: the loss of logits that may lie in parts on several ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

Tensor = torch.Tensor


class _RowLosses(torch.autograd.Function):
    """Saves the logits as they are and one number per row, as the real kernel does."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, precomputed_lse: Tensor | None, smoothing: float, logit_scale: float,
        lse_square_scale: float, ignore_index: int, inplace_backward: bool, group: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Losses and the part of them that is ``lse_square_scale`` times the square, ``[rows]`` in fp32."""
        ranks = 1 if group is None else dist.get_world_size(group)
        classes = logits.shape[1]
        first = 0 if group is None else classes * dist.get_rank(group)
        scores = logits.float() * logit_scale
        lse = torch.logsumexp(scores, -1) if precomputed_lse is None or ranks > 1 else precomputed_lse.float()
        ignored = labels == ignore_index
        mine = (labels >= first) & (labels < first + classes) & ~ignored
        at = torch.where(mine, labels - first, 0)
        chosen = torch.where(mine, scores.gather(1, at[:, None])[:, 0], 0.0)
        total = scores.sum(-1) if smoothing else torch.zeros_like(chosen)
        if ranks > 1:
            parts = lse.new_empty(ranks, lse.shape[0])
            dist.all_gather(list(parts), lse, group=group)
            lse = torch.logsumexp(parts, 0)
            sums = torch.stack((chosen, total))
            dist.all_reduce(sums, group=group)
            chosen, total = sums.unbind(0)
        z_losses = lse_square_scale * lse.square()
        losses = lse - smoothing / (classes * ranks) * total - (1 - smoothing) * chosen + z_losses
        losses, z_losses = (torch.where(ignored, 0.0, each) for each in (losses, z_losses))
        ctx.save_for_backward(logits, lse, at, mine, ignored)
        ctx.mark_non_differentiable(z_losses)
        ctx.settings = smoothing, logit_scale, lse_square_scale, classes * ranks, inplace_backward
        return losses, z_losses

    @staticmethod
    def backward(ctx: Any, given: Tensor, _: Tensor) -> Any:
        """The gradient of the logits, in their place if that was asked for."""
        logits, lse, at, mine, ignored = ctx.saved_tensors
        smoothing, logit_scale, lse_square_scale, classes, in_place = ctx.settings
        slopes = torch.exp(logits.float() * logit_scale - lse[:, None]) * (1 + 2 * lse_square_scale * lse)[:, None]
        slopes -= smoothing / classes
        slopes.scatter_add_(1, at[:, None], torch.where(mine, smoothing - 1.0, 0.0)[:, None].to(slopes.dtype))
        slopes *= (torch.where(ignored, 0.0, given) * logit_scale)[:, None]
        found = logits.copy_(slopes) if in_place else slopes.to(logits.dtype)
        return found, *(None,) * 8


def cross_entropy_loss(
    logits: Tensor, labels: Tensor, precomputed_lse: Tensor | None = None, label_smoothing: float = 0.0,
    logit_scale: float = 1.0, lse_square_scale: float = 0.0, ignore_index: int = -100, inplace_backward: bool = False,
    process_group: object = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``-log softmax(logit_scale * logits)[labels] + lse_square_scale * lse**2``, row by row.

    Args:
        logits: ``[rows, classes]``; with a ``process_group``, this rank's classes, as many as every other's.
        labels: ``[rows]``, of all classes.

    Returns:
        The losses and the part of them that is the square's, ``[rows]`` in fp32.
    """
    losses, z_losses = _RowLosses.apply(
        logits, labels, precomputed_lse, label_smoothing, logit_scale, lse_square_scale, ignore_index, inplace_backward,
        process_group,
    )  # fmt: skip
    return losses, z_losses
