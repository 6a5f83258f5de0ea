"""Sampling: which of the probabilities ``[rows, choices]`` stay, and one of them by a number between 0 and 1.

A threshold keeps all that equal it. Costs are the bytes that are moved; the passes over them that a kernel makes beyond the
first stay in its caches: UNVERIFIED.
"""

from __future__ import annotations

import torch

from kernbench.compiled_operators.choices import best, shares
from kernbench.compiled_operators.flashinfer.kernels import TABLE
from kernbench.cost.by_values import CallOperands
from kernbench.cost.work import StatedWork

Tensor = torch.Tensor


def nucleus(probabilities: Tensor, shares: Tensor) -> Tensor:
    """Which are among the fewest that have ``shares [rows]`` of the whole."""
    ordered = probabilities.sort(-1, descending=True).values
    before = ordered.cumsum(-1) - ordered
    last = (before < shares[:, None] * ordered.sum(-1, keepdim=True)).sum(-1).clamp(min=1) - 1
    return probabilities >= ordered.gather(-1, last[:, None])


def filtered(
    probabilities: Tensor, top_k: Tensor | None, k: int, top_p: Tensor | None, p: float, min_p: Tensor | None = None,
    m: float = -1.0,
) -> Tensor:  # fmt: skip
    """What stays of all three, each of its row or the same of all: the ``k`` greatest, the nucleus of ``p``, and what is ``m``
    times the greatest or more. A number below zero is none."""
    wide = probabilities.float()
    kept = wide
    for values, value, chosen in (
        (top_k, float(k), best), (top_p, p, nucleus),
        (min_p, m, lambda wide, least: wide >= least[:, None] * wide.amax(-1, keepdim=True)),
    ):  # fmt: skip
        if values is not None:
            kept = kept * chosen(wide, values)
        elif value >= 0:
            kept = kept * chosen(wide, torch.full((len(wide),), value))
    return kept


@TABLE.kernel(
    "softmax(Tensor logits, Tensor? temperature, float value, Tensor(a!) out)", "logits", "temperature", "out"
)
def _softmax(logits: Tensor, temperature: Tensor | None, value: float, out: Tensor) -> None:
    out.copy_(torch.softmax(logits.float() / (value if temperature is None else temperature[:, None]), -1))


@TABLE.kernel(
    "renorm(Tensor probs, Tensor? top_k, int k, Tensor? top_p, float p, Tensor(a!) out)",
    "probs",
    "top_k",
    "top_p",
    "out",
)
def _renorm(probs: Tensor, top_k: Tensor | None, k: int, top_p: Tensor | None, p: float, out: Tensor) -> None:
    out.copy_(shares(filtered(probs, top_k, k, top_p, p)))


@TABLE.kernel("mask(Tensor logits, Tensor? top_k, int k, Tensor(a!) out)", "logits", "top_k", "out")
def _mask(logits: Tensor, top_k: Tensor | None, k: int, out: Tensor) -> None:
    counts = torch.full((len(logits),), k) if top_k is None else top_k
    out.copy_(logits.float().masked_fill(~best(logits.float(), counts), -torch.inf))


def _cost(operands: CallOperands) -> StatedWork:
    """The rows that are drawn from are read."""
    probs, out = operands["probs"], operands["out"]
    return StatedWork(min(out.elements, probs.shape[0]) * probs.row_bytes(1) + out.nbytes)


@TABLE.kernel(
    "draw(Tensor probs, Tensor numbers, Tensor? indices, bool logits, Tensor? top_k, int k, Tensor? top_p, float p, "
    "Tensor? min_p, float m, Tensor(a!) out, Tensor(b!)? valid)",
    cost=_cost,
)
def _draw(
    probs: Tensor, numbers: Tensor, indices: Tensor | None, logits: bool, top_k: Tensor | None, k: int,
    top_p: Tensor | None, p: float, min_p: Tensor | None, m: float, out: Tensor, valid: Tensor | None,
) -> None:  # fmt: skip
    """The choice at which the sum of those that stay passes ``numbers [rows]`` of the whole; ``indices``: the row of each."""
    rows = probs if indices is None else probs[indices.long()]
    kept = filtered(torch.softmax(rows.float(), -1) if logits else rows, top_k, k, top_p, p, min_p, m)
    sums = kept.cumsum(-1)
    passed = sums > numbers.float()[:, None] * sums[:, -1:]
    out.copy_((passed & (kept > 0)).int().argmax(-1))
    if valid is not None:
        valid.copy_((sums[:, -1] > 0) & sums[:, -1].isfinite())
