"""What ``kernbench calibrate`` does once its arguments are known: it fits, prints the fit and writes the system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from kernbench.input_files import resolved
from kernbench.output_files import write_file
from kernbench.plurals import counted
from kernbench.validation.calibration import calibrate, measure_log, measure_manifest, system_document
from kernbench.validation.comparisons import Comparison

BAD_FIT = 0.2
"""Median error beyond which a fit is called bad: several times what the shipped systems have."""

MOST_SIZES = 24
"""Rows of the table of one measurement."""


def fit(source: Path, system: str, out: Path, collective: str | None, ranks: int | None, nodes: int | None) -> None:
    """Fit, print what has come of it, write the system. The arguments are the command's."""
    if source.suffix in (".yaml", ".yml"):
        tables = measure_manifest(source)
    else:
        tables = measure_log(source, collective=collective, ranks=ranks, nodes=nodes)
    result = calibrate(system, tables, name=out.stem)
    for parameter, (before, after) in result.values.items():
        click.echo(f"{parameter.name:32} {before:12.4g} -> {after:.4g}")
    for title, state in (("before", result.before), ("after", result.after)):
        click.echo(
            f"{title:7} {counted(state.points, 'point')}: median error {100 * state.median:.1f} %, "
            f"p90 {100 * state.p90:.1f} %, signed {100 * state.signed:+.1f} %"
        )
    for lines in result.tables:
        for line in by_size(*lines):
            click.echo(line)
    write_file(out, system_document(base_of(system), result))
    click.echo(f"wrote {out}")
    if result.after.median > BAD_FIT:
        click.echo(
            f"warning: the fit is bad: half of the points are more than {100 * result.after.median:.0f} % off, a tenth more "
            f"than {100 * result.after.p90:.0f} %. {system} with other figures is not what was measured: start from a system "
            "of the same devices, links and fabric, and see above at which sizes it is off",
            err=True,
        )


def base_of(system: str) -> str:
    """What a file that extends ``system`` calls it, wherever that file is."""
    return str(resolved(system)) if Path(system).suffix in (".yaml", ".yml") else system


def by_size(before: Comparison, after: Comparison) -> Iterator[str]:
    """Microseconds of one table, measured and modelled before and after the fit, by size; of a long one some sizes."""
    sizes = np.unique(before.size)
    if sizes.size > MOST_SIZES:
        sizes = sizes[np.unique(np.linspace(0, sizes.size - 1, MOST_SIZES).round().astype(int))]
    yield f"{before.table.name or before.table.file}, us"
    yield f"{'bytes':>14} {'measured':>12} {'before':>12} {'error':>8} {'after':>12} {'error':>8}"
    for size in sizes:
        at = before.size == size
        measured, first, last = (
            float(np.median(each[at])) for each in (before.measured, before.seconds, after.seconds)
        )
        yield (
            f"{size:>14,.0f} {measured * 1e6:>12.2f} {first * 1e6:>12.2f} {first / measured - 1:>+8.1%} "
            f"{last * 1e6:>12.2f} {last / measured - 1:>+8.1%}"
        )
