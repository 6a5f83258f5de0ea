"""``kernbench ccl``: which algorithms there are, in which order they reduce, and whether a module of one's own is right."""

from __future__ import annotations

import os
import sys

import click

from kernbench.errors import ConfigError
from kernbench.names import ALGORITHM, SYSTEM
from kernbench.plurals import counted

MOST_MEMBERS = 1024
"""An order has a term for each member in each of as many chunks."""


@click.group(name="ccl", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Collective algorithms: list them, show their order of reduction, check one of your own."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # modules beside ccl.yaml, as `python -m` finds them


@command.command(name="list")
@click.option("--system", type=SYSTEM, metavar="NAME|PATH", help="Whose settings.  [default: sip8]")
def list_algorithms(system: str | None) -> None:
    """The entries of ccl.yaml by collective; `*` marks the one that is used."""
    from kernbench.ccl.config import AUTO, load_ccl_config
    from kernbench.ccl.registry import algorithm_module
    from kernbench.collective_kinds import COLLECTIVES
    from kernbench.topology import resolve_topology

    config = load_ccl_config(system=resolve_topology(system).topology_obj.system)
    for collective in COLLECTIVES:
        used = config.algorithm_for(collective)
        click.echo(f"{collective}" + (" (auto: by size, ranks, nodes and system)" if used == AUTO else ""))
        for name, entry in config.algorithms.items():
            module = algorithm_module(entry.module)
            about = (module.__doc__ or "").partition("\n")[0]
            if name != AUTO and collective == str(module.COLLECTIVE):
                click.echo(f"  {'*' if name == used else ' '} {name:<30} {about}".rstrip())


@command.command()
@click.argument("name", type=ALGORITHM, metavar="NAME")
@click.option("--members", type=click.IntRange(1, MOST_MEMBERS), default=4, show_default=True)
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="That they stand on.")
@click.option("--root", type=click.IntRange(min=0), default=0, show_default=True)
def order(name: str, members: int, nodes: int, root: int) -> None:
    """In which order NAME, an entry of ccl.yaml, reduces: per chunk, as member 0 (of a rooted one, the root) ends with it."""
    from kernbench.ccl.config import load_ccl_config
    from kernbench.ccl.expressions import expressions
    from kernbench.ccl.placement import Placement
    from kernbench.ccl.registry import algorithm_module, build_schedule
    from kernbench.collective_kinds import KINDS

    entry = load_ccl_config().select(name)
    where = Placement.flat(members, nodes=min(nodes, members), reduces_in_switch=True)
    schedule = build_schedule(entry.module, members, root, where)
    found = expressions(schedule)
    collective = algorithm_module(entry.module).COLLECTIVE
    kind = KINDS[collective]
    if not kind.reduces:
        raise ConfigError(f"{name} implements {collective}, which reduces nothing")
    for chunk in range(schedule.chunks):
        owner = chunk if kind.gets == "own" else root if kind.root else 0
        click.echo(f"chunk {chunk} of {schedule.chunks}, member {owner}: {found.order(owner, chunk)}")


@command.command()
@click.argument("module")
@click.option(
    "--members", type=click.IntRange(1, MOST_MEMBERS), default=16, show_default=True, help="Check 1 to this many."
)
def check(module: str, members: int) -> None:
    """Whether the schedules of MODULE, a Python module, do what its collective asks: for 1 member, 2, 3, ..."""
    from kernbench.ccl.expressions import check_schedule
    from kernbench.ccl.placement import Placement
    from kernbench.ccl.registry import algorithm_module, build_schedule
    from kernbench.ccl.schedule import CannotServeError
    from kernbench.collective_kinds import KINDS

    found = algorithm_module(module)
    collective = str(found.COLLECTIVE)
    counts = [2] if collective == "send" else range(1, members + 1)
    served = 0
    for count in counts:
        for root in sorted({0, count - 1}) if KINDS[collective].root else [None]:
            try:
                schedule = build_schedule(module, count, root, Placement.flat(count, reduces_in_switch=True))
                check_schedule(schedule, collective, root)
            except CannotServeError as error:
                click.echo(f"{counted(count, 'member')}: cannot serve ({error})")
                break
            except ValueError as error:
                raise ConfigError(str(error)) from None
            served += 1
            steps = f"{counted(len(schedule.rounds) - 1, 'round')}, {counted(len(schedule), 'transfer')}"
            click.echo(f"{counted(count, 'member')}{'' if root is None else f', root {root}'}: {steps}: right")
    if not served:
        raise ConfigError(f"{module} has no schedule for any of these members")
