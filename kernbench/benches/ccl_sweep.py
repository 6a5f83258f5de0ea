"""All collectives by all algorithms over message sizes, as nccl-tests prints them; who is quickest, and from where on.

    python -m kernbench.benches.ccl_sweep                                         # sip8: every collective and algorithm
    python -m kernbench.benches.ccl_sweep --system dgx_h100 --nodes 2 -b 1K -e 1G --plot sweep.svg
    python -m kernbench.benches.ccl_sweep --collectives all_reduce --algorithms auto,ring_allreduce --json sweep.json

Times are those of the model, without a program around them: from a common start until the last member has ended. What hosts
see of it, with launch and wait, is what `ccl_allreduce` and nccl-tests print, as a mean over ranks. `auto` is what NCCL or
RCCL would choose. A `<` marks the quickest of a size. Algorithms that cannot serve on the system are named and left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.benches.harness.elements import ELEMENT_TYPES
from kernbench.benches.harness.progress import ProgressBar
from kernbench.benches.harness.sizes import SIZE, format_size, sweep
from kernbench.benching import OUTPUT, bench_main
from kernbench.ccl.collectives import CollectiveRunner, library_environ
from kernbench.ccl.config import AUTO, AlgorithmConfig, CclConfig, Fidelity, load_ccl_config
from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.registry import algorithm_module
from kernbench.ccl.timing import plan_seconds
from kernbench.collective_kinds import COLLECTIVES as ALL
from kernbench.collective_kinds import KINDS
from kernbench.errors import ConfigError
from kernbench.names import SYSTEM
from kernbench.output_files import replacing, write_file
from kernbench.topology import Topology, resolve_topology

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

NAME = "ccl_sweep"
COLLECTIVES = tuple(name for name in ALL if name != "send")


@dataclass(frozen=True)
class Row:
    """One measurement. ``size`` is nccl-tests' (bytes); ``seconds`` of the kernel; ``algbw``, ``busbw`` bytes/s."""

    collective: str
    algorithm: str
    runs: str
    protocol: str
    size: int
    count: int
    type: str
    redop: str
    root: int
    seconds: float
    algbw: float
    busbw: float
    fidelity: str


@dataclass(frozen=True)
class Sweep:
    """Everything that was measured, and what could not be: ``left_out`` says which algorithm, and why."""

    system: str
    nodes: int
    ranks: int
    rows: tuple[Row, ...]
    left_out: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether anything was measured."""
        return bool(self.rows)

    def quickest(self, collective: str) -> dict[int, str]:
        """The quickest algorithm of each size, what ``auto`` runs included."""
        best: dict[int, Row] = {}
        for row in self.rows:
            if row.collective == collective:
                held = best.get(row.size)
                if held is None or row.seconds < held.seconds:
                    best[row.size] = row
        return {size: row.runs for size, row in sorted(best.items())}

    def crossovers(self, collective: str) -> list[tuple[int, str, str]]:
        """``(size, before, from here on)`` where another algorithm becomes the quickest."""
        found = list(self.quickest(collective).items())
        return [(size, old, new) for (_, old), (size, new) in pairwise(found) if old != new]

    def __str__(self) -> str:
        collectives = dict.fromkeys(row.collective for row in self.rows)
        return "\n".join(line for collective in collectives for line in table(self, collective))


def measure(
    topology: Topology,
    config: CclConfig,
    ranks: int,
    sizes: Sequence[int],
    *,
    collectives: Sequence[str] = COLLECTIVES,
    algorithms: Sequence[str] | None = None,
    element: str = "float",
    op: str = "sum",
    fidelity: Fidelity = "auto",
    on_row: Callable[[Row], None] = lambda row: None,
) -> Sweep:
    """Measure ``ranks`` ranks on the first SIPs of a system.

    Args:
        sizes: nccl-tests' sizes, bytes; rounded down to whole elements per rank where the buffer is cut.
        algorithms: entries of ``ccl.yaml``, or ``auto``; None: all.
    """
    topology.require_world(ranks)
    runner = CollectiveRunner(topology, config.select)
    kind = ELEMENT_TYPES[element]
    reduction = ReduceOp.parse(op)
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for collective in collectives:
        does = KINDS[collective]
        root, redop = 0 if does.root else None, reduction.value if does.reduces else None
        for name in _entries(config, collective, algorithms):
            for size in sizes:
                cut = ranks if does.per_chunk else 1
                count = size // kind.itemsize // cut * cut
                request = runner.request(
                    op=collective, config=config.select(name), sips=tuple(range(ranks)),
                    root=root, count=count * (2 if does.exchanges else 1),
                    itemsize=kind.itemsize, dtype=_short(kind.torch_name), environ=library_environ(),
                    fidelity=fidelity, reduction=redop,
                )  # fmt: skip
                if name not in (AUTO, request.config.name):
                    left_out[name] = request.note
                    break
                seconds = plan_seconds(topology, request.plan)
                algbw = count * kind.itemsize / seconds if seconds else 0.0
                row = Row(
                    collective, name, request.config.name, _protocol(request), count * kind.itemsize, count, element,
                    op if does.reduces else "none", -1 if root is None else root, seconds, algbw,
                    algbw * does.bus_factor(ranks), request.fidelity,
                )  # fmt: skip
                rows.append(row)
                on_row(row)
    return Sweep(topology.system.name, topology.nodes, ranks, tuple(rows), left_out)


def _protocol(request: Any) -> str:
    return "queues" if request.selection is None else request.selection.choice.protocol


def _short(torch_name: str) -> str:
    return {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}.get(torch_name, torch_name)


def _entries(config: CclConfig, collective: str, wanted: Sequence[str] | None) -> list[str]:
    names = [name for name, entry in config.algorithms.items() if name != AUTO and _implements(entry) == collective]
    return [name for name in (AUTO, *names) if wanted is None or name in wanted]


def _implements(entry: AlgorithmConfig) -> str:
    return str(algorithm_module(entry.module).COLLECTIVE)


def run(ctx: RuntimeContext) -> Sweep:
    """Sweep the context's system, from 1 KiB to 64 MiB."""
    sizes = sweep(1 << 10, 1 << 26, factor=16)
    return measure(ctx.topology, ctx.ccl_config, ctx.distributed.get_world_size(), sizes)


