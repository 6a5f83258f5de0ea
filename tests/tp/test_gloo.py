"""The same code on real gloo processes: what simulated ranks compute is what processes compute."""

from __future__ import annotations

from tests.tp import cases
from tests.tp.ranks import processes, simulated


def mlp_and_gpt() -> cases.Tensors:
    """Both with sequence parallelism, so that every collective of the layers is in it."""
    return {**cases.mlp(True), **cases.gpt(True, 2)}


def test_two_processes_agree_with_two_simulated_ranks():
    """Sums of two numbers round alike in any order, so two ranks agree to the last bits that the gemm leaves open."""
    real = cases.joined(processes(2, mlp_and_gpt))
    cases.assert_matches(cases.joined(simulated(2, mlp_and_gpt)), real, 1e-6)
