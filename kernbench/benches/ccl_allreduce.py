"""All-reduce over message sizes: times modelled on a described system, values checked to the bit.

    python -m kernbench.benches.ccl_allreduce                                  # default system, 8 ranks, 1 KiB to 64 MiB
    python -m kernbench.benches.ccl_allreduce --system dgx_h100 -b 8 -e 1G -f 2 -d half -c 0
    python -m kernbench.benches.ccl_allreduce -e 4K --trace allreduce.json     # open it in https://ui.perfetto.dev

Options, columns and the JSON of ``-J`` are those of nccl-tests' ``all_reduce_perf``. Times are virtual, so they are
the same on every machine. The exit code is 1 if any value is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.benches.harness.collective import default_plan, session, session_of
from kernbench.benches.harness.elements import COMBINE, ELEMENT_TYPES
from kernbench.benches.harness.nccl_format import Results, footer, header, json_report, row_line, table_header
from kernbench.benches.harness.nccl_rows import Plan, Row
from kernbench.benches.harness.progress import ProgressBar
from kernbench.benches.harness.sizes import SIZE, sweep
from kernbench.benching import OUTPUT, BenchCommand, SimulationOptions, bench_main, simulation_options
from kernbench.output_files import write_file

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

NAME = "ccl_allreduce"


def worker(rank: int, world_size: int, torch: Any) -> None:
    """One rank: for each case, all-reduce out of place, then in place, and report time and result."""
    dist = torch.distributed
    dist.init_process_group(rank=rank, world_size=world_size)
    torch.accelerator.set_device_index(rank)
    bench = session_of(torch)
    for element, cases in bench.plan.by_element():
        # as nccl-tests does: buffers for the largest message, of which every case uses the beginning
        largest, dtype = max(case.count for case in cases), getattr(torch, element.torch_name)
        send_buffer, recv_buffer = torch.zeros(largest, dtype=dtype), torch.zeros(largest, dtype=dtype)
        for case in cases:
            send, recv = send_buffer[: case.count], recv_buffer[: case.count]
            bench.fill(send, case, rank)
            seconds = _timed(torch, bench.plan, partial(dist.all_reduce, send, op=case.op, out=recv, async_op=True))
            bench.record(case, "out_of_place", rank, seconds, recv)

            seconds = _timed(torch, bench.plan, partial(dist.all_reduce, send, op=case.op, async_op=True))
            if bench.check and bench.plan.warmup + bench.plan.iterations > 1:
                bench.fill(send, case, rank)  # in place, each operation has consumed the result of the one before
                dist.all_reduce(send, op=case.op)
            bench.record(case, "in_place", rank, seconds, send)
    dist.destroy_process_group()


def _timed(torch: Any, plan: Plan, enqueue: Callable[[], Any]) -> float:
    """Virtual seconds per operation: warm up, line up, enqueue all iterations, wait for them."""
    for _ in range(plan.warmup):
        enqueue().wait()
    torch.distributed.barrier()
    begin = torch.now()
    for work in [enqueue() for _ in range(plan.iterations)]:
        work.wait()
    torch.synchronize()  # the streams have waited, the host has not
    return float(torch.now() - begin) / plan.iterations


def run(
    ctx: RuntimeContext,
    plan: Plan | None = None,
    *,
    isolation: str | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> Results:
    """Measure all-reduces in ``ctx``.

    Args:
        ctx: any ``RuntimeContext``; the world has ``ctx.distributed.get_world_size()`` ranks.
        plan: what to measure; default: one row of ``n_elem`` elements, from ``ccl.yaml``.
        isolation: of ``spawn``.
        on_row: called with each row as soon as it is complete.
    """
    world_size = ctx.distributed.get_world_size()
    options: dict[str, Any] = {} if isolation is None else {"isolation": isolation}
    with session(ctx, plan or default_plan(ctx), world_size, on_row) as bench:
        ctx.multiprocessing.spawn(worker, args=(world_size, ctx), nprocs=world_size, **options)
        return bench.results()


def _several(known: Any, what: str) -> Callable[[Any, Any, str], tuple[str, ...]]:
    """A click callback: one of ``known``, several with commas, or ``all``."""

    def parse(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
        names = tuple(known) if value == "all" else tuple(name.strip() for name in value.split(","))
        for name in names:
            if name not in known:
                raise click.BadParameter(f"unknown {what} {name!r}: expected {', '.join(known)} or all", ctx, param)
        return names

    return parse


_AVERAGES = {"0": "rank0", "1": "avg", "2": "min", "3": "max"}


@click.command(name=NAME, cls=BenchCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-b", "--minbytes", "begin", type=SIZE, default="1K", show_default=True, help="Smallest message.")
@click.option("-e", "--maxbytes", "end", type=SIZE, default="64M", show_default=True, help="Largest message.")
@click.option("-f", "--stepfactor", "factor", type=click.IntRange(min=2), help="Multiply sizes by this.  [default: 4]")
@click.option("-i", "--stepbytes", "increment", type=SIZE, help="Add this to sizes, instead of multiplying.")
@click.option(
    "-o",
    "--op",
    "ops",
    default="sum",
    show_default=True,
    callback=_several(COMBINE, "reduction"),
    help=f"Reduction: {', '.join(COMBINE)}; several with commas; all.",
)
@click.option(
    "-d",
    "--datatype",
    "elements",
    default="float",
    show_default=True,
    callback=_several(ELEMENT_TYPES, "data type"),
    help=f"Element type: {', '.join(ELEMENT_TYPES)}; several with commas; all.",
)
@click.option(
    "-n", "--iters", type=click.IntRange(min=1), default=1, show_default=True, help="Operations timed together."
)
@click.option(
    "-w", "--warmup_iters", "warmup", type=click.IntRange(min=0), default=0, show_default=True, help="Before them."
)
@click.option(
    "-c",
    "--check",
    type=click.IntRange(0, 1),
    default=1,
    show_default=True,
    help="1: check every value; 0: model time only, without values.",
)
@click.option(
    "-a",
    "--average",
    type=click.Choice(list(_AVERAGES)),
    default="1",
    show_default=True,
    help="Time of a row, over ranks: 0 rank 0's, 1 mean, 2 min, 3 max.",
)
@click.option(
    "-J",
    "--output_file",
    "json_file",
    type=OUTPUT,
    metavar="FILE",
    help="Also write the results as JSON, in nccl-tests' structure.",
)
@simulation_options
@click.pass_context
def command(
    click_ctx: click.Context,
    simulation: SimulationOptions,
    begin: int,
    end: int,
    factor: int | None,
    increment: int | None,
    ops: tuple[str, ...],
    elements: tuple[str, ...],
    iters: int,
    warmup: int,
    check: int,
    average: str,
    json_file: Path | None,
) -> None:
    """All-reduce over message sizes, as nccl-tests' all_reduce_perf: times modelled, values checked to the bit."""
    if factor is not None and increment is not None:
        raise click.UsageError("-f and -i exclude each other: sizes are either multiplied or added to")
    if increment is None and factor is None:
        factor = 4
    try:
        sizes = sweep(begin, end, factor=factor, increment=increment)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    plan = Plan.of(
        sizes, elements, ops, iterations=iters, warmup=warmup, check=bool(check), seed=simulation.seed,
        average=_AVERAGES[average],
    )  # fmt: skip
    step = f"{factor}(factor)" if factor is not None else f"{increment}(bytes)"
    from kernbench.cost.host_speed import one_intra_op_thread  # it imports torch, and help does without

    # The runtime works in blocks that stay in cache. A second thread brings little to those on an idle machine, and on a busy
    # one the threads wait for each other at the end of every block.
    with (
        one_intra_op_thread(),
        simulation.open(NAME, enable_data=plan.check, collective="all_reduce") as ctx,
        ProgressBar(len(plan.cases), NAME) as bar,
    ):
        world_size = ctx.distributed.get_world_size()
        for line in (*header(ctx, NAME, plan, world_size, step), *table_header()):
            bar.echo(line)

        def on_row(row: Row) -> None:
            bar.advance()
            bar.echo(row_line(row))

        # the worker switches only in calls of the context, so the quicker isolation is enough
        results = run(ctx, plan, isolation=simulation.isolation or "greenlet", on_row=on_row)
        for row in results.rows:
            if None in row.measurements:
                bar.echo(row_line(row))
        for line in footer(results):
            bar.echo(line)
        if json_file is not None:
            report = json_report(ctx, NAME, plan, results, world_size, click_ctx.meta[BenchCommand.ARGUMENTS])
            write_file(json_file, json.dumps(report, indent=1) + "\n")
    if not results.ok:
        click_ctx.exit(1)


if __name__ == "__main__":
    # run the module by its own name, so that what replaces its worker replaces the one that runs
    from kernbench.benches.ccl_allreduce import command as named_command

    bench_main(named_command, "kernbench.benches.ccl_allreduce")
