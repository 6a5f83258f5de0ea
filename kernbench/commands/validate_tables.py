"""What ``kernbench validate`` prints, writes and draws of measured tables."""

from __future__ import annotations

from pathlib import Path

from kernbench.errors import ConfigError
from kernbench.output_files import make_folder, replacing
from kernbench.validation.comparisons import Comparison
from kernbench.validation.scores import BANDS, Score, score

_GROUPS = ("collective", "gemm", "sustained_gemm", "grouped_gemm", "attention", "memory_bound")


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


def as_json(comparisons: list[Comparison]) -> dict[str, object]:
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


def _plain(result: Score) -> dict[str, object]:
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
    make_folder(directory)
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
