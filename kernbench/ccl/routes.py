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
    keys = queue_keys(
        schedule.src, schedule.dst, schedule.lane, schedule.to_cell, schedule.way, schedule.members, schedule.slots
    )
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    src, dst, way = schedule.src[first], schedule.dst[first], schedule.way[first]
    links: list[tuple[int, ...]] = []
    bandwidth: list[float] = []
    latency: list[float] = []
    across: list[bool] = []
    for source, target, by in zip(src.tolist(), dst.tolist(), way.tolist(), strict=True):
        here, there = sips[source], sips[target]
        if here == there:
            links.append(())
            bandwidth.append(topology.device.hbm_copy_bandwidth)
            latency.append(0.0)
            across.append(False)
            continue
        route = topology.route(here, there)
        half = len(route.links) // 2
        taken = route.links[:half] if by == Way.UP else route.links[-half:] if by == Way.DOWN else route.links
        links.append(taken)
        bandwidth.append(route.bandwidth)
        latency.append(route.latency / 2 if by in (Way.UP, Way.DOWN) else route.latency)
        across.append(topology.node_of(here) != topology.node_of(there))
    return Queues(
        of.reshape(-1).astype(np.int64), src, dst, way, tuple(links), np.asarray(bandwidth), np.asarray(latency),
        np.asarray(across, dtype=bool),
    )  # fmt: skip
