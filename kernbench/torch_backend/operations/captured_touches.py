"""What an operation of a CUDA graph touches, whenever the graph is replayed (ADR 0147).

What it is, is found out once, when the operation is captured. Then nothing is touched but memory of the host, by what the host
does at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernbench.order import ByteRegion, MemoryAccess, RankOrder, Shadow, Undefined
from kernbench.simulation.order.shadow_memory import escapes, region_in, shadow_of, touch
from kernbench.simulation.ranks.hosts import Host


class _TouchedPart(NamedTuple):
    """Bytes of one storage; ``fresh``: the operation gave it."""

    shadow: Shadow
    region: ByteRegion
    writes: bool
    fresh: bool


class CapturedTouches:
    """What one operation touches.

    Args:
        order: of its rank.
        name: of the operation.
        changes: whether what it writes depends on what was there.
    """

    def __init__(self, order: RankOrder, name: str, *, changes: bool = False) -> None:
        self._order = order
        self._name = name
        self._changes = changes
        self._passes_on = False
        self._parts: list[_TouchedPart] = []

    def add(self, tensor: torch.Tensor, *, together: bool = False, writes: bool = False, fresh: bool = False) -> None:
        """One tensor; ``together``: the stream touches it although it is on the host."""
        order = self._order
        kept = shadow_of(order, tensor)
        if kept is None:
            return
        if not (together or kept.on_gpu):
            if writes:
                escapes(tensor)
            touch(kept, tensor, order.of_host(self._name), writes=writes, fresh=fresh)
            return
        shadow = kept.shadow
        if shadow.made is None:
            shadow.made = MemoryAccess(order.host, order.host.n, self._name, order.locate())
        elif fresh:
            writes = False  # another view of what it was given
        region = region_in(kept, tensor)
        if region is not None:
            self._parts.append(_TouchedPart(shadow, region, writes, fresh))

    def have_done_again(self, host: Host, *, passes_on: bool) -> None:
        """All has been added: from now on replays tell it.

        ``passes_on``: whether what it makes of undefined memory is undefined.
        """
        self._passes_on = passes_on
        if host.capture is not None and self._parts:
            host.capture.add_on_stream(host, lambda: self._again(host.stream))

    def _again(self, stream: str) -> None:
        """A replay has put it on a stream. Raises RaceError."""
        order = self._order
        access = order.access(order.stream(stream), self._name)
        undefined: Undefined | None = None
        for shadow, region, writes, fresh in self._parts:
            there = shadow.undefined
            if there is not None:
                if fresh:
                    shadow.undefined = None
                elif undefined is None and (self._changes or not writes) and there.whole(region):
                    undefined = there
            if writes:
                shadow.write(access, region)
            else:
                shadow.read(access, region)
        if undefined is not None and self._passes_on:
            for shadow, region, writes, _ in self._parts:
                if writes and region.dense:
                    shadow.undefined = Undefined(undefined.origin, region, access)
