"""What one-shot and two-shot algorithms share: every member exchanges with every other at once."""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Schedule, ScheduleBuilder, Way
from kernbench.ccl.shapes import all_pairs, fold_slots


def one_shot(name: str, members: int, *, pull: bool) -> Schedule:
    """Every member's whole buffer to all members, folded there. Scratch chunk ``1 + m`` holds what member m has."""
    shot = ScheduleBuilder(name, members, chunks=1, scratch=np.zeros(members))
    src, dst = all_pairs(members)
    shot.round(src, dst, 0, reduce=False, to_chunk=1 + src, way=Way.PULL if pull else Way.LINK)
    member = np.arange(members)
    fold_slots(shot, member, member, members, np.zeros_like(member), 1)
    return shot.build()


def two_shot(name: str, members: int, *, pull: bool) -> Schedule:
    """Part m of every member's buffer to member m, folded there; the sums to all."""
    way = Way.PULL if pull else Way.LINK
    shots = ScheduleBuilder(name, members, chunks=members, scratch=np.zeros(members))
    src, dst = all_pairs(members)
    shots.round(src, dst, dst, reduce=False, to_chunk=members + src, way=way)
    member = np.arange(members)
    fold_slots(shots, member, member, members, member, members)
    return shots.round(src, dst, src, reduce=False, way=way).build()
