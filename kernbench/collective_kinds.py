"""The collectives: one row each. What is known of a collective is read here.

A row says what a member brings and what it gets, from which follow the shape of its work buffer, what a schedule must end
with and where its values go; what the vendor's library runs for it; and how nccl-tests counts it. A collective of
one's own is a row here and an algorithm module (docs/ccl_author_guide.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kernbench.errors import ConfigError

Part = Literal["", "whole", "own", "each"]
"""Tensors of a member: none; one, the whole buffer; one, the chunk of its own number; or one for each member."""


def _once(members: int) -> float:
    return 1.0


def _all_but_own(members: int) -> float:
    return (members - 1) / members


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKind:
    """What one collective is.

    Attributes:
        name: as calls, ``ccl.yaml`` and algorithm modules spell it.
        brings, gets: a member's tensors before and after. Where one of them is a chunk for each member, a signature
            describes one chunk.
        root: what the root does: ``gives`` all there is, ``gets`` it, ``sends`` it to the only other member; empty
            without one.
        reduces: whether all members' contributions are combined.
        coalesced: whether a member may bring several tensors at once.
        runs_as: the collective whose algorithm runs instead, for those without values.
        fallback: entry of ``ccl.yaml`` that serves any members.
        direct: shipped algorithm in which every member reaches every other at once: what a kernel's transfers are taken to be.
        library: for each algorithm of the vendor's library its entry of ``ccl.yaml``, and others that cost the same.
        timed_as: the collective of nccl-tests by whose model it is timed.
        closed_form: whether that model is the time of this very collective.
        laps: how often a ring's chunks go around; 0: the library has no ring for it, only sends and receives.
        bus_factor: bus over algorithm bandwidth by members, as nccl-tests has it: what each link of a ring carries, in
            units of nccl-tests' size.
        aliases: names that others have for ``timed_as``.
    """

    name: str
    brings: Part = ""
    gets: Part = ""
    root: Literal["", "gives", "gets", "sends"] = ""
    reduces: bool = False
    coalesced: bool = False
    runs_as: str = ""
    fallback: str = ""
    direct: str = ""
    library: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    timed_as: str = ""
    closed_form: bool = True
    laps: int = 0
    bus_factor: Callable[[int], float] = _once
    aliases: tuple[str, ...] = ()

    @property
    def per_chunk(self) -> bool:
        """Whether the work buffer has a chunk for each member, which is what a signature describes."""
        return "each" in (self.brings, self.gets)

    @property
    def exchanges(self) -> bool:
        """Whether every member has a chunk for every member: the buffer holds what a member sends, then what it receives."""
        return self.brings == self.gets == "each"

    def chunks(self, members: int) -> int:
        """Signatures that make up a member's work buffer."""
        return members * (2 if self.exchanges else 1) if self.per_chunk else 1

    def receivers(self, members: int, root: int | None) -> Sequence[int]:
        """The members that get something. Raises ValueError without the root that this collective has."""
        if not self.root:
            return range(members)
        if root is None:
            raise ValueError(f"{self.name} has a root")
        return range(members) if self.root == "gives" else (root if self.root == "gets" else 1 - root,)


_ROWS = (
    CollectiveKind(
        name="all_reduce", brings="whole", gets="whole", reduces=True, coalesced=True,
        fallback="ring_allreduce", direct="one_shot_pull",
        library={
            "ring": ("ring_allreduce",),
            "tree": ("tree_allreduce",),
            "nvls": ("nvls_allreduce",),
            "nvls_tree": ("nvls_tree_allreduce",),
            "one_shot": ("one_shot_pull", "one_shot_push", "one_shot_kernel"),
            "two_shot": ("two_shot_pull", "two_shot_push", "two_shot_kernel"),
            "multimem": ("multimem_allreduce",),
        },
        timed_as="all_reduce", laps=2, bus_factor=lambda n: 2 * (n - 1) / n, aliases=("allreduce",),
    ),
    CollectiveKind(
        name="all_gather", brings="own", gets="each", coalesced=True,
        fallback="ring_allgather", direct="direct_allgather", library={"ring": ("ring_allgather",)},
        timed_as="all_gather", laps=1, bus_factor=_all_but_own, aliases=("allgather",),
    ),
    CollectiveKind(
        name="reduce_scatter", brings="each", gets="own", reduces=True,
        fallback="ring_reducescatter", direct="direct_reducescatter", library={"ring": ("ring_reducescatter",)},
        timed_as="reduce_scatter", laps=1, bus_factor=_all_but_own, aliases=("reducescatter",),
    ),
    CollectiveKind(
        name="all_to_all", brings="each", gets="each",
        fallback="pairwise_alltoall", direct="direct_alltoall", library={"p2p": ("direct_alltoall",)},
        timed_as="all_to_all", bus_factor=_all_but_own, aliases=("alltoall",),
    ),
    CollectiveKind(
        name="broadcast", brings="whole", gets="whole", root="gives",
        fallback="ring_broadcast", direct="binomial_broadcast", library={"ring": ("ring_broadcast",)},
        timed_as="broadcast", laps=1, aliases=("bcast",),
    ),
    CollectiveKind(
        name="reduce", brings="whole", gets="whole", root="gets", reduces=True,
        fallback="ring_reduce", direct="binomial_reduce", library={"ring": ("ring_reduce",)},
        timed_as="reduce", laps=1,
    ),
    CollectiveKind(
        name="gather", brings="own", gets="each", root="gets",
        fallback="direct_gather", direct="direct_gather", library={"p2p": ("direct_gather",)},
        timed_as="sendrecv", closed_form=False, bus_factor=_all_but_own,
    ),
    CollectiveKind(
        name="scatter", brings="each", gets="own", root="gives",
        fallback="direct_scatter", direct="direct_scatter", library={"p2p": ("direct_scatter",)},
        timed_as="sendrecv", closed_form=False, bus_factor=_all_but_own,
    ),
    CollectiveKind(
        name="send", brings="whole", gets="whole", root="sends",
        fallback="direct_send", direct="direct_send", library={"p2p": ("direct_send",)},
        timed_as="sendrecv", aliases=("send_recv",),
    ),
    CollectiveKind(name="barrier", runs_as="all_reduce"),
    CollectiveKind(name="monitored_barrier", runs_as="all_reduce"),
)  # fmt: skip

KINDS: Mapping[str, CollectiveKind] = {kind.name: kind for kind in _ROWS}
"""By name."""

COLLECTIVES = tuple(kind.name for kind in _ROWS if not kind.runs_as)
"""Those that algorithms implement."""

TIMED: Mapping[str, CollectiveKind] = {kind.timed_as: kind for kind in _ROWS if kind.timed_as}
"""By the name of nccl-tests' model."""

_ALIASES = {alias: kind.timed_as for kind in _ROWS for alias in kind.aliases}


def timed_name(name: str) -> str:
    """The key of :data:`TIMED` for ``alltoall_perf``, ``AllReduce``, ``send_recv`` and the like. Raises ConfigError."""
    plain = str(name).strip().lower().replace("-", "_").removesuffix("_perf")
    plain = _ALIASES.get(plain, plain)
    if plain not in TIMED:
        raise ConfigError(f"unknown collective {name!r}; known: {', '.join(TIMED)}")
    return plain
