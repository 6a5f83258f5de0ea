"""The queues of a schedule and the routes that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernbench.ccl.ipcq import FloatArray
from kernbench.ccl.schedule import IntArray, Schedule, Way, queue_keys
from kernbench.topology import Topology


@dataclass(frozen=True)
class Queues:
    """The queues that a schedule uses on the members' SIPs.

    Attributes:
        of: ``[transfers]`` queue of each transfer.
        src, dst: ``[queues]`` members at the ends.
        way: ``[queues]`` :class:`~kernbench.ccl.schedule.Way`.
        links: the links of each queue's route; none inside a SIP.
        bandwidth: ``[queues]`` bytes/s of the route, of the device memory inside a SIP.
        latency: ``[queues]`` seconds.
        across: ``[queues]`` whether it leaves the node.
    """

    of: IntArray
    src: IntArray
    dst: IntArray
    way: IntArray
    links: tuple[tuple[int, ...], ...]
    bandwidth: FloatArray
    latency: FloatArray
    across: NDArray[np.bool_]

    @property
    def hops(self) -> FloatArray:
        """``[queues]`` links of each route."""
        return np.asarray([len(route) for route in self.links], dtype=np.float64)


def queues_of(schedule: Schedule, topology: Topology, sips: Sequence[int]) -> Queues:
    """The queues of ``schedule`` on ``sips``. Members on one SIP exchange through its memory, without a link."""
    first, of = _numbered(schedule)
    src, dst, way = schedule.src[first], schedule.dst[first], schedule.way[first]
    links: list[tuple[int, ...]] = []
    bandwidth: list[float] = []
    latency: list[float] = []
    sip = np.asarray(sips, dtype=np.int64)
    node = sip // topology.sips_per_node
    for here, there, by in zip(sip[src].tolist(), sip[dst].tolist(), way.tolist(), strict=True):
        if here == there:
            links.append(())
            bandwidth.append(topology.device.hbm_copy_bandwidth)
            latency.append(0.0)
            continue
        route = topology.route(here, there)
        half = len(route.links) // 2
        taken = route.links[:half] if by == Way.UP else route.links[-half:] if by == Way.DOWN else route.links
        links.append(taken)
        bandwidth.append(route.bandwidth)
        latency.append(route.latency / 2 if by in (Way.UP, Way.DOWN) else route.latency)
    return Queues(of, src, dst, way, tuple(links), np.asarray(bandwidth), np.asarray(latency), node[src] != node[dst])


def _numbered(schedule: Schedule) -> tuple[IntArray, IntArray]:
    """``([queues] its first transfer, [transfers] its queue)``."""
    begin = slice(int(schedule.rounds[1]) if schedule.steady else None)
    keys = queue_keys(
        schedule.src[begin], schedule.dst[begin], schedule.channel[begin], schedule.to_chunk[begin], schedule.way[begin],
        schedule.members, schedule.slots,
    )  # fmt: skip
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    of = of.reshape(-1).astype(np.int64)
    return first, np.tile(of, len(schedule.rounds) - 1) if schedule.steady else of
