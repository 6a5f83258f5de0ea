"""Point-to-point: one transfer from member ``root`` to the other."""

from __future__ import annotations

from kernbench.ccl.schedule import Schedule, ScheduleBuilder

COLLECTIVE = "send"
TOPOLOGIES = ("all_to_all",)


def build(members: int, root: int) -> Schedule:
    """The schedule of one message: ``members`` is 2, member ``root`` sends."""
    message = ScheduleBuilder("direct_send", members, chunks=1)
    return message.round([root], [1 - root], [0], reduce=False).build()
