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
from kernbench.collective_kinds import KINDS, CollectiveKind
from kernbench.cost.collective_world import CollectiveWorld, build_world
from kernbench.cost.collectives import collective_time
from kernbench.cost.peer_access import FEW_BLOCKS
from kernbench.cost.selection import Choice, choose
from kernbench.errors import ConfigError
from kernbench.topology.system import SystemSpec

VARIABLES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
"""What users configure the library by."""

_FINEST = 4096
"""Bytes below which a message is not cut."""

MOST_CHUNKS = 1 << 14
"""Chunks of all members together that pipelines are cut into at most, for the simulation's own sake."""


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
    world: CollectiveWorld
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
    blocks: int = FEW_BLOCKS,
) -> Selection:
    """What the library runs for a collective of ``nbytes`` (nccl-tests' size) over members that stand as ``where`` says.

    Args:
        environ: of :data:`VARIABLES`.
        algorithm, blocks: instead of the library's choice, as :func:`kernbench.cost.collective_time` takes them.

    Raises:
        ConfigError: the library could not join these members at all.
    """
    notes: list[str] = []
    nodes = where.nodes
    ranks = max(map(len, where.by_node)) * nodes  # nodes of different sizes: as if all were as large as the largest
    if ranks != where.members:
        notes.append(f"nodes of different sizes: chosen as for {ranks} ranks")
    world = build_world(system, ranks=ranks, nodes=nodes, blocks=blocks)
    kind = KINDS[collective]
    known = kind.timed_as
    try:
        choice = choose(system, known, nbytes, ranks=ranks, nodes=nodes, environ=environ, algorithm=algorithm)
    except ConfigError as error:
        if not environ:
            raise
        notes.append(f"{error}; the library's own choice instead")
        choice = choose(system, known, nbytes, ranks=ranks, nodes=nodes)
    name = "ring" if choice.algorithm == "copy" and kind.laps else choice.algorithm
    entry = kind.library.get(name, (kind.fallback,))[0]
    seconds = None
    if ranks == where.members and kind.closed_form:
        timed = None if choice.algorithm == "copy" else f"{choice.algorithm}/{choice.protocol}"
        estimate = collective_time(
            system, known, nbytes, ranks=ranks, nodes=nodes, algorithm=timed, kind="kernel", blocks=blocks
        )
        seconds = float(estimate.seconds)
    return Selection(entry, choice, world, _chunks(choice, kind, nbytes, world), seconds, "; ".join(notes))


def _chunks(choice: Choice, kind: CollectiveKind, nbytes: int, world: CollectiveWorld) -> int:
    """Parts of the buffer that follow each other: how often all channels send a chunk, all of them counted as one."""
    algorithm, protocol = choice.algorithm, choice.protocol
    pieces, least = 1, 1
    if algorithm == "tree":
        if protocol == "ll" and world.nodes > 1:
            return 1  # its messages pass a node whole (collective_models.tree)
        pieces, least, most = 4, 16, 32
    elif algorithm in ("nvls", "nvls_tree"):
        most = 8
    elif algorithm == "ring" and kind.root:  # a chain from or to the root
        pieces, least, most = 32, 32, 128
    else:
        return 1
    turns = -(-nbytes * pieces // max(1, choice.channels * choice.chunk))
    finest = nbytes // _FINEST
    return int(max(1, min(max(turns, min(least, finest)), most, MOST_CHUNKS // world.ranks)))
