"""The shape of nccl-tests' output, so that what reads theirs reads ours: the table, and the ``-J`` file."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from kernbench.benches.harness.nccl_rows import Measurement, Plan, Row

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

_MOST_DEVICES = 16
_AVERAGES = {"rank0": "rank 0's", "avg": "mean over ranks", "min": "least of all ranks", "max": "most of all ranks"}
JSON_VERSION = 1


@dataclass(frozen=True)
class Results:
    """All rows of a bench."""

    rows: tuple[Row, ...]

    @property
    def wrong(self) -> int:
        """Wrong elements over all rows and ranks, and one for each measurement that is missing."""
        return sum(1 if m is None else m.wrong or 0 for row in self.rows for m in row.measurements)

    @property
    def ok(self) -> bool:
        """Whether every row was measured and nothing is wrong."""
        return self.wrong == 0

    @property
    def average_busbw(self) -> float:
        """Mean bus bandwidth over all measurements, bytes/s; 0 if there is none."""
        all_busbw = [row.busbw(m) for row in self.rows for m in row.measurements if m is not None]
        return sum(all_busbw) / len(all_busbw) if all_busbw else 0.0

    def __str__(self) -> str:
        return "\n".join([*table_header(), *map(row_line, self.rows), *footer(self)])


def versions() -> dict[str, str]:
    """Versions of what a result may depend on."""
    from kernbench import __version__

    found = {"kernbench": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def parameters(plan: Plan, world_size: int) -> dict[str, int]:
    """The figures of nccl-tests' first line, by the names of its JSON."""
    sizes = sorted({case.nbytes for case in plan.cases})
    return {
        "nthreads": 1,
        "ngpus": world_size,
        "minimum_bytes": sizes[0],
        "maximum_bytes": sizes[-1],
        "warmup_iters": plan.warmup,
        "iterations": plan.iterations,
        "aggregated_iterations": 1,
        "validation": int(plan.check),
        "graph": 0,
    }


def header(ctx: RuntimeContext, name: str, plan: Plan, world_size: int, step: str) -> Iterator[str]:
    """What is measured, on what, with which versions; ``step`` describes the sweep, as ``"4(factor)"``."""
    figures = parameters(plan, world_size)
    topology, algorithm = ctx.topology, ctx.ccl_config.select()
    device = topology.device
    yield f"# {name}: times are virtual, modelled for the system below"
    yield "# " + ", ".join(f"{package} {number}" for package, number in versions().items())
    yield (
        f"# system: {topology.system.name}, {topology.nodes} node{'s' if topology.nodes > 1 else ''} x "
        f"{topology.sips_per_node} SIPs ({topology.system.sips.topology}), device {device.name}"
    )
    yield (
        f"# algorithm: {algorithm.name} ({algorithm.topology}), {algorithm.n_slots} slots x {algorithm.slot_size} B in "
        f"{algorithm.buffer_kind}, backpressure {algorithm.backpressure}"
    )
    yield (
        f"# nThread {figures['nthreads']} nGpus {figures['ngpus']} minBytes {figures['minimum_bytes']} maxBytes "
        f"{figures['maximum_bytes']} step: {step} warmup iters: {figures['warmup_iters']} iters: "
        f"{figures['iterations']} agg iters: 1 validation: {figures['validation']} graph: 0"
    )
    yield f"# time: of the host, with launch and wait, {_AVERAGES[plan.average]} (-a); of the collective alone: ccl_sweep"
    yield "#"
    yield "# Using devices"
    for rank in range(min(world_size, _MOST_DEVICES)):
        sip = ctx.sips[rank]
        node, local = divmod(sip, topology.sips_per_node)
        yield f"#  Rank {rank:2} Group  0 on node {node} device {local:2} {device.description}"
    if world_size > _MOST_DEVICES:
        yield f"#  ... and {world_size - _MOST_DEVICES} more ranks"
    yield "#"


def table_header() -> tuple[str, str, str]:
    """The three lines above the rows."""
    place = ("time", "algbw", "busbw", "#wrong")
    units = ("(us)", "(GB/s)", "(GB/s)", "")
    return (
        f"#{'':53}  {'out-of-place':^29}  {'in-place':^29}".rstrip(),
        _columns("#", "size", "count", "type", "redop", "root", *place, *place),
        _columns("#", "(B)", "(elements)", "", "", "", *units, *units),
    )


def row_line(row: Row) -> str:
    """One row; ``N/A`` for what was not checked, ``-`` for what was not measured."""
    case = row.case
    figures = [cell for measurement in row.measurements for cell in _cells(row, measurement)]
    return _columns(" ", case.nbytes, case.count, case.element.name, case.op, -1, *figures)


def footer(results: Results) -> tuple[str, ...]:
    """The verdict and the average."""
    return (
        f"# Out of bounds values : {results.wrong} {'OK' if results.ok else 'FAILED'}",
        f"# Avg bus bandwidth    : {results.average_busbw / 1e9:g}",
    )


def json_report(
    ctx: RuntimeContext, name: str, plan: Plan, results: Results, world_size: int, arguments: list[str]
) -> Any:
    """The document that ``-J`` writes: nccl-tests' keys, without wall-clock times; equal for equal arguments."""
    topology, algorithm = ctx.topology, ctx.ccl_config.select()
    return {
        "version": JSON_VERSION,
        "args": arguments,
        "versions": versions(),
        "system": {"name": topology.system.name, "nodes": topology.nodes, "sips": topology.sip_count},
        "algorithm": algorithm.model_dump(),
        "config": parameters(plan, world_size),
        "devices": [
            {
                "rank": rank,
                "group": 0,
                "hostname": f"node{topology.node_of(ctx.sips[rank])}",
                "device": ctx.sips[rank] % topology.sips_per_node,
                "device_info": topology.device.description,
            }
            for rank in range(world_size)
        ],
        "results": [
            {
                "size": row.case.nbytes,
                "count": row.case.count,
                "type": row.case.element.name,
                "redop": row.case.op,
                "root": "-1",
                "out_of_place": _json_measurement(row, row.out_of_place),
                "in_place": _json_measurement(row, row.in_place),
                "actual_iterations": plan.iterations,
                "experiment_name": name,
            }
            for row in results.rows
        ],
        "out_of_bounds": {"count": results.wrong, "okay": results.ok},
        "average_bus_bandwidth": {"bandwidth": results.average_busbw / 1e9, "okay": "unchecked"},
    }


def _json_measurement(row: Row, measurement: Measurement | None) -> dict[str, object] | None:
    if measurement is None:
        return None
    return {
        "time": measurement.seconds * 1e6,
        "alg_bw": row.algbw(measurement) / 1e9,
        "bus_bw": row.busbw(measurement) / 1e9,
        "nwrong": measurement.wrong,
    }


def _cells(row: Row, measurement: Measurement | None) -> tuple[str, str, str, str]:
    if measurement is None:
        return "-", "-", "-", "-"
    wrong = "N/A" if measurement.wrong is None else str(measurement.wrong)
    return (
        _figure(measurement.seconds * 1e6, 7),
        _figure(row.algbw(measurement) / 1e9, 6),
        _figure(row.busbw(measurement) / 1e9, 6),
        wrong,
    )


def _figure(value: float, width: int) -> str:
    """``value`` with as many decimals, two at most, as leave it in ``width`` characters."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width - 1:
            return text
    return text if len(text) <= width else f"{value:.1e}"


def _columns(mark: str, *cells: object) -> str:
    widths = (12, 12, 9, 7, 6, 8, 7, 7, 6, 8, 7, 7, 6)
    return (mark + " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))).rstrip()
