"""Closed forms: how long a collective takes, without stepping through its transfers.

On systems with a vendor's library the closed form is :func:`kernbench.cost.collective_time`. On others it is what
this module says: an algorithm module may have a ``profile(members)``, which lists how often in a row everybody sends
which share of the buffer to a neighbour; a round takes what one transfer takes on the slowest way between neighbours, in
the queue model (ADR 0036 says where that equals the stepped time, a test shows it).
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.ipcq import QueueCosts
from kernbench.ccl.placement import Placement
from kernbench.ccl.registry import algorithm_module
from kernbench.sim_engine.plan import TransferPlan
from kernbench.topology import Topology


def closed_form_seconds(
    topology: Topology, config: AlgorithmConfig, where: Placement, nbytes: int, dtype: str
) -> float | None:
    """Seconds of an algorithm on members that fill ``topology`` in order, None if it has no profile."""
    profile = getattr(algorithm_module(config.module), "profile", None)
    if profile is None:
        return None
    costs = QueueCosts.of(topology, config, dtype)
    members = where.members
    total = 0.0
    for times, share, reduces, distance in profile(members):
        if not times:
            continue
        # the pattern repeats from node to node: one node's members, and those that reach into the next, meet all ways
        senders = range(min(members, topology.sips_per_node))
        routes = [
            topology.route(sip, (sip + distance) % members) for sip in senders if (sip + distance) % members != sip
        ]
        # rings shorter than a lap close over the longest way back
        routes.append(topology.route(members - 1, (members - 1 + distance) % members))
        serial, latency, _ = costs.transfer(
            np.full(len(routes), share * nbytes),
            np.array([route.bandwidth for route in routes]),
            np.array([route.latency for route in routes]),
            np.array([float(len(route.links)) for route in routes]),
            reduces,
        )
        total += times * float((serial + latency).max())
    return total


def closed_form_plan(name: str, members: int, seconds: float) -> TransferPlan:
    """A plan in which every member ends ``seconds`` after the last one has come. It uses no link, so it meets nobody.

    Members tell each other that they have come (in ``log2(members)`` steps that take no time), then wait.
    """
    member = np.arange(members, dtype=np.int64)
    told = [(member + (1 << bit)) % members for bit in range((members - 1).bit_length())]
    rounds = len(told) + 1
    src = np.tile(member, rounds)
    dst = np.concatenate([*told, member])
    latency = np.zeros(rounds * members)
    latency[-members:] = seconds
    transfers = rounds * members
    zeros = np.zeros(transfers, dtype=np.int64)
    return TransferPlan(
        name=name, members=members, cells=1, rounds=np.arange(rounds + 1, dtype=np.int64) * members, src=src, dst=dst,
        src_cell=zeros, dst_cell=zeros, nbytes=zeros, serial=np.zeros(transfers), latency=latency,
        queue=np.arange(transfers, dtype=np.int64), queue_links=((),) * transfers, reduces=np.zeros(transfers, dtype=bool),
    )  # fmt: skip
