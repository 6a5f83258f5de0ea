"""Large training jobs without their data: seconds, memory, and what each recorded operation costs the host.

    python -m kernbench.benches.real_size [--only NAME ...] [--quick] [--json FILE]

Each job is ``kernbench run --no-data`` of ``kernbench/programs/llama.py`` in a process of its own, one after the other. CPU
seconds are of that process, wall seconds of this machine (the goals are for two quiet cores), memory is the most that was
resident.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

import kernbench
from kernbench.output_files import write_file


class Job(NamedTuple):
    """One line of the table.

    Attributes:
        name: of it, for ``--only``.
        nodes: of eight GPUs.
        args: of the program.
        seconds: goal, wall seconds.
        gib: goal, GiB resident.
        options: of ``kernbench run``.
    """

    name: str
    nodes: int
    args: str
    seconds: float
    gib: float | None = None
    options: str = ""


JOBS = (
    Job("8B, FSDP2 over 8", 1, "--model 8B --batch 2", 20, 1.5),
    Job("8B, FSDP2 over 8, folded", 1, "--model 8B --batch 2", 20, 1.5, "--ranks auto"),
    Job("8B, FSDP2 over 128", 16, "--model 8B --batch 2", 25),
    Job("70B, TP 8 x FSDP 32", 32, "--model 70B --tp 8 --batch 2", 60),
    Job("405B, TP 8 x PP 8 x FSDP 8, 1F1B", 64, "--model 405B --tp 8 --pp 8 --batch 8 --steps 1", 180, 6),
    Job(
        "405B, TP 8 x PP 8 x FSDP 8, interleaved", 64,
        "--model 405B --tp 8 --pp 8 --batch 8 --steps 1 --schedule Interleaved1F1B", 180, 6,
    ),
    Job("8B on 4096 GPUs", 512, "--model 8B --batch 2", 60),
)  # fmt: skip


class Reading(NamedTuple):
    """What one job took: wall and CPU seconds, bytes resident at most, and the last lines that it printed."""

    wall: float
    cpu: float
    resident: int
    code: int
    said: Sequence[str]


def measure(job: Job, *, layers: int | None) -> Reading:
    """Run a job in a process of its own."""
    program = str(files("kernbench") / "programs" / "llama.py")
    command = [
        sys.executable, "-m", "kernbench", "run", "--no-data", "--nproc-per-node", "8", "--nnodes", str(job.nodes),
        "--system", "dgx_h100", *job.options.split(), program, *job.args.split(),
    ]  # fmt: skip
    if layers is not None:
        command += ["--layers", str(layers)]
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    lines = child.stdout.read().splitlines()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - begin
    return Reading(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, child.returncode, lines[-25:])


_OPERATION = """
import resource, torch, kernbench

def seconds():
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime

def body(rank):
    a = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
    best = 1.0
    for _ in range(7):
        begin = seconds()
        for _ in range(2000):
            a + a
        best = min(best, (seconds() - begin) / 2000)
    print(best)

with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
    ctx.multiprocessing.spawn(body, nprocs=1)
"""


def seconds_per_operation() -> float:
    """CPU seconds of the host for one recorded operation on hollow tensors, best of seven."""
    found = subprocess.run([sys.executable, "-c", _OPERATION], capture_output=True, text=True, check=True)
    return float(found.stdout.split()[-1])


def readings(names: Sequence[str], quick: bool) -> Iterator[tuple[Job, Reading]]:
    """The jobs that are wanted, as they end."""
    for job in JOBS:
        if not names or any(name in job.name for name in names):
            pipelined = 16 if "--pp" in job.args else 2
            yield job, measure(job, layers=pipelined if quick else None)


@click.command(help=__doc__)
@click.option("--only", "names", multiple=True, metavar="NAME", help="Jobs whose name contains this; may be repeated.")
@click.option("--quick", is_flag=True, help="Few layers: does it run?")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Also write the readings to this file.")
def main(names: tuple[str, ...], quick: bool, json_file: str | None) -> None:
    """Measure and print."""
    console = Console()
    table = Table(
        "job", "wall s", "goal", "CPU s", "GiB", "goal", title=f"kernbench {kernbench.__version__}: real size"
    )
    found, code = [], 0
    for job, reading in readings(names, quick):
        gib = reading.resident / 2**30
        if reading.code:
            console.print("\n".join(reading.said), f"{job.name} failed with exit code {reading.code}", markup=False)
            code = 1
        table.add_row(
            job.name, f"{reading.wall:.1f}", f"<= {job.seconds:g}", f"{reading.cpu:.1f}", f"{gib:.2f}",
            "" if job.gib is None else f"<= {job.gib:g}",
        )  # fmt: skip
        found.append({"job": job.name, **reading._asdict()})
    each = seconds_per_operation()
    table.add_row("one recorded operation", f"{each * 1e6:.1f} us", "<= 15 us", "", "", "")
    console.print(table)
    if json_file:
        write_file(json_file, json.dumps([*found, {"job": "one recorded operation", "cpu": each}], indent=2))
    sys.exit(code)


if __name__ == "__main__":
    main()
