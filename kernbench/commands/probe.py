"""``kernbench probe``: traffic patterns on a system, closed form beside simulated, and what must hold."""

from __future__ import annotations

import click

from kernbench.names import SYSTEM


@click.command("probe")
@click.argument("system", type=SYSTEM, metavar="SYSTEM")
@click.option("--case", "cases", multiple=True, help="Run this pattern only; may be repeated.")
@click.option(
    "--nodes", type=click.IntRange(min=1), help="Repeat the node this often; default: 2 if there is a fabric."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (SI units) instead of tables.")
def command(system: str, cases: tuple[str, ...], nodes: int | None, as_json: bool) -> None:
    """Send traffic through SYSTEM: host, PE, SIP and node to each other, many to one, all to all; 4 KiB to 64 MiB.

    Each pattern is shown in closed form and simulated, with its hops. The exit code is 1 if something does not hold that must:
    more bytes never take less time, nothing is quicker than the best case, contention never helps.
    """
    from kernbench.commands.probe_tables import probe_system

    probe_system(system, cases, nodes, as_json)
