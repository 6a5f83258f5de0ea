"""What ``kernbench probe`` does once its arguments are known: it sends the traffic, and prints what must hold."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernbench.sim_engine.probe import Result, probe
from kernbench.topology import Topology, resolve_topology
from kernbench.topology.report import size_text
from kernbench.topology.units import BANDWIDTH, DURATION


def probe_system(system: str, cases: tuple[str, ...], nodes: int | None, as_json: bool) -> None:
    """Probe, print, and exit with 1 if something does not hold. The arguments are the command's."""
    topology = resolve_topology(system, nodes=nodes).topology_obj
    if (
        nodes is None
        and topology.nodes == 1
        and topology.system.fabric is not None
        and topology.system.nics is not None
    ):
        topology = resolve_topology(system, nodes=2).topology_obj
    results = probe(topology, cases=cases)
    if as_json:
        click.echo(json.dumps(_data(topology, results), indent=2))
    else:
        _print(topology, results)
    broken = [text for result in results for text in result.broken]
    for text in broken:
        click.echo(f"broken: {text}", err=True)
    sys.exit(1 if broken else 0)


def _data(topology: Topology, results: list[Result]) -> dict[str, Any]:
    return {
        "system": topology.system.name,
        "nodes": topology.nodes,
        "cases": [
            {
                "name": result.pattern.name,
                "transfers": len(result.pattern.transfers),
                "hops": [
                    {**asdict(hop), "bandwidth": None if hop.bandwidth == float("inf") else hop.bandwidth}
                    for hop in result.pattern.hops
                ],
                "rows": [asdict(row) for row in result.rows],
                "broken": list(result.broken),
            }
            for result in results
        ],
    }


def _print(topology: Topology, results: list[Result]) -> None:
    console = Console(width=110, highlight=False, markup=False)
    nodes = f"{topology.nodes} nodes of " if topology.nodes > 1 else ""
    console.print(f"{nodes}{topology.system.name}", markup=False)
    for result in results:
        pattern = result.pattern
        count = len(pattern.transfers)
        console.print(Text.assemble("\n", (pattern.name, "bold"), f", {count} transfers" if count > 1 else ""))
        for hop in pattern.hops:
            rate = "" if hop.bandwidth == float("inf") else f", {BANDWIDTH.format(hop.bandwidth)}"
            console.print(f"  {hop.name}: {DURATION.format(hop.latency)}{rate}", markup=False)
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for name in ("size", "closed form", "simulated", "per transfer", "busiest link"):
            table.add_column(name, justify="right")
        for row in result.rows:
            rate = BANDWIDTH.format(row.nbytes / row.simulated) if row.simulated else ""
            table.add_row(size_text(row.nbytes), _us(row.closed), _us(row.simulated), rate, f"{row.utilisation:.1%}")
        console.print(table)
    held = sum(not result.broken for result in results)
    console.print(
        f"{held} of {len(results)} patterns hold: more bytes take no less, best <= worst, contention never helps"
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.3f} us"
