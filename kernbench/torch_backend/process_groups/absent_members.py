"""Calls whose answer is what other members have, in groups of which some members are not run.

See :mod:`.folding`. An absent member brings what its representative brings. That is right for what is only
timed, and for sums; an object, or a known value, that a program gathers or is sent would be another rank's. Of tensors that is
so where a program, or a library of its, calls it. What torch itself exchanges (shapes that DDP compares, states that
are equal on all) stays.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from kernbench.collective_kinds import KINDS
from kernbench.simulation.matching.groups import Communicator
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values.collective_values import brought_by
from kernbench.torch_backend.relies_on import Reliance

_FRONTS = (dist.distributed_c10d.__name__, "torch.distributed._functional_collectives")
"""Modules whose functions programs call for a collective."""
_BETWEEN = (
    "kernbench.",
    "torch.distributed.c10d_logger",
    "torch.utils._",
    "torch._ops",
    "torch._library.",
    "contextlib",
)
"""Modules whose frames lie between such a function and its caller, or below it."""
_GATHERED = ("all_gather_object", "gather_object")
_ROOTED = ("broadcast_object_list", "scatter_object_list")
_BY_BYTES = ("torch.distributed.optim.zero_redundancy_optimizer", "_broadcast_object")
"""A function of torch's, with its module, that sends an object as a length and bytes of its own."""
_PLANNED = "torch.distributed.checkpoint."
"""Modules whose objects are planned for all ranks (``features.checkpoint_plans``)."""

RELIES_ON = (
    Reliance("sys._getframe", "the frames of the thread that runs, innermost first"),
    Reliance("torch.distributed.distributed_c10d", "collectives of objects are functions of it, that call those of tensors",
             has=(*_GATHERED, *_ROOTED)),
    Reliance(_BY_BYTES[0], "it broadcasts the states of optimizers as bytes", has=_BY_BYTES[1:]),
)  # fmt: skip


def _caller() -> tuple[str, str, str]:
    """The function of ``torch.distributed`` that was called, and the names of the module and of the function that did."""
    frame: Any = sys._getframe(2)
    function = ""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module in _FRONTS:
            name = frame.f_code.co_name
            function = name if function not in (*_GATHERED, *_ROOTED) else function
        elif not module.startswith(_BETWEEN):
            return function, module, frame.f_code.co_name
        frame = frame.f_back
    return function, "", ""


def check(
    simulation: Simulation, group: Communicator, op: str, root: int | None, inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> None:  # fmt: skip
    """A member of ``group``, not all of whose members run, calls a collective; ``root``: a rank of the world.

    Raises :class:`~kernbench.simulation.ranks.folding.StandInNeededError` if its answer is an object of a rank that is not run.
    """
    folding = simulation.hosts.folding
    kind = KINDS.get(op)
    if folding is None or kind is None:
        return
    objects = known = False
    function, module, name = _caller()
    if (module, name) == _BY_BYTES:
        objects = True
    elif function in (*_GATHERED, *_ROOTED):
        objects = not module.startswith(_PLANNED) or function in _ROOTED
    elif function and not module.startswith("torch."):
        brought = brought_by(simulation.storages, inputs, outputs)
        known = brought.has_bytes and not brought.unknown
    if not objects and not known:
        return
    here, rank = user_location(), simulation.hosts.current_rank()
    what = f"{function} at {here.file}:{here.line}"
    if root is not None and kind.root == "gives":
        if objects or folding.scouting:
            folding.need_root(rank, root, group.ranks, what)
        else:
            folding.taken_for(rank, (root,), what)
    elif objects or (folding.scouting and not kind.reduces and kind.gets):
        folding.need_all(rank, group.ranks, what)
    elif kind.gets:
        folding.taken_for(rank, group.ranks, what)
