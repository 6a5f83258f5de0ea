"""``kernbench validate --end-to-end``: published training steps beside what is modelled of them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kernbench.commands.points_bar import points_bar
from kernbench.input_files import exists
from kernbench.validation.end_to_end.parallel_report import parallel_report
from kernbench.validation.end_to_end.published import published, published_parallel, selected
from kernbench.validation.end_to_end.report import report
from kernbench.validation.end_to_end.results import merged, read_results, result_of, write_results
from kernbench.validation.end_to_end.runs import run_rows


def validate_end_to_end(
    names: tuple[str, ...],
    *,
    parallel: bool,
    output: Path,
    scheduler: str | None,
    jobs: int | None,
    fresh: bool,
    timeout: float | None,
    json_path: Path | None,
) -> None:
    """Run the rows that ``names`` select, of one table or the ``parallel`` one, and print how they compare.

    A file ``json_path`` gets these rows; others that it has stay in it.
    """
    rows = selected(names, parallel=parallel)
    with points_bar("rows") as advance:
        found = run_rows(
            rows, output=output, scheduler=scheduler, jobs=jobs or 0, fresh=fresh, timeout=timeout, progress=advance
        )
    results = [result_of(row, found[row.id]) for row in rows]
    click.echo((parallel_report if parallel else report)(results))
    if json_path is not None:
        kept = read_results(json_path, published_parallel() if parallel else published()) if exists(json_path) else []
        write_results(json_path, merged(kept, results))
        click.echo(f"wrote {json_path}")
    sys.exit(0 if any(result.seconds is not None for result in results) else 1)
