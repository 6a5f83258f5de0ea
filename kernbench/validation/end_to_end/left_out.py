"""What the models say of one source's rows when nothing was fitted to them.

Two figures of the models are fitted on the published steps (ADR 0126): how much longer sustained products take on Ampere, and
how quick its memory-efficient attention is. One source at a time is left out, each figure is set again from its prior on the
other sources, and the parts of the left-out steps are scaled by it: nothing is run again. A figure that no other source says
anything of has its prior. Rows that are vague set nothing. Of Hopper nothing is fitted (ADR 0245): its rows are left alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kernbench.cost.devices import resolve_device
from kernbench.cost.gemm import kernels_of
from kernbench.trace.step_parts import PathPart
from kernbench.validation.end_to_end.results import StepResult

_FITTED = "A100"
"""The GPU that the figures are of."""

_PRIOR_ATTENTION = 0.40 / 0.36
"""How much longer the memory-efficient attention took before (FlashAttention-2's figures)."""

_EFFICIENT = frozenset({"llm-foundry"})
"""Sources whose programs use that attention."""


class _Scale(NamedTuple):
    """Factors on parts of a step."""

    product: float
    attention: float


def left_out(results: Sequence[StepResult]) -> dict[str, list[StepResult]]:
    """The rows of each source, as they would be without it."""
    ran = [result for result in results if result.seconds is not None]
    found: dict[str, list[StepResult]] = {}
    for source in dict.fromkeys(result.row.source for result in ran):
        others = [result for result in ran if result.row.source != source]
        found[source] = [
            scaled(result, _without(source, result, others)) for result in ran if result.row.source == source
        ]
    return found


def scaled(result: StepResult, scale: _Scale) -> StepResult:
    """A step with products and attention that take so many times as long."""
    factors: Mapping[str, float] = {"product": scale.product, "attention": scale.attention}
    parts = tuple(
        PathPart(part.kind, *(figure * factors.get(part.kind, 1.0) for figure in part[1:])) for part in result.parts
    )
    return result._replace(seconds=sum(part.seconds for part in parts), parts=parts)


def _without(source: str, result: StepResult, others: Sequence[StepResult]) -> _Scale:
    """How the parts of ``result`` scale when the figures come from ``others`` and priors."""
    if _gpu(result) != _FITTED:
        return _Scale(1.0, 1.0)
    alike = [other for other in others if _gpu(other) == _FITTED and not other.row.vague]
    attention = _PRIOR_ATTENTION if source in _EFFICIENT else 1.0
    if not alike:
        return _Scale(1 / (1 + kernels_of(resolve_device("a100_sxm")).sustained), attention)
    low, high = 0.5, 2.0
    for _ in range(40):  # of a factor on their products, so that half of the rows are too slow
        middle = (low + high) / 2
        errors = [scaled(other, _Scale(middle, 1.0)).error for other in alike]
        low, high = (middle, high) if statistics.median(errors) < 0 else (low, middle)
    return _Scale(middle, attention)


def _gpu(result: StepResult) -> str:
    return result.row.gpu.split(" ")[0]
