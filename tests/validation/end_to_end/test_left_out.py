"""Leaving out one source: what its rows had a say in is set again."""

from __future__ import annotations

import pytest

from kernbench.cost.devices import resolve_device
from kernbench.cost.gemm import kernels_of
from kernbench.trace.step_parts import PathPart
from kernbench.validation.end_to_end.left_out import left_out
from kernbench.validation.end_to_end.published import published
from kernbench.validation.end_to_end.results import StepResult

ROWS = {row.id: row for row in published()}


def exact(name: str) -> StepResult:
    """A row that the models have right, all of it products."""
    row = ROWS[name]
    return StepResult(row, row.seconds, (PathPart("product", row.seconds, row.seconds, row.seconds),))


def test_a_figure_that_no_other_source_knows_has_its_prior() -> None:
    (found,) = left_out([exact("e171")])["llm-foundry"]
    assert found.error == pytest.approx(1 / (1 + kernels_of(resolve_device("a100_sxm")).sustained) - 1)


def test_others_set_the_figure_again_unless_they_are_vague() -> None:
    folds = left_out([exact("e171"), exact("e043")])
    assert folds["nanoGPT"][0].error == pytest.approx(0.0, abs=1e-6)
    assert folds["llm-foundry"][0].error < -0.02  # nanoGPT does not say on how many GPUs it was: the prior


def test_nothing_of_hopper_s_is_fitted() -> None:
    folds = left_out([exact("e121"), exact("e001")])
    assert [found.error for fold in folds.values() for found in fold] == pytest.approx([0.0, 0.0])