def table(results: Sweep, collective: str) -> Iterator[str]:
    """The rows of one collective, size by size, and where another algorithm takes over."""
    yield f"# {collective}"
    yield _line("#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "algorithm", "protocol")
    yield _line("#", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "")
    rows = [row for row in results.rows if row.collective == collective]
    best = results.quickest(collective)
    for row in sorted(rows, key=lambda row: row.size):
        mark = " <" if best[row.size] == row.runs else ""
        runs = f"auto: {row.runs}" if row.algorithm == AUTO else row.algorithm
        yield _line(
            " ", row.size, row.count, row.type, row.redop, row.root, f"{row.seconds * 1e6:.2f}",
            f"{row.algbw / 1e9:.2f}", f"{row.busbw / 1e9:.2f}", runs + mark, row.protocol,
        )  # fmt: skip
    for size, old, new in results.crossovers(collective):
        yield f"# from {format_size(size)} on: {new} (before: {old})"
    yield "#"


def _line(mark: str, *cells: object) -> str:
    widths = (12, 12, 9, 7, 6, 10, 8, 8)
    numbers = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
    return f"{mark}{numbers}  {cells[8]:<36} {cells[9]}".rstrip()


def draw(results: Sweep, path: Path) -> None:
    """Bus bandwidth by size, a panel per collective, crossovers as dashed lines. Raises ConfigError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'kernbench[plot]'") from None
    from matplotlib.figure import Figure

    collectives = list(dict.fromkeys(row.collective for row in results.rows))
    across = min(3, len(collectives))
    down = -(-len(collectives) // across)
    with matplotlib.rc_context({"svg.hashsalt": "kernbench"}):
        figure = Figure(figsize=(6 * across, 4 * down), layout="constrained")
        panels = figure.subplots(down, across, squeeze=False).reshape(-1)
        for axes in panels[len(collectives) :]:
            axes.set_visible(False)
        for axes, collective in zip(panels, collectives, strict=False):
            by_name: dict[str, list[Row]] = {}
            for row in results.rows:
                if row.collective == collective:
                    by_name.setdefault(row.algorithm, []).append(row)
            for name, rows in by_name.items():
                style = {"color": "black", "linestyle": ":", "linewidth": 2} if name == AUTO else {"marker": "."}
                axes.plot([row.size for row in rows], [row.busbw / 1e9 for row in rows], label=name, **style)
            for size, _, new in results.crossovers(collective):
                axes.axvline(size, color="grey", linestyle="--", linewidth=0.8)
                axes.annotate(new, (size, 0.02), xycoords=("data", "axes fraction"), rotation=90, fontsize=7)
            axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="busbw (GB/s)", title=collective)
            axes.set_xscale("log", base=2)
            axes.legend(fontsize=7)
        figure.suptitle(f"{results.system}, {results.nodes} node(s), {results.ranks} ranks")
        with replacing(path) as part:
            figure.savefig(
                part, format=path.suffix[1:] or None, metadata={"Date": None} if path.suffix == ".svg" else None
            )


def _names(known: Sequence[str] | None, what: str) -> Callable[[Any, Any, str], tuple[str, ...] | None]:
    def parse(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...] | None:
        if value == "all":
            return None if known is None else tuple(known)
        names = tuple(name.strip() for name in value.split(","))
        for name in names:
            if known is not None and name not in known:
                raise click.BadParameter(f"unknown {what} {name!r}: expected {', '.join(known)} or all", ctx, param)
        return names

    return parse


@click.command(name=NAME, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--system", type=SYSTEM, metavar="NAME|PATH", help="Shipped system or a YAML file.  [default: sip8]")
@click.option("--nodes", type=click.IntRange(min=1), help="Repeat the system's node this many times.")
@click.option("-g", "--ngpus", "--ranks", "ranks", type=click.IntRange(min=1), help="World size.  [default: every SIP]")
@click.option("-b", "--minbytes", "begin", type=SIZE, default="1K", show_default=True, help="Smallest message.")
@click.option("-e", "--maxbytes", "end", type=SIZE, default="64M", show_default=True, help="Largest message.")
@click.option("-f", "--stepfactor", "factor", type=click.IntRange(min=2), default=4, show_default=True, help="Step.")
@click.option("-d", "--datatype", "element", type=click.Choice(list(ELEMENT_TYPES)), default="float", show_default=True)
@click.option("-o", "--op", default="sum", show_default=True, help="Reduction.")
@click.option("--collectives", default="all", callback=_names(COLLECTIVES, "collective"), help="With commas, or all.")
@click.option("--algorithms", default="all", callback=_names(None, "algorithm"), help="Entries of ccl.yaml, or all.")
@click.option("--fidelity", type=click.Choice(["auto", "stepped", "closed_form"]), default="auto", show_default=True)
@click.option("--json", "json_file", type=OUTPUT, metavar="FILE", help="Also write every row as JSON.")
@click.option("--plot", "plot_file", type=OUTPUT, metavar="FILE", help="Draw busbw by size: .svg, .png or .pdf.")
def command(
    system: str | None,
    nodes: int | None,
    ranks: int | None,
    begin: int,
    end: int,
    factor: int,
    element: str,
    op: str,
    collectives: tuple[str, ...],
    algorithms: tuple[str, ...] | None,
    fidelity: Fidelity,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """All collectives by all algorithms over message sizes: time, algbw, busbw, and who is quickest."""
    topology = resolve_topology(system, nodes=nodes).topology_obj
    config = load_ccl_config(system=topology.system)
    ranks = ranks or topology.sip_count
    for name in algorithms or ():
        config.select(name)  # an unknown one is an error here
    try:
        sizes = sweep(begin, end, factor=factor)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    total = len(sizes) * sum(len(_entries(config, collective, algorithms)) for collective in collectives)
    with ProgressBar(total, NAME) as bar:
        bar.echo(f"# {NAME}: {topology.system.name}, {topology.nodes} node(s), {ranks} ranks; times are modelled")
        bar.echo("# time: of the collective alone, until its last member has ended; of a host, with launch and wait, and as a "
                 "mean over ranks: ccl_allreduce")  # fmt: skip
        results = measure(
            topology, config, ranks, sizes, collectives=collectives, algorithms=algorithms, element=element, op=op,
            fidelity=fidelity, on_row=lambda row: bar.advance(),
        )  # fmt: skip
        bar.echo(str(results))
        for name, reason in results.left_out.items():
            bar.echo(f"# left out: {name} ({reason})")
    if json_file is not None:
        write_file(json_file, json.dumps(asdict(results), indent=1) + "\n")
    if plot_file is not None:
        draw(results, plot_file)


if __name__ == "__main__":
    bench_main(command, "kernbench.benches.ccl_sweep")
