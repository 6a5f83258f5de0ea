"""From a schedule to time: queues get routes, chunks get bytes, transfers get seconds.

By two kinds of costs: those of the inter-PE queues (:func:`lower`), and those of the vendor's library on systems that
have one (:func:`lower_library`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.ipcq import FloatArray, QueueCosts
from kernbench.ccl.protocols import ProtocolCosts
from kernbench.ccl.routes import Queues, queues_of
from kernbench.ccl.schedule import IntArray, Schedule, Way
from kernbench.sim_engine.plan import TransferPlan, member_ends
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

    Members on one SIP exchange through its memory, without a link. What a member does locally takes the time of its
    memory: it reads a chunk, and the other one if it reduces, and writes.
    """
    queues = queues_of(schedule, topology, sips)
    # transfers have few lengths and either reduce or copy: a few costs per queue
    costs = QueueCosts.of(topology, config, dtype)
    requests = np.where(queues.way == Way.PULL, queues.latency, 0.0)
    lengths, length_of = _distinct(counts)
    kinds = length_of
    kinds[schedule.reduces] += len(lengths)
    table = np.zeros((2, 2 * len(lengths), len(queues.links)))
    for kind in np.flatnonzero(np.bincount(kinds)).tolist():
        reduces, length = divmod(kind, len(lengths))
        nbytes = np.full(len(queues.links), float(lengths[length] * itemsize))
        serial, wait, _ = costs.transfer(nbytes, queues.bandwidth, queues.latency, queues.hops, reduces=bool(reduces))
        local = queues.way == Way.LOCAL
        moved = (3.0 if reduces else 2.0) * nbytes / topology.device.hbm_copy_bandwidth
        table[:, kind] = np.where(local, moved, serial), np.where(local, 0.0, wait + requests)
    place = kinds  # in place: a thousand ranks have millions of transfers, and fresh memory costs more than sums
    place *= len(queues.links)
    place += queues.of
    serial, wait = (each.reshape(-1)[place] for each in table)
    return _plan(schedule, queues, counts * itemsize, serial, wait)


def lower_library(
    schedule: Schedule,
    topology: Topology,
    sips: Sequence[int],
    costs: ProtocolCosts,
    *,
    counts: IntArray,
    itemsize: int,
) -> TransferPlan:
    """The plan of ``schedule`` when the vendor's library runs it.

    A rank's port into its node and a node's NICs are divided among the transfers of a round that use them. Rounds only
    order transfers, they do not hold them up, so this is what a pipeline in its steady state gets. The division is part
    of the plan: alone on its links it shares them with no other plan.
    """
    queues = queues_of(schedule, topology, sips)
    nbytes = (counts * itemsize).astype(np.float64)
    rate = _rates(schedule, topology, sips, costs, queues)
    latency = np.where(queues.across, costs.net_hop, costs.hop)
    latency = np.where(queues.way == Way.PULL, latency + queues.latency, latency)
    local = queues.way == Way.LOCAL
    latency[local] = 0.0
    serial = np.where(local[queues.of], 0.0, nbytes / rate[queues.of])
    wait = latency[queues.of] + np.where(_first_reads(schedule), costs.base, 0.0)
    # what goes over many links at once, of which a queue's route shows one, loads that one with its share
    wire = nbytes * np.minimum(1.0, queues.bandwidth / rate)[queues.of]
    return _plan(schedule, queues, counts * itemsize, serial, wait, wire=wire, paced=True)


def paced(plan: TransferPlan, seconds: float) -> TransferPlan:
    """``plan`` with all its times stretched so that, undisturbed, it takes ``seconds`` in all."""
    free = max(member_ends(plan, [0.0] * plan.members), default=0.0)
    if free <= 0.0:
        return plan
    return plan.stretched(seconds / free)


def _rates(
    schedule: Schedule, topology: Topology, sips: Sequence[int], costs: ProtocolCosts, queues: Queues
) -> FloatArray:
    """``[queues]`` bytes/s: the least of its ports' rates, each divided among those that use the port in one round."""
    members = schedule.members
    node = np.asarray([topology.node_of(sip) for sip in sips], dtype=np.int64)
    nodes = int(node.max(initial=0)) + 1
    rounds = np.repeat(np.arange(len(schedule.rounds) - 1), np.diff(schedule.rounds))
    ports = [  # (number of ports, port of each queue or -1, bytes/s of a port)
        (members, np.where(queues.way == Way.DOWN, -1, queues.src), costs.inside),
        (members, np.where(queues.way == Way.UP, -1, queues.dst), costs.inside),
        (nodes, np.where(queues.across, node[queues.src], -1), costs.outside),
        (nodes, np.where(queues.across, node[queues.dst], -1), costs.outside),
    ]
    rate = np.full(len(queues.links), np.inf)
    idle = queues.way == Way.LOCAL
    for number, port, capacity in ports:
        used = np.where(idle, -1, port)
        used_by = used[queues.of]
        counted = used_by >= 0
        keys, found = np.unique(rounds[counted] * number + used_by[counted], return_counts=True)
        load = np.ones(number)
        np.maximum.at(load, keys % number, found)
        share = np.where(used >= 0, capacity / load[used], np.inf)
        rate = np.minimum(rate, share)
    in_switch = (queues.way == Way.UP) | (queues.way == Way.DOWN)
    rate = np.where(in_switch, costs.switch, rate)
    return np.where(np.isfinite(rate), rate, topology.device.hbm_copy_bandwidth)


def _first_reads(schedule: Schedule) -> NDArray[np.bool_]:
    """``[transfers]`` whether a transfer reads what its member brought: it goes first, when the kernel has started.

    A local reduction does not count: what it reduces into has come later.
    """
    rounds = np.repeat(np.arange(len(schedule.rounds) - 1), np.diff(schedule.rounds))
    written = np.full(schedule.members * schedule.slots, len(schedule.rounds), dtype=np.int64)
    np.minimum.at(written, schedule.dst * schedule.slots + schedule.to_chunk, rounds)
    first: NDArray[np.bool_] = written[schedule.src * schedule.slots + schedule.chunk] >= rounds
    return first & ~((schedule.way == Way.LOCAL) & schedule.reduces)


def _plan(
    schedule: Schedule,
    queues: Queues,
    nbytes: IntArray,
    serial: FloatArray,
    latency: FloatArray,
    *,
    wire: FloatArray | None = None,
    paced: bool = False,
) -> TransferPlan:
    nothing = np.zeros(0)
    return TransferPlan(
        name=schedule.name,
        members=schedule.members,
        chunks=schedule.slots,
        rounds=schedule.rounds,
        src=schedule.src,
        dst=schedule.dst,
        src_chunk=schedule.chunk,
        dst_chunk=schedule.to_chunk,
        nbytes=nbytes,
        serial=serial,
        latency=latency,
        queue=queues.of,
        queue_links=queues.links,
        reduces=schedule.reduces,
        wire=nothing if wire is None else wire,
        paced=paced,
    )


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """``np.unique(values, return_inverse=True)`` of values >= 0, without sorting where there are more of them than numbers."""
    if not len(values) or int(values.max()) > len(values):
        found, inverse = np.unique(values, return_inverse=True)
        return found, inverse.reshape(-1)
    occurs = np.bincount(values) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[values]
