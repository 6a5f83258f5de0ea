"""Which algorithm runs a collective, and what happens when it cannot.

``auto`` takes what the vendor's library would (:func:`kernbench.cost.selection.choose`): the same choice that
:func:`kernbench.cost.collective_time` times, so the values' order of reduction and the time belong to each other. The
library's names stand for entries of ``ccl.yaml``; a user who gives an entry another module has it used here too.

Nothing here breaks a program. What cannot serve (a variable that excludes everything, members that no library would
group, an algorithm without a schedule for them) is replaced, and the reason is kept for the op log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernbench.ccl.placement import Placement
from kernbench.cost.collective_names import COLLECTIVES
from kernbench.cost.collective_world import World, build_world
from kernbench.cost.collectives import collective_time
from kernbench.cost.selection import Choice, choose
from kernbench.errors import ConfigError
from kernbench.topology.system import SystemSpec

ENTRIES: Mapping[tuple[str, str], str] = {
    ("all_reduce", "ring"): "ring_allreduce",
    ("all_reduce", "tree"): "tree_allreduce",
    ("all_reduce", "nvls"): "nvls_allreduce",
    ("all_reduce", "nvls_tree"): "nvls_tree_allreduce",
    ("all_reduce", "one_shot"): "one_shot_pull",
    ("all_reduce", "two_shot"): "two_shot_pull",
    ("all_gather", "ring"): "ring_allgather",
    ("reduce_scatter", "ring"): "ring_reducescatter",
    ("broadcast", "ring"): "ring_broadcast",
    ("reduce", "ring"): "ring_reduce",
    ("all_to_all", "p2p"): "direct_alltoall",
    ("gather", "p2p"): "direct_gather",
    ("scatter", "p2p"): "direct_scatter",
    ("send", "p2p"): "direct_send",
}
"""Entry of ``ccl.yaml`` for an algorithm of the library, by collective."""

FALLBACK: Mapping[str, str] = {
    "all_reduce": "ring_allreduce",
    "all_gather": "ring_allgather",
    "reduce_scatter": "ring_reducescatter",
    "all_to_all": "pairwise_alltoall",
    "broadcast": "ring_broadcast",
    "reduce": "ring_reduce",
    "gather": "direct_gather",
    "scatter": "direct_scatter",
    "send": "direct_send",
}
"""Entry that can always serve, by collective."""

VARIABLES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
"""What users tell the library by."""

_FINEST = 4096
"""Bytes below which a message is not cut."""

MOST_CELLS = 1 << 14
"""Cells of all members together that pipelines are cut into at most, for the simulation's own sake."""


@dataclass(frozen=True)
class Selection:
    """What the library runs.

    Attributes:
        entry: name under ``algorithms`` of ``ccl.yaml``.
        choice: algorithm, protocol, channels, chunk.
        world: what it meets.
        chunks: parts that a pipeline's buffer is cut into.
        seconds: of the kernel by the closed form; None where there is none (uneven nodes, gather and scatter).
        note: what was not as asked for, empty if nothing.
    """

    entry: str
    choice: Choice
    world: World
    chunks: int
    seconds: float | None
    note: str = ""

    @property
    def label(self) -> str:
        """``algorithm/protocol``, as the library's own logs name it."""
        return f"{self.choice.algorithm}/{self.choice.protocol}"

    def without_seconds(self) -> Selection:
        """The same costs for an algorithm of which the closed form knows nothing."""
        return replace(self, seconds=None)


def select(
    system: SystemSpec,
    collective: str,
    nbytes: int,
    where: Placement,
    *,
    root: int | None = None,
    environ: Mapping[str, str] | None = None,
    algorithm: str | None = None,
) -> Selection:
    """What the library runs for a collective of ``nbytes`` (nccl-tests' size) over members that stand as ``where`` says.

    Args:
        environ: of :data:`VARIABLES`.
        algorithm: instead of the library's choice, as :func:`kernbench.cost.collective_time` takes it.

    Raises:
        ConfigError: the library could not join these members at all.
    """
    notes: list[str] = []
    nodes = where.nodes
    ranks = max(map(len, where.by_node)) * nodes  # nodes of different sizes: as if all were as large as the largest
    if ranks != where.members:
        notes.append(f"nodes of different sizes: chosen as for {ranks} ranks")
    world = build_world(system, ranks=ranks, nodes=nodes)
    known = "sendrecv" if collective in ("send", "gather", "scatter") else collective
    assert known in COLLECTIVES
    try:
        choice = choose(system, known, nbytes, ranks=ranks, nodes=nodes, environ=environ, algorithm=algorithm)
    except ConfigError as error:
        if not environ:
            raise
        notes.append(f"{error}; the library's own choice instead")
        choice = choose(system, known, nbytes, ranks=ranks, nodes=nodes)
    name = "ring" if choice.algorithm == "copy" and collective in _RINGS else choice.algorithm
    entry = ENTRIES.get((collective, name), FALLBACK[collective])
    seconds = None
    if ranks == where.members and collective not in ("gather", "scatter"):
        timed = None if choice.algorithm == "copy" else f"{choice.algorithm}/{choice.protocol}"
        estimate = collective_time(system, known, nbytes, ranks=ranks, nodes=nodes, algorithm=timed, kind="kernel")
        seconds = float(estimate.seconds)
    return Selection(entry, choice, world, _chunks(choice, collective, nbytes, world), seconds, "; ".join(notes))


_RINGS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def _chunks(choice: Choice, collective: str, nbytes: int, world: World) -> int:
    """Parts of the buffer that follow each other: how often all channels send a chunk, all of them counted as one."""
    algorithm, protocol = choice.algorithm, choice.protocol
    pieces, least = 1, 1
    if algorithm == "tree":
        if protocol == "ll" and world.nodes > 1:
            return 1  # its messages pass a node whole (collective_models.tree)
        pieces, least, most = 4, 16, 32
    elif algorithm in ("nvls", "nvls_tree"):
        most = 8
    elif algorithm == "ring" and collective in ("broadcast", "reduce"):
        pieces, least, most = 32, 32, 128
    else:
        return 1
    turns = -(-nbytes * pieces // max(1, choice.channels * choice.chunk))
    finest = nbytes // _FINEST
    return int(max(1, min(max(turns, min(least, finest)), most, MOST_CELLS // world.ranks)))
