"""A picture of a system: nodes with their SIPs and links, the fabric between them, and the inside of one SIP.

The picture shows structure; where many equal parts would only make it dense (72 GPUs on a switch, 512 nodes) it shows
some and says how many there are. Figures are payload bandwidths of one direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernbench.plurals import counted
from kernbench.topology.cubes import CubeMesh
from kernbench.topology.graph import Topology
from kernbench.topology.links import Link
from kernbench.topology.report import joined_text, size_text
from kernbench.topology.svg import Canvas, Point
from kernbench.topology.system import GRID_TOPOLOGIES
from kernbench.topology.units import BANDWIDTH, DURATION

_SIP_W, _SIP_H = 62.0, 38.0
_GAP = 22.0
_PAD = 26.0
_DRAWN_NODES = 3
_SWITCH_COLUMNS = 12


@dataclass(frozen=True)
class _Places:
    """Centres of a node's SIPs, relative to the node's inner corner, and the room that they take."""

    centres: list[Point]
    width: float
    height: float


def draw_system(topology: Topology) -> str:
    """The SVG document of a topology. The same topology gives the same text."""
    canvas = Canvas()
    layout = _layout(topology)
    drawn = _drawn_nodes(topology.nodes)
    node_w = max(layout.width, _nic_width(topology), 200) + 2 * _PAD
    top = 92.0
    bottoms = [
        _draw_node(canvas, topology, layout, node, _PAD + slot * (node_w + 2 * _PAD), top, node_w)
        for slot, node in enumerate(drawn)
    ]
    right, bottom = _PAD + len(drawn) * (node_w + 2 * _PAD) - 2 * _PAD, max(bottoms)
    if len(drawn) < topology.nodes:
        gap = _PAD + (len(drawn) - 1) * (node_w + 2 * _PAD) - _PAD
        canvas.text("title", gap, (top + bottom) / 2, "…")
    if topology.nodes > 1:
        bottom = _draw_fabric(canvas, topology, _PAD, right, bottom)
    if topology.cube_mesh is not None:
        inset_right, inset_bottom = _draw_inside(canvas, topology, topology.cube_mesh, right + 2 * _PAD, top)
        right, bottom = inset_right, max(bottom, inset_bottom)
    _draw_title(canvas, topology)
    return canvas.render(
        max(right + _PAD, 620), bottom + _PAD, title=f"{topology.system.name}: {topology.system.description}"
    )


def _draw_title(canvas: Canvas, topology: Topology) -> None:
    system, device = topology.system, topology.device
    nodes = counted(topology.nodes, "node")
    canvas.text("title", _PAD, 38, system.name, anchor="start")
    canvas.text("subtitle", _PAD, 58, system.description, anchor="start")
    hbm = f"{size_text(device.hbm.size)} HBM at {BANDWIDTH.format(device.hbm.bandwidth)}"
    summary = (
        f"{nodes} of {system.sips.count} x {device.name}, {joined_text(topology)}; {device.pes} PEs and {hbm} per SIP"
    )
    canvas.text("subtitle", _PAD, 76, summary, anchor="start")


def _drawn_nodes(nodes: int) -> list[int]:
    """Which nodes to draw: all of a few, else the first ones and the last."""
    return list(range(nodes)) if nodes <= _DRAWN_NODES else [*range(_DRAWN_NODES - 1), nodes - 1]


def _layout(topology: Topology) -> _Places:
    sips = topology.system.sips
    if sips.topology in GRID_TOPOLOGIES:
        return _rows(sips.count, sips.w or 1, gap=_GAP * 1.8, margin=_GAP * 1.4)
    if sips.topology == "switch":
        return _rows(sips.count, min(sips.count, _SWITCH_COLUMNS), gap=_GAP * 0.6, margin=_GAP * 0.4)
    return _circle(sips.count)


def _rows(count: int, columns: int, *, gap: float, margin: float) -> _Places:
    rows = -(-count // columns)
    step_x, step_y = _SIP_W + gap, _SIP_H + gap
    centres = [
        (margin + _SIP_W / 2 + at % columns * step_x, margin + _SIP_H / 2 + at // columns * step_y)
        for at in range(count)
    ]
    return _Places(centres, columns * step_x - gap + 2 * margin, rows * step_y - gap + 2 * margin)


def _circle(count: int) -> _Places:
    """SIPs on a circle, number 0 on top, clockwise."""
    radius = 0.0 if count == 1 else max(90.0, count * (_SIP_W + _GAP) / (2 * math.pi))
    width, height = 2 * radius + _SIP_W, 2 * radius + _SIP_H
    turns = [2 * math.pi * at / count - math.pi / 2 for at in range(count)]
    centres = [(width / 2 + radius * math.cos(turn), height / 2 + radius * math.sin(turn)) for turn in turns]
    return _Places(centres, width, height)


def _draw_node(
    canvas: Canvas, topology: Topology, layout: _Places, node: int, x: float, top: float, width: float
) -> float:
    """One node; returns its lower edge."""
    sips, device = topology.sips_of(node), topology.device
    left = x + (width - layout.width) / 2
    head = top + 70
    centres = [(left + cx, head + cy) for cx, cy in layout.centres]
    inside = Canvas()
    bottom = head + layout.height
    if topology.system.sips.topology == "switch":
        bottom = _draw_switch(inside, topology, node, centres, x + _PAD, width - 2 * _PAD, bottom)
    else:
        _draw_joints(inside, topology, node, centres)
    for sip, (cx, cy) in zip(sips, centres, strict=True):
        inside.box("sip", cx - _SIP_W / 2, cy - _SIP_H / 2, _SIP_W, _SIP_H, title=f"SIP {sip}: {device.pes} PEs")
        inside.text("name", cx, cy - 1, f"SIP {sip}")
        inside.text("small", cx, cy + 12, device.name)
    if topology.nodes > 1:
        bottom = _draw_nics(inside, topology, node, x, width, bottom)
    bottom += _PAD
    canvas.box("frame", x, top, width, bottom - top, radius=12)
    canvas.text("heading", x + 16, top + 24, f"node {node}", anchor="start")
    if joints := _links_of(topology, node, "sip"):
        canvas.text("small", x + width - 16, top + 24, f"links {_figures(joints[0])}", anchor="end")
    link = device.host_link
    canvas.box("host", x + width / 2 - 95, top + 34, 190, 20, radius=4)
    canvas.text("small", x + width / 2, top + 48, f"host, {BANDWIDTH.format(link.bandwidth)} to each SIP")
    canvas.shapes += inside.shapes
    return bottom


def _draw_joints(canvas: Canvas, topology: Topology, node: int, centres: list[Point]) -> None:
    """Links from SIP to SIP; both directions are one line. Those that wrap around a torus bend outwards, dashed."""
    first = topology.sips_of(node)[0]
    sips = topology.system.sips
    for link in _links_of(topology, node, "sip"):
        a, b = (int(end.removesuffix(".io").removeprefix("sip")) - first for end in (link.src, link.dst))
        if a > b:
            continue
        text = topology.describe_link(link.index)
        (ax, ay), (bx, by) = centres[a], centres[b]
        if sips.topology in GRID_TOPOLOGIES and _wraps(a, b, sips.w or 1):
            bend = -_SIP_H * 1.7 if ay == by else _SIP_W * 1.5
            control = ((ax + bx) / 2, ay + bend) if ay == by else (ax + bend, (ay + by) / 2)
            canvas.arc("wrap", (ax, ay), control, (bx, by), title=text)
            continue
        canvas.line("link", [(ax, ay), (bx, by)], title=text)


def _wraps(a: int, b: int, w: int) -> bool:
    """Whether grid points ``a`` < ``b`` are neighbours around the edge only."""
    return b - a not in (1, w) or (b - a == 1 and b % w == 0)


def _draw_switch(
    canvas: Canvas, topology: Topology, node: int, centres: list[Point], x: float, width: float, bottom: float
) -> float:
    """The switch as a bar below the SIPs, a line from each SIP; returns the bar's lower edge."""
    switch = topology.system.sips.switch
    bar = bottom + 52
    port = next(link for link in _links_of(topology, node, "sip"))
    one_row = len({cy for _, cy in centres}) == 1
    for cx, cy in centres:
        trunk = cx + _SIP_W / 2 + _GAP * 0.3  # beside the column, so that no line runs through another SIP
        way = [(cx, cy), (cx, bar)] if one_row else [(cx, cy), (trunk, cy), (trunk, bar)]
        canvas.line("link", way, title=f"{port.name}: {_figures(port)}")
    canvas.box("switch", x, bar, width, 30)
    words = f"{switch.count} switch chips" if switch and switch.count > 1 else "switch"
    capacity = "non-blocking" if switch is None or switch.bandwidth is None else BANDWIDTH.format(switch.bandwidth)
    reduction = ", reduces in flight" if topology.system.sips.reduces_in_switch else ""
    canvas.text("name", x + width / 2, bar + 19, f"{words}, {capacity}{reduction}")
    return bar + 30


