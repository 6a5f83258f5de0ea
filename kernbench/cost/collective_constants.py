"""Constants of the collective library (NCCL, RCCL) that hold everywhere: of its code, and of how it ranks candidates.

Those of a generation of devices or of a transport are in :mod:`kernbench.cost.generations`. Times in seconds, rates in
bytes/s, sizes in bytes. Sources: [N] github.com/NVIDIA/nccl src/graph/tuning.cc @5067397c; [M] fitted on the calibration
tables that docs/accuracy.md names. See ADR 0030.
"""

from __future__ import annotations

from dataclasses import dataclass

US, KIB, MIB, GB = 1e-6, 1024, 1024**2, 1e9


@dataclass(frozen=True, slots=True)
class Library:
    """What the library does the same everywhere [M].

    Attributes:
        nvls_relay: what an in-switch reduction keeps that passes its sums on to a tree.
        node_chunk: what a chunk of a tree inside one node adds, seconds.
        node_tree_ll, node_tree_ll128: what protocols keep of such a tree.
        peer: of each further peer in an all-to-all, whose sends and receives take turns, seconds.
        launched_early: of a collective's start that a plain send or receive does not have, seconds.
        incast: all-to-all: share of the NICs' bandwidth left at each doubling of nodes.
        across: send and receive: what one rank's flow keeps of its NIC.
        net_channel: one channel over the network, a proxy and a queue pair, bytes/s.
        host_gap: between two kernels of one stream, seconds.
        host_serial: share of one process's launches that a loop of calls does not hide.
    """

    nvls_relay: float = 0.9
    node_chunk: float = 2.0 * US
    node_tree_ll: float = 1 / 1.9
    node_tree_ll128: float = 0.85
    peer: float = 1.5 * US
    launched_early: float = 4.37 * US
    incast: float = 0.982
    across: float = 0.939
    net_channel: float = 25 * GB
    host_gap: float = 1.0 * US
    host_serial: float = 0.4


LIBRARY = {"library": Library()}  # one row, so that a fit replaces it as it does the rows of the other tables


def _by_step(**rows: tuple[float, float, float]) -> dict[tuple[str, str], float]:
    """Seconds by algorithm and protocol, of rows of microseconds for LL, LL128 and Simple."""
    protocols = ("ll", "ll128", "simple")
    return {
        (name, protocol): us * US for name, row in rows.items() for protocol, us in zip(protocols, row, strict=True)
    }


# Selection: the library ranks candidates with a formula of its own [N], which is not what they take: start, and steps.
RANK_BASE = _by_step(tree=(6.8, 14.0, 8.4), ring=(6.6, 14.0, 8.4))
RANK_INTRA = _by_step(tree=(0.6, 1.25, 4.0), ring=(0.6, 1.9, 3.4))
RANK_INTER = _by_step(tree=(5.0, 8.5, 14.0), ring=(2.7, 4.0, 14.0))
RANK_NVLS = 25.0 * US
RANK_NVLS_TREE_INTER = 20.9 * US
RANK_OVERHEAD = 1.0 * US  # network overhead that a step inside a node also meets; three times that for Simple
RANK_NET_CHANNEL = 24 * GB  # what one channel carries between nodes
RANK_PLATEAU = 1.4  # rings of several nodes with enough bytes per channel and rank
RANK_LL_TREE = 0.63  # of LL's caps, averages of rings and trees, what is left for trees of more than two nodes [M]
# What trees reach of their bandwidth at 64 B, 128 B, ... by protocol.
RANK_TREE_CORRECTION = {
    "ll": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "ll128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
}
