"""Two-shot all-reduce, push: every member writes part m to member m, which adds up and writes the sum to all.

A reduce-scatter and an all-gather of one step each; as few bytes as a ring, in two steps (TensorRT-LLM's and vLLM's
custom all-reduce kernels). Order of reduction: member 0, 1, 2, ..., sums kept wide.
"""

from __future__ import annotations

from kernbench.ccl.algorithms._direct import two_shot
from kernbench.ccl.schedule import Schedule

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("all_to_all",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members."""
    return two_shot("two_shot_push", members, pull=False)
