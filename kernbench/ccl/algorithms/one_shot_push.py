"""One-shot all-reduce, push: every member writes all it has into a slot at every peer, and adds up by itself.

One step, ``n - 1`` times the buffer over every link: the quickest for short messages inside a node (TensorRT-LLM's and
vLLM's custom all-reduce kernels). Order of reduction: member 0, 1, 2, ..., sums kept wide; the same on every member.
"""

from __future__ import annotations

from kernbench.ccl.algorithms._direct import one_shot
from kernbench.ccl.schedule import Schedule

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("all_to_all",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members."""
    return one_shot("one_shot_push", members, pull=False)
