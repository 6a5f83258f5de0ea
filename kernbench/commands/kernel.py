"""``kernbench kernel``: run a script and show what its Triton kernels are and do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernbench.commands.run_options import run_options
from kernbench.errors import ConfigError
from kernbench.names import SYSTEM
from kernbench.stand_ins import standing_in
from kernbench.suggestions import did_you_mean

if TYPE_CHECKING:
    from kernbench.triton_engine.launching import LaunchRecord


@click.command("kernel", context_settings={"ignore_unknown_options": True})
@click.argument("target", metavar="FILE.py[:KERNEL]")
@run_options("module", "stand_ins")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--system", type=SYSTEM, metavar="NAME|FILE", help="System whose GPU the script has.  [default: sip8]")
@click.option("--ttir", is_flag=True, help="Print the TTIR that runs.")
@click.option("--resources", "with_resources", is_flag=True, help="Compile in full: registers, shared memory, spills.")
@click.option(
    "--lines",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    help="Source lines to show per kernel, by wall time.",
)
def command(
    target: str, args: tuple[str, ...], module: bool, stand_ins: tuple[str, ...], system: str | None, ttir: bool,
    with_resources: bool, lines: int,
) -> None:  # fmt: skip
    """Run FILE.py (with ARGS), as kernbench run does, and report the kernels that it launches. With -m it is MODULE[:KERNEL].

    Shown per kernel: launches, programs, bytes, operations, modelled time on the target, resources, and where the wall
    time of this machine goes, per source line. KERNEL limits the report to kernels of that name.
    """
    path, _, name = target.partition(":")
    from kernbench.commands.run_failures import ShownFailures
    from kernbench.interruption import ending_signals
    from kernbench.runtime_api import launcher
    from kernbench.runtime_api.context import simulate
    from kernbench.triton_engine.launching import record_launches

    program = (launcher.RankProgram.module if module else launcher.RankProgram.script)(path, args)
    failures = ShownFailures()
    with ending_signals(), standing_in(stand_ins), simulate(system) as ctx, record_launches(profile=True) as records:
        try:
            launcher.run_once(ctx, program, prefix=False)
        except SystemExit as end:
            if end.code:
                raise
        except Exception as error:
            if not failures.script(error, program.file):
                raise
            sys.exit(1)
        chosen = [r for r in records if not name or r.name == name]
        if not chosen:
            known = sorted({r.name for r in records})
            said = f" {name}{did_you_mean(name, known)}; kernels launched: {', '.join(known)}" if known else ""
            raise ConfigError(f"{path} launched no kernel{said}")
        console = Console(markup=False)
        for kernel in dict.fromkeys(r.name for r in chosen):
            _report(console, [r for r in chosen if r.name == kernel], ttir, with_resources, lines)


def _report(console: Console, records: list[LaunchRecord], ttir: bool, with_resources: bool, lines: int) -> None:
    from kernbench.triton_engine.driver.resources import current_device, resources
    from kernbench.triton_engine.duration import estimate
    from kernbench.triton_engine.introspect import lines_of, ttir_of

    last = records[-1]
    counts = last.counts
    used = resources(last.kernel) if with_resources else None
    device = current_device()
    heading = f"  grid {last.grid}, {len(records)} launches; figures of the last one"
    console.print(Text.assemble("\n", (last.name, "bold"), heading))
    facts = Table(show_header=False, box=None, padding=(0, 2))
    facts.add_row("programs", f"{counts.programs:,}")
    facts.add_row("bytes read", f"{counts.bytes_read:,}  (unique {counts.unique_bytes_read:,})")
    facts.add_row("bytes written", f"{counts.bytes_written:,}  (unique {counts.unique_bytes_written:,})")
    for (dtype, unit), flops in sorted(counts.flops.items()):
        facts.add_row(f"flops {dtype} {unit}", f"{flops:,}")
    facts.add_row("atomics", f"{counts.atomics:,}")
    for where, trips in sorted(counts.trips.items()):
        facts.add_row("trips", f"{trips:,}  {where}")
    if used is not None:
        facts.add_row("resources", f"{used.registers} registers, {used.spills} bytes spilled, {used.shared} bytes shared, "
                      f"{used.num_warps} warps, {used.num_stages} stages")  # fmt: skip
    found = estimate(counts, used, device, kernel=last.kernel)
    facts.add_row("modelled", f"{found.seconds * 1e6:.2f} us on {device.name} ({found.low * 1e6:.2f} to "
                  f"{found.high * 1e6:.2f}); limited by {found.algorithm}, {found.protocol} programs per PE")  # fmt: skip
    console.print(facts)
    table = Table("ms", "runs", "bytes", "flops", "line", title="wall time on this machine", title_justify="left")
    for line in lines_of(last)[:lines]:
        where = f"{Path(line.file).name}:{line.number}  {line.text}"
        table.add_row(f"{line.seconds * 1e3:.3f}", str(line.executions), f"{line.nbytes:,}", f"{line.flops:,}", where)
    console.print(table)
    if ttir:
        console.print(ttir_of(last), markup=False, highlight=False)
