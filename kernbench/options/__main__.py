"""``python -m kernbench.options``: every option of a run, for docs/options.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from kernbench.options import Option, RunOptions, SimulateOptions, options_of


def surfaces(row: Option, argument: Option | None) -> str:
    """Where an option can be said, and its default there."""
    said = []
    if row.flags:
        value = "" if row.is_switch else f" {row.metavar or '|'.join(row.kind.choices) or 'N'}"
        said.append(f"{', '.join(row.flags)}{value}")
    if argument is not None:
        said.append(f"{argument.name}={argument.default!r}")
    return "   ".join([*said, *([row.variable] if row.variable else [])])


def lines() -> Iterator[str]:
    """Of the page: an option and, below it, what it is."""
    arguments = {row.name: row for row in options_of(SimulateOptions)}
    for row in options_of(RunOptions):
        argument = arguments.get(row.name)
        yield surfaces(row, argument)
        kind = "" if argument is None or row.is_switch else f" Takes {argument.kind.takes}."
        default = f" Default: {row.shown}." if row.shown else ""
        yield from textwrap.wrap(row.about + kind + default, 120, initial_indent="    ", subsequent_indent="    ")


if __name__ == "__main__":
    print("\n".join(lines()))