def _nic_width(topology: Topology) -> float:
    return 0.0 if topology.nodes == 1 else min(topology.rails, 16) * 40.0


def _draw_nics(canvas: Canvas, topology: Topology, node: int, x: float, width: float, bottom: float) -> float:
    """NICs in a row at the node's lower edge; returns that edge."""
    rails, per_node = topology.rails, topology.sips_per_node
    shown = min(rails, 16)
    top = bottom + 34
    share = "" if rails == per_node else f", each for {per_node // rails} SIPs"
    canvas.text("small", x + width / 2, top - 8, f"{rails} NICs, rail-aligned{share}")
    left = x + (width - shown * 40.0) / 2
    for at in range(shown):
        hidden = rails > shown and at == shown - 2
        number = at if at < shown - 2 or rails == shown else rails - (shown - at)
        canvas.box("nic", left + at * 40 + 3, top, 34, 22, radius=4)
        canvas.text("small", left + at * 40 + 20, top + 15, "…" if hidden else f"nic{node * rails + number}")
    return top + 22


def _draw_fabric(canvas: Canvas, topology: Topology, left: float, right: float, bottom: float) -> float:
    """The fabric as a bar below all nodes; returns its lower edge."""
    fabric = topology.system.fabric
    assert fabric is not None  # nodes > 1 has one
    bar = bottom + 46
    nodes = _drawn_nodes(topology.nodes)
    node_w = (right - left - (len(nodes) - 1) * 2 * _PAD) / len(nodes)
    shown = min(topology.rails, 16)
    nic = next(link for link in _links_of(topology, 0, "nic"))
    for slot in range(len(nodes)):
        x = left + slot * (node_w + 2 * _PAD) + (node_w - shown * 40.0) / 2
        for at in range(shown):
            canvas.line("rail", [(x + at * 40 + 20, bottom - _PAD), (x + at * 40 + 20, bar)], title=nic.name)
    canvas.box("fabric", left, bar, right - left, 34)
    text = (
        f"{fabric.name}: {BANDWIDTH.format(nic.bandwidth)} per NIC, {DURATION.format(fabric.latency)} from NIC to NIC"
    )
    canvas.text("name", (left + right) / 2, bar + 21, text)
    return bar + 34


