"""From a schedule to time: queues get routes, cells get bytes, transfers get seconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.ipcq import QueueCosts
from kernbench.ccl.schedule import IntArray, Schedule
from kernbench.sim_engine.plan import TransferPlan
from kernbench.topology import Topology


def lower(
    schedule: Schedule,
    topology: Topology,
    sips: Sequence[int],
    config: AlgorithmConfig,
    *,
    counts: IntArray,
    itemsize: int,
    dtype: str,
) -> TransferPlan:
    """The plan of ``schedule`` on the members' ``sips``; transfer i carries ``counts[i]`` elements of ``itemsize`` bytes.

    Members on one SIP exchange through its memory, without a link.
    """
    members, cells = schedule.members, schedule.cells
    lanes = int(schedule.lane.max(initial=0)) + 1
    keys = (schedule.src * members + schedule.dst) * lanes + schedule.lane
    used = np.zeros(members * members * lanes, dtype=bool)
    used[keys] = True
    queue = (np.cumsum(used) - 1)[keys]
    pairs = np.flatnonzero(used) // lanes

    links: list[tuple[int, ...]] = []
    bandwidth: list[float] = []
    latency: list[float] = []
    for pair in pairs.tolist():
        source, target = sips[pair // members], sips[pair % members]
        if source == target:
            links.append(())
            bandwidth.append(topology.device.hbm_copy_bandwidth)
            latency.append(0.0)
        else:
            route = topology.route(source, target)
            links.append(route.links)
            bandwidth.append(route.bandwidth)
            latency.append(route.latency)
    hops = np.asarray([len(route_links) for route_links in links], dtype=np.float64)

    # transfers have few lengths and either reduce or copy: a few costs per queue
    costs = QueueCosts.of(topology, config, dtype)
    lengths, length_of = _distinct(counts)
    table = np.empty((2 * len(lengths), len(pairs), 3))
    for kind in _distinct(length_of + len(lengths) * schedule.reduces)[0].tolist():
        reduces, length = divmod(kind, len(lengths))
        nbytes = np.full(len(pairs), float(lengths[length] * itemsize))
        table[kind] = np.stack(
            costs.transfer(nbytes, np.asarray(bandwidth), np.asarray(latency), hops, reduces=bool(reduces)), axis=1
        )
    serial, wait, busy = table[length_of + len(lengths) * schedule.reduces, queue].T
    return TransferPlan(
        name=schedule.name,
        members=members,
        cells=cells,
        rounds=schedule.rounds,
        src=schedule.src,
        dst=schedule.dst,
        src_cell=schedule.cell,
        dst_cell=schedule.to_cell,
        nbytes=counts * itemsize,
        serial=np.ascontiguousarray(serial),
        latency=np.ascontiguousarray(wait),
        queue=queue,
        queue_links=tuple(links),
        reduces=schedule.reduces,
        busy=np.ascontiguousarray(busy),
    )


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """``np.unique(values, return_inverse=True)`` of values >= 0, without sorting where there are more of them than numbers."""
    if not len(values) or int(values.max()) > len(values):
        found, inverse = np.unique(values, return_inverse=True)
        return found, inverse.reshape(-1)
    occurs = np.bincount(values) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[values]
