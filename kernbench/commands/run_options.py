"""Options of the command line, made from the table of :mod:`kernbench.options`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from kernbench.commands.torchrun_options import Nodes, RanksPerNode
from kernbench.names import SYSTEM
from kernbench.options import Option, RunOptions, kinds, options_of

F = TypeVar("F", bound=Callable[..., Any])

LIVE = "kernbench.commands.live"
"""In the context of a command: the :class:`~kernbench.html_report.server.ReportServer` that shows its run while it lasts."""


def _limits(ctx: click.Context, _: click.Parameter, value: str | None) -> Mapping[str, float] | None:
    if value is None or ctx.resilient_parsing:
        return None
    from kernbench.trace.serving_figures import limits_of

    return limits_of(value)


def _report(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    if value is not None and not ctx.resilient_parsing:
        from kernbench.html_report import check_report_path

        check_report_path(value)  # before anything runs
    return value


def _paces(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> Mapping[int, float] | None:
    pairs = []
    for each in value:
        rank, _, factor = each.partition(":")
        try:
            pairs.append((int(rank), float(factor)))
        except ValueError:
            raise click.BadParameter(f"{each!r}: expected a rank and a factor, such as 3:1.2", ctx, param) from None
    for number, times in Counter(number for number, _ in pairs).items():
        if times > 1:
            raise click.BadParameter(f"rank {number} has {times} factors; give one", ctx, param)
    return dict(pairs) or None


_TYPES: Mapping[object, Any] = {
    kinds.COUNT: click.IntRange(min=1), kinds.SEED: int, kinds.SHARE: float, kinds.SYSTEM: SYSTEM,
    kinds.SECONDS: click.FloatRange(min=0, min_open=True), "nodes": Nodes(), "nproc_per_node": RanksPerNode(),
}  # fmt: skip
"""By name, else by kind."""

_CHECKED = {"stragglers": _paces, "goodput": _limits, "report_file": _report}


def run_options(*names: str) -> Callable[[F], F]:
    """Decorate a command: it gets the options of ``kernbench run``, or those of these ``names``, each by its name."""
    rows = [row for row in options_of(RunOptions) if row.flags and (not names or row.name in names)]
    rows.sort(key=lambda row: row.name != "nproc_per_node")  # torchrun's first one

    def decorate(command: F) -> F:
        for row in reversed(rows):
            command = _click_option(row)(command)
        return command

    return decorate


def _click_option(row: Option) -> Callable[[F], F]:
    known: dict[str, Any] = {"help": row.about, "default": row.default, "envvar": row.variable, "multiple": row.many}
    if row.is_switch:
        known["is_flag"] = True
    else:
        chosen = click.Choice(row.kind.choices) if row.kind.choices else _TYPES.get(row.kind, str)
        known |= {"type": _TYPES.get(row.name, chosen), "metavar": row.metavar}
        known["show_default"] = row.default not in (None, (), "device")
    if row.shown is not None:
        known["help"] += f"  [default: {row.shown}]"
    if row.alone is not None:
        known |= {"is_flag": False, "flag_value": row.alone}
    return click.option(*row.flags, row.name, callback=_CHECKED.get(row.name), **known)
