"""Cross entropy of logits whose vocabulary is split over the ranks: no rank ever has the whole of them.

Two all-reduces of ``[s, b]`` (the maximum; then the sum of exponentials together with the target's logit) instead of a
gather of ``[s, b, vocabulary]`` (Shoeybi et al., arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.tp import comm
from kernbench.tp.comm import Group
from kernbench.tp.errors import PartitionError
from kernbench.tp.mappings import needs_autograd
from kernbench.tp.parallel_state import get_tensor_model_parallel_group
from kernbench.tp.utils import VocabUtility, whoami


def _forward(
    logits: torch.Tensor, target: torch.Tensor, smoothing: float, group: Group
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses ``[...]``, softmax ``[..., v / p]`` in fp32, local target numbers, and where the target is elsewhere."""
    size, rank, part = comm.group_size(group), comm.group_rank(group), logits.size(-1)
    shifted = logits.float()
    top = shifted.amax(dim=-1)
    comm.all_reduce(top, comm.MAX, group=group)
    shifted = shifted - top.unsqueeze(-1)

    first, last = VocabUtility.vocab_range_from_per_partition_vocab_size(part, rank, size)
    elsewhere = (target < first) | (target >= last)
    local = (target - first).masked_fill(elsewhere, 0)
    predicted = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
    softmax = shifted.exp()
    sums = [softmax.sum(dim=-1), predicted] + ([shifted.sum(dim=-1)] if smoothing else [])
    totals = torch.stack(sums)
    comm.all_reduce(totals, group=group)

    normalizer = totals[0].log()
    loss = normalizer - totals[1]
    softmax.div_(totals[0].unsqueeze(-1))
    if smoothing:
        mean = totals[2] / (part * size) - normalizer  # of the log-probabilities of all words
        loss = (1.0 - smoothing) * loss - smoothing * mean
    return loss, softmax, local, elsewhere


class _VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor, smoothing: float, group: Group) -> torch.Tensor:
        loss, softmax, local, elsewhere = _forward(logits, target, smoothing, group)
        ctx.save_for_backward(softmax, local, elsewhere)
        ctx.smoothing, ctx.vocabulary, ctx.dtype = smoothing, logits.size(-1) * comm.group_size(group), logits.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        """d loss / d logit = softmax - q, with q the (smoothed) target distribution."""
        softmax, local, elsewhere = ctx.saved_tensors
        grad = softmax.clone()
        hit = torch.where(elsewhere, 0.0, 1.0 - ctx.smoothing).to(grad.dtype)
        grad.scatter_add_(-1, local.unsqueeze(-1), -hit.unsqueeze(-1))
        if ctx.smoothing:
            grad.sub_(ctx.smoothing / ctx.vocabulary)
        return grad.mul_(grad_output.unsqueeze(-1)).to(ctx.dtype), None, None, None


def vocab_parallel_cross_entropy(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float = 0.0,
    *,
    group: Group | None = None,
) -> torch.Tensor:
    """``-log softmax(logits)[target]`` per position, equal on all ranks of the group.

    Args:
        vocab_parallel_logits: this rank's words, ``[..., vocabulary / tp]``.
        target: word numbers in the whole vocabulary, ``[...]``.
        label_smoothing: share of the target distribution that is spread evenly over the other words, in [0, 1). As in
            Megatron-Core, but over the whole vocabulary whatever the tensor parallel size (there, over the rank's words).
        group: default: this rank's tensor parallel group.
    """
    group = get_tensor_model_parallel_group() if group is None else group
    vocabulary = vocab_parallel_logits.size(-1) * comm.group_size(group)
    if target.shape != vocab_parallel_logits.shape[:-1]:
        raise PartitionError(
            f"{whoami('vocab_parallel_cross_entropy')}: logits are {tuple(vocab_parallel_logits.shape)}, "
            f"so target must be {tuple(vocab_parallel_logits.shape[:-1])}; found {tuple(target.shape)}"
        )
    if not 0.0 <= label_smoothing < 1.0:
        raise PartitionError(
            f"{whoami('vocab_parallel_cross_entropy')}: label_smoothing {label_smoothing} is not in [0, 1)"
        )
    # evenly over the others is evenly over all, of a little more
    smoothing = label_smoothing * vocabulary / (vocabulary - 1) if label_smoothing else 0.0
    if not needs_autograd(vocab_parallel_logits):
        return _forward(vocab_parallel_logits, target, smoothing, group)[0]
    loss: torch.Tensor = _VocabParallelCrossEntropy.apply(vocab_parallel_logits, target, smoothing, group)
    return loss
