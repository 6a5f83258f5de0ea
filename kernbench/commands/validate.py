"""``kernbench validate``: how wrong the cost models are, table by table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from kernbench.cost.reference import SHIPPED_MANIFEST
from kernbench.cost.validation import BANDS, Comparison, Score, compare_manifest, score
from kernbench.errors import ConfigError
from kernbench.output_files import replacing, write_file

_GROUPS = ("collective", "gemm", "memory_bound")


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path), required=False)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all scores to a JSON file.")
@click.option("--plot", "plot_directory", type=click.Path(path_type=Path), help="Draw each table into a directory.")
@click.option("--end-to-end", is_flag=True, help="Run training steps that were published, and compare with those.")
@click.option("--only", "names", multiple=True, metavar="TEXT", help="Of the published steps those with this id or source, or "
              "with this in their title; may be repeated.")  # fmt: skip
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Steps to run side by side; by default one per core.")
@click.option("--output", "-o", type=click.Path(file_okay=False, path_type=Path), default="end-to-end", show_default=True,
              help="Directory of their journal: an interrupted call goes on from it.")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Forget what an earlier call has run.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Give a run up after this long."
)
def command(
    manifest: Path | None, json_path: Path | None, plot_directory: Path | None, end_to_end: bool, names: tuple[str, ...],
    jobs: int | None, output: Path, fresh: bool, timeout: float | None,
) -> None:  # fmt: skip
    """Compare the models with measured tables; MANIFEST lists them (without one, the tables that are shipped)."""
    if end_to_end:
        if manifest is not None or plot_directory is not None:
            raise ConfigError("--end-to-end has one table of its own, and no pictures")
        from kernbench.commands.end_to_end import validate_end_to_end

        validate_end_to_end(names, output=output, jobs=jobs, fresh=fresh, timeout=timeout, json_path=json_path)
        return
    if names:
        raise ConfigError("--only is for --end-to-end")
    comparisons = compare_manifest(manifest or SHIPPED_MANIFEST)
    click.echo(report(comparisons))
    if json_path is not None:
        write_file(json_path, json.dumps(as_json(comparisons), indent=2) + "\n")
        click.echo(f"wrote {json_path}")
    if plot_directory is not None:
        for path in draw(comparisons, plot_directory):
            click.echo(f"wrote {path}")


def report(comparisons: list[Comparison]) -> str:
    """The table that the command prints: a line per measured table, then the pooled figures."""
    width = max(18, *(len(item.table.title) for item in comparisons))
    head = f"{'table':{width}}  {'points':>6}  {'median':>7} {'p90':>7} {'signed':>8} {'in 80%':>7}"
    lines = [head + "".join(f"{name:>8}" for name, _ in BANDS), "-" * (len(head) + 8 * len(BANDS))]
    for item in comparisons:
        lines.append(_line(item.table.title + (" *" if item.table.held_out else ""), width + 2, score([item])))
    lines += ["", "pooled"]
    for title, group in groups(comparisons):
        lines.append(_line(title, width + 2, score(group)))
        medians = sorted(score([item]).median for item in group)
        middle = (medians[(len(medians) - 1) // 2] + medians[len(medians) // 2]) / 2
        lines.append(f"{'':{width + 2}} median of the medians of {len(group)} tables: {100 * middle:.1f} %")
    if any(item.table.held_out for item in comparisons):
        lines.append("* held out: not used to set a constant")
    return "\n".join(lines)


def _line(title: str, width: int, result: Score) -> str:
    bands = "".join(f"{100 * result.bands[name]:7.1f}%" if name in result.bands else f"{'-':>8}" for name, _ in BANDS)
    return (
        f"{title:{width}}{result.points:>6}  {100 * result.median:6.1f}% {100 * result.p90:6.1f}% "
        f"{100 * result.signed:+7.1f}% {100 * result.coverage:6.0f}%{bands}"
    )


def groups(comparisons: list[Comparison]) -> list[tuple[str, list[Comparison]]]:
    """The pools of the report that have tables: everything, each kind, and of each kind those held out."""
    pools = [("all", comparisons)]
    for kind in _GROUPS:
        of_kind = [item for item in comparisons if item.table.kind == kind]
        pools.append((kind, of_kind))
        pools.append((f"{kind}, held out", [item for item in of_kind if item.table.held_out]))
    return [(title, group) for title, group in pools if group]


def as_json(comparisons: list[Comparison]) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "tables": [
            {
                "name": item.table.title,
                "kind": item.table.kind,
                "held_out": item.table.held_out,
                **_plain(score([item])),
            }
            for item in comparisons
        ],
        "pooled": {title: _plain(score(group)) for title, group in groups(comparisons)},
    }


def _plain(result: Score) -> dict[str, Any]:
    return {
        "points": result.points,
        "median_abs_error": result.median,
        "p90_abs_error": result.p90,
        "median_signed_error": result.signed,
        "interval_coverage": result.coverage,
        "median_abs_error_by_size": result.bands,
    }


def draw(comparisons: list[Comparison], directory: Path) -> list[Path]:
    """One picture per table: measured points over the estimate and its interval."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'kernbench[plot]'") from None
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for item in comparisons:
        order = item.size.argsort()
        figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
        size = item.size[order]
        axes.fill_between(size, 1e6 * item.low[order], 1e6 * item.high[order], alpha=0.2, linewidth=0)
        axes.plot(size, 1e6 * item.seconds[order], label="estimate")
        axes.plot(size, 1e6 * item.measured[order], ".", markersize=4, color="black", label="measured")
        axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="microseconds", title=item.table.title)
        axes.legend()
        path = directory / f"{item.table.title.replace('/', '_')}.png"
        with replacing(path) as part:
            figure.savefig(part, dpi=110, format="png")
        pyplot.close(figure)
        paths.append(path)
    return paths
