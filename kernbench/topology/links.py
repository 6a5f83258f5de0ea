"""Links and routes: what the engine moves bytes over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

LinkKind = Literal["egress", "ingress", "sip", "switch", "host", "nic", "die"]
Direction = Literal["h2d", "d2h"]


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a connection. Two directions are two links (full duplex), which never slow each other down.

    ``src`` and ``dst`` name vertices (``sip3``, ``sip3.io``, ``switch0``, ``nic5``, ``host0``, ``fabric``), numbered
    over all nodes. ``bandwidth`` is payload bytes/s, ``latency`` seconds.

    Kinds: ``egress`` and ``ingress`` (between a SIP's mesh and its IO die), ``sip`` (SIP to SIP, or SIP to switch and
    back), ``switch`` (the inside of a blocking switch), ``host``, ``nic`` (NIC to fabric and back), ``die`` (between
    neighbouring cubes of one SIP).
    """

    index: int
    name: str
    src: str
    dst: str
    bandwidth: float
    latency: float
    kind: LinkKind


@dataclass(frozen=True, slots=True)
class Route:
    """A way through the system: link indices in order, the sum of their latencies (s), the least bandwidth (bytes/s).

    The way from a SIP to itself uses no link: latency 0, bandwidth infinite.
    """

    links: tuple[int, ...]
    latency: float
    bandwidth: float


class LinkTable(Sequence[Link]):
    """All links of a topology; a :class:`Link` object is made when it is read (4096 SIPs have 32768 links)."""

    def __init__(self, count: int, make: Callable[[int], Link]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Link: ...
    @overload
    def __getitem__(self, index: slice) -> list[Link]: ...
    def __getitem__(self, index: int | slice) -> Link | list[Link]:
        if isinstance(index, slice):
            return [self._make(at) for at in range(*index.indices(self._count))]
        at = index + self._count if index < 0 else index
        if not 0 <= at < self._count:
            raise IndexError(f"link {index} of {self._count}")
        return self._make(at)

    def __iter__(self) -> Iterator[Link]:
        return map(self._make, range(self._count))
