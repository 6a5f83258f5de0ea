"""Closed forms: how long a collective takes, without stepping through its transfers.

On systems with a vendor's library the closed form is :func:`kernbench.cost.collective_time`. On others it is what
this module says: an algorithm module may have a ``profile(members)``, which lists how often in a row every member sends
which share of the buffer to a neighbour; a round takes what one transfer takes between neighbours, in the queue model
(ADR 0036; a test shows where that is the stepped time).
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.ipcq import QueueCosts
from kernbench.ccl.placement import Placement
from kernbench.ccl.registry import algorithm_module
from kernbench.sim_engine.plan import TransferPlan
from kernbench.topology import Topology

_GRAIN = 4
"""Bytes that a share is rounded down to: a buffer of one element more must not send one message more in every round."""


def closed_form_seconds(
    topology: Topology, config: AlgorithmConfig, where: Placement, nbytes: int, dtype: str
) -> float | None:
    """Seconds of an algorithm on members that fill ``topology`` in order, None if it has no profile."""
    profile = getattr(algorithm_module(config.module), "profile", None)
    if profile is None:
        return None
    costs = QueueCosts.of(topology, config, dtype)
    members = where.members
    # a node's neighbours stand for those of the other nodes, which are joined alike
    senders = members if members <= 2 * topology.sips_per_node else topology.sips_per_node
    routes = [topology.route(sip, (sip + 1) % members) for sip in range(senders)] if members > 1 else []
    total = 0.0
    for times, share, reduces, phase in profile(members):
        serial, latency, _ = costs.transfer(
            np.full(len(routes), np.floor(share * nbytes / _GRAIN) * _GRAIN),
            np.array([route.bandwidth for route in routes]),
            np.array([route.latency for route in routes]),
            np.array([float(len(route.links)) for route in routes]),
            reduces,
        )
        if phase != "ring" and senders == members:
            serial, latency = serial[:-1], latency[:-1]  # nothing goes from the last back to the first
        passing, slowest = float((serial + latency).mean()), float(serial.max())
        # a part passes all ways in turn, and each way passes all parts
        total += times * {"ring": max(passing, slowest), "fill": passing, "stream": slowest}[phase]
    return total


def closed_form_plan(name: str, members: int, seconds: float) -> TransferPlan:
    """A plan in which every member ends ``seconds`` after the last one has come. It uses no link.

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
        name=name, members=members, chunks=1, rounds=np.arange(rounds + 1, dtype=np.int64) * members, src=src, dst=dst,
        src_chunk=zeros, dst_chunk=zeros, nbytes=zeros, serial=np.zeros(transfers), latency=latency,
        queue=np.arange(transfers, dtype=np.int64), queue_links=((),) * transfers, reduces=np.zeros(transfers, dtype=bool),
    )  # fmt: skip