def _draw_inside(canvas: Canvas, topology: Topology, mesh: CubeMesh, x: float, top: float) -> tuple[float, float]:
    """The inside of one SIP: cubes, die-to-die links, the IO die; returns the right and lower edges."""
    cubes, side, gap = mesh.spec, 52.0, 20.0
    width = max(cubes.w * (side + gap) - gap, 250) + 2 * _PAD
    left = x + (width - (cubes.w * (side + gap) - gap)) / 2
    first_row = top + 100
    centres = [
        (left + side / 2 + cube % cubes.w * (side + gap), first_row + side / 2 + cube // cubes.w * (side + gap))
        for cube in range(cubes.count)
    ]
    bottom = first_row + cubes.h * (side + gap) - gap
    lines = [
        f"cube: {cubes.pes} PEs, {size_text(cubes.sram.size)} SRAM at {BANDWIDTH.format(cubes.sram.bandwidth)}",
        f"PE: {size_text(topology.device.pe.tcm.size)} TCM at {BANDWIDTH.format(topology.device.pe.tcm.bandwidth)}",
        f"die to die: {BANDWIDTH.format(cubes.die_to_die.bandwidth)}, {DURATION.format(cubes.die_to_die.latency)}",
        f"PE to IO die: {DURATION.format(mesh.egress_latency)} on average",
    ]
    lower = bottom + 16 + 16 * len(lines) + 10
    canvas.box("frame", x, top, width, lower - top, radius=12)
    canvas.text("heading", x + 16, top + 24, "inside a SIP", anchor="start")
    for link in mesh.links:
        if link.src.startswith("cube") and link.dst.startswith("cube"):
            ends = [centres[int(end.removeprefix("cube"))] for end in (link.src, link.dst)]
            canvas.line("link", ends, title=f"{link.name}: {BANDWIDTH.format(link.bandwidth)}")
    io_x = centres[mesh.io_cube][0]
    canvas.line("link", [(io_x, top + 62), (io_x, centres[mesh.io_cube][1])], title="IO die")
    io_left = min(max(io_x - 75, x + 12), x + width - 162)
    canvas.box("io", io_left, top + 38, 150, 26, radius=4)
    canvas.text("small", io_left + 75, top + 55, f"IO die, {BANDWIDTH.format(cubes.io_die.bandwidth)}")
    for cube, (cx, cy) in enumerate(centres):
        canvas.box("die", cx - side / 2, cy - side / 2, side, side, title=f"cube {cube}: {cubes.pes} PEs")
        canvas.text("name", cx, cy, f"{cube}")
        canvas.text("small", cx, cy + 14, f"{cubes.pes} PEs")
    for at, line in enumerate(lines):
        canvas.text("small", x + 16, bottom + 26 + 16 * at, line, anchor="start")
    return x + width, lower


def _links_of(topology: Topology, node: int, kind: str) -> list[Link]:
    """The links of one kind of one node."""
    stride = len(topology.node_links)
    return [topology.links[node * stride + at] for at, link in enumerate(topology.node_links) if link.kind == kind]


def _figures(link: Link) -> str:
    return f"{BANDWIDTH.format(link.bandwidth)} each way, {DURATION.format(link.latency)}"
