"""What ``kernbench systems`` prints: the list, and one system with its derived figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kernbench.output_files import write_file
from kernbench.topology import Topology, added_systems, resolve_topology, shipped_systems
from kernbench.topology.drawing import draw_system
from kernbench.topology.report import Section, as_data, joined_text, report, size_text
from kernbench.topology.units import BANDWIDTH

_PIPED_WIDTH = 160  # columns when the output is no terminal, so that nothing is cut or wrapped


def show_system(system: str, nodes: int | None, fabric: str | None, svg: Path | None, as_json: bool) -> None:
    """Describe one, and draw it. The arguments are the command's."""
    handle = resolve_topology(system, nodes=nodes, fabric=fabric)
    topology = handle.topology_obj
    if svg is not None:
        write_file(svg, draw_system(topology))
    if as_json:
        click.echo(json.dumps({**as_data(topology), "path": str(handle.path)}, indent=2))
        return
    title = Text.assemble((handle.name, "bold"), "  ", topology.system.description)
    _print(title, Text(str(handle.path), "dim"), *_sections(list(report(topology))))
    if svg is not None:
        _print(f"\ndrawn into {svg}")


def list_systems(as_json: bool) -> None:
    """A line for each."""
    topologies = [resolve_topology(name).topology_obj for name in (*shipped_systems(), *added_systems())]
    if as_json:
        click.echo(json.dumps([_summary(topology) for topology in topologies], indent=2))
        return
    table = _table("system", "device", "SIPs", "joined", "link", "HBM", "", "fabric")
    table.columns[2].justify = "right"
    for topology in topologies:
        system, device = topology.system, topology.device
        link = system.sips.link
        table.add_row(
            system.name,
            device.name,
            str(system.sips.count) if topology.nodes == 1 else f"{topology.nodes} x {system.sips.count}",
            joined_text(topology),
            BANDWIDTH.format(link.payload_bandwidth, digits=3) if link else "",
            size_text(device.hbm.size),
            BANDWIDTH.format(device.hbm.bandwidth, digits=3),
            system.fabric.name if system.fabric else "",
        )
    _print(table)


def _summary(topology: Topology) -> dict[str, object]:
    """One line of the list as plain data, SI units."""
    system, device = topology.system, topology.device
    return {
        "name": system.name,
        "description": system.description,
        "device": device.name,
        "nodes": topology.nodes,
        "sips_per_node": system.sips.count,
        "topology": system.sips.topology,
        "link_bandwidth": system.sips.link.payload_bandwidth if system.sips.link else None,
        "hbm_size": device.hbm.size,
        "hbm_bandwidth": device.hbm.bandwidth,
        "fabric": system.fabric.name if system.fabric else None,
    }


def _sections(sections: list[Section]) -> Iterator[RenderableType]:
    """Each section as a heading and a table; the columns of all tables line up."""
    rows = [row for section in sections for row in section.rows]
    labels, values = (max(len(row[at]) for row in rows) for at in (0, 1))
    for section in sections:
        yield Text.assemble("\n", (section.title, "bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(min_width=labels + 2, no_wrap=True)
        table.add_column(min_width=values, no_wrap=True)
        table.add_column(style="dim")
        for label, value, remark in section.rows:
            table.add_row(f"  {label}", value, remark)
        yield table


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _print(*parts: RenderableType) -> None:
    """Print for people; into a pipe or a file without colours, cuts and trailing blanks."""
    console = Console(highlight=False, markup=False)
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    console = Console(width=_PIPED_WIDTH, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))
