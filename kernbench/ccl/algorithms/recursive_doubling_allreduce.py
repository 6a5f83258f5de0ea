"""Recursive doubling: in round k every member exchanges all it has with the member whose number differs in bit k.

``log2(n)`` rounds with the whole buffer each: the fewest steps, for short messages (Thakur, Rabenseifner and Gropp, IJHPCA
2005, section 4.5, with its folding of members beyond a power of two).

Order of reduction: pairs of neighbours, then pairs of pairs, by growing distance.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Schedule, ScheduleBuilder

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("hypercube", "all_to_all")


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members."""
    power = 1 << (members.bit_length() - 1)
    extra = members - power
    doubling = ScheduleBuilder("recursive_doubling_allreduce", members, chunks=1)
    even = 2 * np.arange(extra)
    doubling.round(even, even + 1, 0, reduce=True)
    number = np.arange(power)
    member = np.where(number < extra, 2 * number + 1, number + extra)
    for bit in range(power.bit_length() - 1):
        doubling.round(member, member[number ^ (1 << bit)], 0, reduce=True)
    return doubling.round(even + 1, even, 0, reduce=False).build()
