"""Recursive halving and doubling: a reduce-scatter in log2(n) exchanges of halves, then an all-gather back.

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004. Members exchange half of what they still
hold with the member whose number differs in one bit, from the highest bit to the lowest. Of a number of members that is
no power of two, the first ``2 r`` pair up before (``r`` is what exceeds the power): the even one gives all it has to the
odd one and gets the result in the end (Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4.5).

Order of reduction of a chunk: pairs, then pairs of pairs, by distance from n/2 to 1; bandwidth as a ring's.
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
    halving = ScheduleBuilder("halving_doubling_allreduce", members, chunks=power)
    even = 2 * np.arange(extra)
    chunks = np.arange(power)[:, None]
    if extra:
        halving.round(even, even + 1, np.broadcast_to(chunks, (power, extra)), reduce=True)
    number = np.arange(power)
    member = np.where(number < extra, 2 * number + 1, number + extra)
    halves = [1 << bit for bit in reversed(range(power.bit_length() - 1))]
    for half in halves:
        partner = number ^ half
        # of the 2 * half chunks that both hold, a member gives those of its partner's side
        given = (partner & ~(half - 1)) + np.arange(half)[:, None]
        halving.round(member, member[partner], given, reduce=True)
    for half in reversed(halves):
        partner = number ^ half
        kept = (number & ~(half - 1)) + np.arange(half)[:, None]
        halving.round(member, member[partner], kept, reduce=False)
    if extra:
        halving.round(even + 1, even, np.broadcast_to(chunks, (power, extra)), reduce=False)
    return halving.build()
