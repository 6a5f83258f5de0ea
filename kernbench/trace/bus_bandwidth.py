"""The bandwidth that collectives reached, as nccl-tests counts it, beside what the links allow."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.collective_kinds import KINDS
from kernbench.cost.bus_limits import busbw_limit
from kernbench.sim_engine.engine import GraphEngine


@dataclass(frozen=True, slots=True)
class BusBandwidth:
    """Calls of one collective, by the same members, of the same size.

    Attributes:
        name: of the collective.
        ways: algorithms (with protocols) that ran, by name.
        members, nodes: how many took part, and of how many nodes.
        nbytes: nccl-tests' size: of the whole buffer, also where a member brings a part of it.
        calls: how many ended.
        seconds: of all calls, each from its last member's arrival to its last member's end.
        fastest: seconds of the shortest.
        algbw, busbw: bytes/s over all calls.
        limit: most busbw that the links allow, bytes/s; None: nothing is known.
    """

    name: str
    ways: tuple[str, ...]
    members: int
    nodes: int
    nbytes: int
    calls: int
    seconds: float
    fastest: float
    algbw: float
    busbw: float
    limit: float | None


def bus_bandwidths(engine: GraphEngine) -> list[BusBandwidth]:
    """Of all collectives that have ended and moved anything, the most time first."""
    topology = engine.topology
    calls: dict[tuple[str, tuple[int, ...], int], list[tuple[float, str]]] = {}
    for trace in engine.op_log.collectives:
        detail, run = trace.detail, trace.run
        name, sips = detail["op"], tuple(trace.sips)
        if run.finished and detail["payload"] and not KINDS[name].runs_as and run.last_end > run.last_start:
            # a member brings its own part, of as many
            nbytes = detail["payload"] * (len(sips) if KINDS[name].brings == "own" else 1)
            way = "/".join(str(detail[key]) for key in ("algorithm", "protocol") if detail.get(key))
            calls.setdefault((name, sips, nbytes), []).append((run.last_end - run.last_start, way))
    rows = []
    limits: dict[tuple[str, tuple[int, ...]], float | None] = {}
    for (name, sips, nbytes), ran in calls.items():
        if (name, sips) not in limits:
            limits[name, sips] = busbw_limit(topology, name, sips)
        seconds = sum(took for took, _ in ran)
        algbw = nbytes * len(ran) / seconds
        rows.append(
            BusBandwidth(
                name, tuple(sorted({way for _, way in ran})), len(sips), len(set(map(topology.node_of, sips))), nbytes,
                len(ran), seconds, min(took for took, _ in ran), algbw, algbw * KINDS[name].bus_factor(len(sips)),
                limits[name, sips],
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (-row.seconds, row.name, row.nbytes))
