"""Durations: what kernels, copies and collectives take on a described system, and how wrong that may be.

>>> from kernbench.cost import collective_time, gemm_time, memory_bound_time
>>> estimate = collective_time("dgx_h100", "all_reduce", 64 << 20, ranks=8)
>>> estimate.seconds, estimate.low, estimate.high, estimate.algorithm      # doctest: +SKIP

docs/cost_models.md explains the models, docs/accuracy.md how wrong they are.
"""

from __future__ import annotations

from kernbench.cost.by_values import by_values
from kernbench.cost.collectives import COLLECTIVES, collective_time
from kernbench.cost.estimate import Estimate
from kernbench.cost.gemm import gemm_time
from kernbench.cost.memory_bound import memory_bound_time
from kernbench.cost.operands import Operand
from kernbench.cost.registry import register
from kernbench.cost.work import StatedWork

__all__ = [
    "COLLECTIVES",
    "Estimate",
    "Operand",
    "StatedWork",
    "by_values",
    "collective_time",
    "gemm_time",
    "memory_bound_time",
    "register",
]
