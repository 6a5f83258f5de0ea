"""A system in words: titled sections of label and value, for terminals and pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import NamedTuple

from kernbench.plurals import counted
from kernbench.topology.figures import SystemFigures, system_figures
from kernbench.topology.graph import Topology
from kernbench.topology.system import GRID_TOPOLOGIES
from kernbench.topology.units import BANDWIDTH, DURATION, FREQUENCY, RATE, SIZE


class Section(NamedTuple):
    """A heading and its rows: what, how much, and a remark (often empty)."""

    title: str
    rows: list[tuple[str, str, str]]


def size_text(value: float) -> str:
    """Bytes in the binary prefix that fits, as memory is everywhere else: ``"79.1 GiB"``."""
    unit = next((unit for unit in ("TiB", "GiB", "MiB", "KiB") if value >= float(SIZE.factors[unit])), "B")
    return f"{value / float(SIZE.factors[unit]):.4g} {unit}"


def joined_text(topology: Topology) -> str:
    """How the SIPs of a node are joined, in a word or two: ``ring_1d``, ``torus_2d 4x2``, ``switch``."""
    sips = topology.system.sips
    return f"{sips.topology} {sips.w}x{sips.h}" if sips.topology in GRID_TOPOLOGIES else sips.topology


def report(topology: Topology) -> Iterator[Section]:
    """The sections of ``kernbench systems show``."""
    figures = system_figures(topology)
    yield Section("Node", list(_node(topology)))
    if topology.nodes > 1:
        yield Section("Between nodes", list(_fabric(topology)))
    yield Section(f"SIP: {topology.device.description or topology.device.name}", list(_device(topology)))
    yield Section("Memories", list(_memories(topology)))
    yield Section("Peak rates per SIP", list(_rates(topology)))
    yield Section("Queues between PEs (IPCQ)", list(_queues(topology)))
    yield Section("Derived", list(_derived(topology, figures)))


def as_data(topology: Topology) -> dict[str, object]:
    """The same as plain data for JSON: the whole description in SI units, and the derived figures."""
    return {
        "name": topology.system.name,
        "nodes": topology.nodes,
        "links": len(topology.links),
        "figures": asdict(system_figures(topology)),
        "system": topology.system.model_dump(),
    }


Rows = Iterator[tuple[str, str, str]]


def _node(topology: Topology) -> Rows:
    sips = topology.system.sips
    yield "nodes", str(topology.nodes), ""
    yield "SIPs per node", str(sips.count), topology.device.name
    yield "joined by", joined_text(topology), ""
    if sips.link is not None:
        raw = BANDWIDTH.format(sips.link.bandwidth)
        lanes = f"{sips.link.lanes} x {raw}" if sips.link.lanes > 1 else raw
        payload = "" if sips.link.efficiency == 1 else f", {sips.link.efficiency:.4g} of it payload"
        yield "link", BANDWIDTH.format(sips.link.payload_bandwidth), f"each direction; {lanes}{payload}"
        yield "link latency", DURATION.format(sips.link.latency), "one hop"
    if sips.topology == "switch" and sips.switch is not None:
        blocking = "non-blocking" if sips.switch.bandwidth is None else BANDWIDTH.format(sips.switch.bandwidth)
        reduction = ", reduces in flight" if sips.switch.reduction else ""
        yield "switches", str(sips.switch.count), f"{DURATION.format(sips.switch.latency)}, {blocking}{reduction}"


def _fabric(topology: Topology) -> Rows:
    fabric, nics = topology.system.fabric, topology.system.nics
    assert fabric is not None  # a topology of several nodes has both
    assert nics is not None
    yield "fabric", fabric.name, fabric.description
    yield "NICs per node", str(nics.count), "rail-aligned: by local index"
    payload = fabric.payload_bandwidth(topology.nodes)
    losses = f"{BANDWIDTH.format(fabric.bandwidth)} less {fabric.protocol_overhead:.3g} protocol"
    congestion = f" and {fabric.congestion:.3g} congestion per doubling of nodes" if fabric.congestion else ""
    yield "NIC", BANDWIDTH.format(payload), f"each direction; {losses}{congestion}"
    yield "fabric latency", DURATION.format(fabric.latency), "one way, NIC to NIC"


def _device(topology: Topology) -> Rows:
    device = topology.device
    target = device.target
    yield "PEs", str(device.pes), f"at {FREQUENCY.format(device.clock)}; warps of {target.warp_size}"
    yield "Triton target", f"{target.backend}:{target.arch}", ""
    if device.cubes is not None:
        cubes = device.cubes
        yield (
            "cubes",
            f"{cubes.w} x {cubes.h}",
            f"{cubes.pes} PEs each; network on chip {DURATION.format(cubes.noc.latency)}",
        )
        die, io = cubes.die_to_die, cubes.io_die
        yield "die to die", BANDWIDTH.format(die.bandwidth), f"each direction; {DURATION.format(die.latency)} a hop"
        yield "IO die", BANDWIDTH.format(io.bandwidth), f"at cube ({io.x}, {io.y}); {DURATION.format(io.latency)}"
    yield (
        "launch",
        DURATION.format(device.launch.overhead),
        f"of the host; {DURATION.format(device.launch.latency)} to start",
    )
    link = device.host_link
    yield "host link", BANDWIDTH.format(link.bandwidth), f"each direction; {DURATION.format(link.latency)}"


def _memories(topology: Topology) -> Rows:
    device = topology.device
    pe, hbm = device.pe, device.hbm
    yield "registers per PE", size_text(pe.registers), ""
    tcm = f"{BANDWIDTH.format(pe.tcm.bandwidth)}, {DURATION.format(pe.tcm.latency)}"
    yield "TCM per PE", size_text(pe.tcm.size), f"{tcm}; {size_text(pe.tcm_per_block)} per block"
    named = [("L2", device.l2), ("last-level cache", device.llc)]
    if device.cubes is not None:
        named.append(("SRAM per cube", device.cubes.sram))
    for name, memory in named:
        if memory is not None:
            yield (
                name,
                size_text(memory.size),
                f"{BANDWIDTH.format(memory.bandwidth)}, {DURATION.format(memory.latency)}",
            )
    copies = f"{BANDWIDTH.format(device.hbm_copy_bandwidth)} measured in copies"
    speeds = f"{BANDWIDTH.format(hbm.bandwidth)} ({copies}), {DURATION.format(hbm.latency)}"
    yield "HBM", size_text(hbm.size), f"{speeds}; {hbm.channels} channels"


def _rates(topology: Topology) -> Rows:
    matrix, vector = topology.device.matrix.known(), topology.device.vector.known()
    for dtype in [name for name in type(topology.device.matrix).model_fields if name in matrix or name in vector]:
        cells = [
            f"{unit} {RATE.format(rates[dtype])}" if dtype in rates else ""
            for unit, rates in (("matrix", matrix), ("vector", vector))
        ]
        on_matrix, on_vector = (cell.replace("FLOP", "OP") if dtype.startswith("int") else cell for cell in cells)
        yield dtype, on_matrix, on_vector


def _queues(topology: Topology) -> Rows:
    ipcq = topology.system.ipcq
    yield "queues per direction", str(ipcq.queues), "side by side"
    yield "message overhead", DURATION.format(ipcq.message_overhead), "sender and receiver each"
    yield "credit latency", DURATION.format(ipcq.credit_latency), "beside the links"
    yield "wake-up latency", DURATION.format(ipcq.wakeup_latency), "backpressure `sleep`"
    yield "poll interval", DURATION.format(ipcq.poll_interval), "backpressure `poll`"
    if given := dict(topology.system.ccl):
        yield "ccl.yaml defaults", "", ", ".join(f"{key} {value}" for key, value in given.items())


def _derived(topology: Topology, figures: SystemFigures) -> Rows:
    yield "SIPs", str(figures.sips), f"{figures.pes} PEs, {len(topology.links)} links"
    pins = BANDWIDTH.format(figures.hbm_bandwidth)
    yield "HBM of all SIPs", size_text(figures.hbm_size), f"{pins} at the pins"
    yield "machine balance", f"{figures.machine_balance:.0f} FLOP/B", "bf16 matrix peak over copy bandwidth"
    bandwidths = (
        ("injection per SIP", figures.injection_bandwidth, "least connected SIP, within its node"),
        ("injection per node", figures.node_bandwidth, "all NICs"),
        ("bisection", figures.bisection_bandwidth, "one direction"),
        ("all-reduce busbw, one ring", figures.one_ring_busbw, "bound: slowest hop in rank order"),
        ("all-reduce busbw, all links", figures.ring_busbw, "bound for rings over every link"),
        ("all-reduce busbw, any", figures.allreduce_busbw, "bound without reduction in the switch"),
    )
    yield from ((label, BANDWIDTH.format(value), remark) for label, value, remark in bandwidths if value is not None)
    if figures.nearest_latency is not None and figures.worst_latency is not None:
        yield "nearest SIP", DURATION.format(figures.nearest_latency), "route latency, no bytes"
        yield "farthest SIP", DURATION.format(figures.worst_latency), f"over {counted(figures.most_links or 0, 'link')}"
