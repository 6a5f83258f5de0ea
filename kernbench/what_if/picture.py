"""Throughput against memory, or of a serving engine against its latency: a point per run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernbench.output_files import replacing
from kernbench.plurals import counted
from kernbench.sweep.table import Row
from kernbench.what_if.question import GPUS, SYSTEM

_NAMED = 10
"""Points that have their settings beside them: the best ones."""

GIB = 2**30


def draw(path: Path, rows: Sequence[Row], settings: Sequence[str], unit: str, title: str) -> bool:
    """Draw the runs that made steps as SVG; those out of memory as crosses. False without any, or without matplotlib.

    Where all of them served requests, throughput is drawn against the median TPOT, a line for each system and number of GPUs.

    Args:
        path: of the file.
        rows: best first.
        settings: names that a point is labelled with.
        unit: of throughput.
        title: of the picture.
    """
    shown = [row for row in rows if row.get("throughput_per_gpu")]
    try:
        import matplotlib
    except ImportError:
        return False
    if not shown:
        return False
    from matplotlib.figure import Figure

    told = [name for name in settings if len({row[name] for row in shown}) > 1]  # the others are the same for all
    with matplotlib.rc_context({"svg.hashsalt": "kernbench", "text.parse_math": False}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        if all(row.get("tpot_p50") for row in shown):
            _draw_latencies(axes, shown, told)
        else:
            _draw_memory(axes, shown, told)
        axes.set(ylabel=f"{unit} per GPU", title=title)
        axes.set_ylim(0, 1.1 * max(row["throughput_per_gpu"] for row in shown))
        axes.grid(alpha=0.3)
        axes.legend()
        with replacing(path) as part:
            figure.savefig(part, format="svg", metadata={"Date": None})
    return True


def _draw_memory(axes: Any, shown: Sequence[Row], told: Sequence[str]) -> None:
    """A point per run over what the fullest device must have."""
    several = len({row[GPUS] for row in shown}) > 1
    for number, system in enumerate(dict.fromkeys(row[SYSTEM] for row in shown)):
        color = f"C{number}"
        for fits, marker in ((True, "o"), (False, "x")):
            mine = [row for row in shown if row[SYSTEM] == system and bool(row["fits"]) is fits]
            if mine:
                axes.scatter(
                    [row["device_bytes"] / GIB for row in mine], [row["throughput_per_gpu"] for row in mine], c=color,
                    marker=marker, label=system if fits else f"{system}, out of memory",
                )  # fmt: skip
        capacity = next(row["capacity_bytes"] for row in shown if row[SYSTEM] == system) / GIB
        axes.axvline(capacity, color=color, linestyle="--", linewidth=1, alpha=0.6)
    for row in shown[:_NAMED]:
        parts = [f"{name}={row[name]}" for name in told] + ([counted(row[GPUS], "GPU")] if several else [])
        axes.annotate(
            " ".join(parts), (row["device_bytes"] / GIB, row["throughput_per_gpu"]), fontsize=7, xytext=(4, 4),
            textcoords="offset points",
        )  # fmt: skip
    axes.set_xlabel("memory that the fullest GPU must have (GiB); dashed: what it has")
    axes.set_xlim(0, 1.1 * max(max(row["device_bytes"], row["capacity_bytes"]) for row in shown) / GIB)


def _draw_latencies(axes: Any, shown: Sequence[Row], told: Sequence[str]) -> None:
    """A point per run over its median TPOT; those of one system and number of GPUs are a line."""
    systems, sizes = (list(dict.fromkeys(row[name] for row in shown)) for name in (SYSTEM, GPUS))
    lines = itertools.groupby(sorted(shown, key=_of_line), _of_line)
    for (gpus, system), rows in lines:
        points = [(row["tpot_p50"] * 1e3, row["throughput_per_gpu"], row) for row in rows]
        points.sort(key=lambda point: point[:2])
        style = ("-", "--", ":", "-.")[sorted(sizes).index(gpus) % 4]
        axes.plot(
            [x for x, _, _ in points], [y for _, y, _ in points], style, marker="o", color=f"C{systems.index(system)}",
            label=f"{system}, {counted(gpus, 'GPU')}",
        )  # fmt: skip
        for x, y, row in points:
            said = " ".join(f"{name}={row[name]}" for name in told)
            axes.annotate(said, (x, y), fontsize=7, xytext=(4, 4), textcoords="offset points")
    axes.set_xlabel("median time per output token, TPOT (ms)")
    axes.set_xlim(0, 1.1 * max(row["tpot_p50"] for row in shown) * 1e3)


def _of_line(row: Row) -> tuple[int, str]:
    return row[GPUS], row[SYSTEM]
