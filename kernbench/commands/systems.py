"""``kernbench systems``: list the shipped systems, show one with its derived figures, draw it."""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.names import FABRIC, SYSTEM
from kernbench.plugins.command import PluginCommand, PluginGroup


@click.group(name="systems", cls=PluginGroup, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the systems, shipped ones and those of plugins; `show` prints one with its derived figures and draws it."""
    if ctx.invoked_subcommand is None:
        from kernbench.commands.systems_tables import list_systems

        list_systems(as_json)


@command.command(cls=PluginCommand)
@click.argument("system", type=SYSTEM, metavar="SYSTEM")
@click.option("--nodes", type=click.IntRange(min=1), help="Repeat the node this often.")
@click.option("--fabric", type=FABRIC, metavar="NAME|FILE", help="Join the nodes by this shipped fabric or YAML file.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw the system into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (SI units) instead of tables.")
def show(system: str, nodes: int | None, fabric: str | None, svg: Path | None, as_json: bool) -> None:
    """Describe SYSTEM (a name of the list, or the path of a YAML file) with its derived figures."""
    from kernbench.commands.systems_tables import show_system

    show_system(system, nodes, fabric, svg, as_json)
