"""What the models say of one source's rows when nothing was fitted to them.

Four figures of the models are fitted on the published steps (ADR 0126): how much longer sustained products take on Ampere and
on Hopper, what a board's power limit costs, and how quick the memory-efficient attention of Ampere is. One source at a time is
left out, each figure is set again from its prior on the other sources, and the parts of the left-out steps are scaled by it:
nothing is run again. A figure that no other source says anything of has its prior. Rows that are vague set nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kernbench.cost.devices import resolve_device
from kernbench.cost.gemm import kernels_of
from kernbench.end_to_end.results import StepResult
from kernbench.trace.step_parts import PathPart

PRIOR_EXPONENT = 0.75
"""Of a board's power limit, before there were steps on such boards (ADR 0109)."""

_PRIOR_ATTENTION = {"A100": 0.40 / 0.36, "H100": 1.0}
"""How much longer the memory-efficient attention took before (FlashAttention-2's figures), by GPU."""

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
    alike = [other for other in others if _gpu(other) == _gpu(result) and not other.row.vague]
    own = _to_prior(result)  # its products at the prior of the power's exponent
    attention = _PRIOR_ATTENTION[_gpu(result)] if source in _EFFICIENT else 1.0
    if not alike:
        return _Scale(own / (1 + kernels_of(resolve_device(_DEVICES[_gpu(result)])).sustained), attention)
    low, high = 0.5, 2.0
    for _ in range(40):  # of a factor on their products, so that half of the rows are too slow
        middle = (low + high) / 2
        errors = [scaled(other, _Scale(middle * _to_prior(other), 1.0)).error for other in alike]
        low, high = (middle, high) if statistics.median(errors) < 0 else (low, middle)
    return _Scale(middle * own, attention)


def _to_prior(result: StepResult) -> float:
    """The factor on products when a board's power limit counts by the prior exponent: one for usual boards."""
    if "500W" not in result.row.gpu:
        return 1.0
    kernels = kernels_of(resolve_device("h100_96gb"))
    return (500 / kernels.power) ** (kernels.power_exponent - PRIOR_EXPONENT)


_DEVICES = {"A100": "a100_sxm", "H100": "h100_sxm"}


def _gpu(result: StepResult) -> str:
    return result.row.gpu.split(" ")[0]
