"""How fast kernels run on the engine: beside Triton's interpreter and torch's own operation, in one run, as ratios.

``python -m benches.triton_speed [--quick] [--threads N] [--json FILE]``. Absolute times depend on the machine; the
ratios are the result. Ours and torch's are timed in turns, so that a busy machine slows both; a row shows medians. On a
machine that others use, measure with one thread: CPU time is measured then, and no thread waits for a busy core. The
interpreter is slow, so it is timed once per row, in a process of its own (it must be chosen before Triton is imported),
on the share of the row's programs that the table names, and scaled.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

MIB = 1 << 20


@dataclass(frozen=True)
class Work:
    """One measurement: the launch, and torch's own operation on the same values."""

    ours: Callable[[], Any]
    torch: Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """A row of the table. ``make(share)`` prepares the work, on the first ``share`` of its programs."""

    name: str
    make: Callable[[float], Work]
    goal_torch: float | None = None
    """Ours may take at most this many times torch's time."""
    goal_interpreter: float = 1.0
    """Ours is at least this many times faster than the interpreter."""
    interpreted_share: float = 1.0
    quick: bool = True


@dataclass
class Measurement:
    """Seconds, medians; ratios are medians of the pairs' ratios."""

    name: str
    ours: float
    torch: float
    ratio_torch: float
    goal_torch: float | None
    interpreter: float | None
    speedup: float | None
    goal_interpreter: float
    notes: list[str] = field(default_factory=list)


def _randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _gemm(n: int, tile: tuple[int, int, int]) -> Callable[[float], Work]:
    def make(share: float) -> Work:
        from benches.kernels.matmul import matmul

        a, b = _randn(int(n * share), n, dtype=torch.float16), _randn(n, n, dtype=torch.float16)
        return Work(lambda: matmul(a, b, tile=tile, num_warps=8), lambda: torch.matmul(a.float(), b.float()).half())

    return make


def _add(mib: int) -> Callable[[float], Work]:
    def make(share: float) -> Work:
        from benches.kernels.vector_add import add

        x = _randn(int(mib * MIB * share) // 4)
        return Work(lambda: add(x, x), lambda: x + x)

    return make


def _softmax(share: float) -> Work:
    from benches.kernels.softmax import softmax

    x = _randn(int(8192 * share), 2048)
    return Work(lambda: softmax(x), lambda: x.softmax(-1))


def _layer_norm(share: float) -> Work:
    from benches.kernels.layer_norm import layer_norm

    x, w, b = _randn(int(8192 * share), 2048), _randn(2048), _randn(2048)
    return Work(lambda: layer_norm(x, w, b), lambda: F.layer_norm(x, (2048,), w, b))


def _layer_norm_backward(share: float) -> Work:
    from benches.kernels.layer_norm import layer_norm

    x, w, b = _randn(int(512 * share), 1024).requires_grad_(), _randn(1024).requires_grad_(), _randn(1024)
    dy = _randn(*x.shape)
    ours, theirs = layer_norm(x, w, b), F.layer_norm(x, (1024,), w, b)
    return Work(
        lambda: torch.autograd.grad(ours, (x, w), dy, retain_graph=True),
        lambda: torch.autograd.grad(theirs, (x, w), dy, retain_graph=True),
    )


def _dropout(share: float) -> Work:
    from benches.kernels.dropout import dropout

    x = _randn(int(MIB * share))
    return Work(lambda: dropout(x, 0.5, 7), lambda: F.dropout(x, 0.5))


def _attention(heads: int, length: int, causal: bool, backward: bool = False) -> Callable[[float], Work]:
    def make(share: float) -> Work:
        from benches.kernels.flash_attention import attention

        shape = (1, max(1, int(heads * share)), length, 64)
        q, k, v = (_randn(*shape, dtype=torch.float16).requires_grad_(backward) for _ in range(3))

        def theirs() -> torch.Tensor:
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal).half()

        def ours() -> torch.Tensor:
            return attention(q, k, v, causal=causal, tile=(128, 64))

        if not backward:
            return Work(ours, theirs)
        dout = _randn(*shape, dtype=torch.float16)
        return Work(
            lambda: torch.autograd.grad(ours(), (q, k, v), dout),
            lambda: torch.autograd.grad(theirs(), (q, k, v), dout),
        )

    return make


def _grouped(share: float) -> Work:
    from benches.kernels.grouped_gemm import grouped_gemm

    sizes = [(128, 256, 128), (256, 128, 256), (64, 512, 128), (256, 256, 256)]
    pairs = [(_randn(m, k, dtype=torch.float16), _randn(k, n, dtype=torch.float16)) for m, n, k in sizes]
    return Work(
        lambda: grouped_gemm(pairs, programs=16, tile=(64, 64, 32)),
        lambda: [(a.float() @ b.float()).half() for a, b in pairs],
    )


def _persistent(share: float) -> Work:
    from benches.kernels.persistent_matmul import persistent_matmul

    a, b = _randn(512, 512, dtype=torch.float16), _randn(512, 512, dtype=torch.float16)
    return Work(
        lambda: persistent_matmul(a, b, programs=16, tile=(64, 64, 64)), lambda: (a.float() @ b.float().T).half()
    )


ROWS = [
    Row("gemm fp16 1024, tiles 128x128x64", _gemm(1024, (128, 128, 64)), 1.5, 150),
    Row("gemm fp16 512, tiles 64x64x32", _gemm(512, (64, 64, 32)), 3.0, 150),
    Row("add 64 MiB", _add(64), 3.0, interpreted_share=1 / 64),
    Row("softmax 64 MiB, rows of 2048", _softmax, 3.0, interpreted_share=1 / 64),
    Row("layer norm 64 MiB, rows of 2048", _layer_norm, 3.0, interpreted_share=1 / 64),
    Row("layer norm backward 512 x 1024, spin locks", _layer_norm_backward),
    Row("dropout 4 MiB", _dropout, interpreted_share=1 / 16),
    Row("attention fp16 8 x 2048 x 64", _attention(8, 2048, False), 5.0, interpreted_share=1 / 8, quick=False),
    Row("attention fp16 8 x 2048 x 64, causal", _attention(8, 2048, True), 5.0, interpreted_share=1 / 8, quick=False),
    Row("attention fp16 8 x 512 x 64, causal", _attention(8, 512, True), interpreted_share=1 / 4),
    Row("attention fp16 4 x 512 x 64, fwd + bwd", _attention(4, 512, True, True), interpreted_share=1 / 4),
    Row("grouped gemm fp16, 4 products", _grouped),
    Row("persistent gemm fp16 512, descriptors", _persistent),
]


def _seconds(function: Callable[[], Any]) -> float:
    """Wall-clock seconds; with one thread the process's own CPU seconds, which other users of the machine do not move."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    function()
    return clock() - start


def measure(row: Row, interpreter: float | None, budget: float) -> Measurement:
    """Time ours and torch's in turns for ``budget`` seconds, at least three pairs."""
    work = row.make(1.0)
    work.ours()
    work.torch()
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + budget
    while len(pairs) < 3 or (time.perf_counter() < end and len(pairs) < 50):
        pairs.append((_seconds(work.ours), _seconds(work.torch)))
    ours = statistics.median(a for a, _ in pairs)
    notes = [] if row.interpreted_share == 1 else [f"interpreter on {row.interpreted_share:.3g} of it, scaled"]
    return Measurement(
        row.name,
        ours,
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
        row.goal_torch,
        interpreter,
        None if interpreter is None else interpreter / ours,
        row.goal_interpreter,
        notes,
    )


def _isolated(task: str, *arguments: str, **environment: str) -> Any:
    """Run ``python -m benches.triton_speed --task TASK ...`` and return the JSON it prints last."""
    command = [
        sys.executable,
        "-m",
        "benches.triton_speed",
        "--task",
        task,
        "--threads",
        str(torch.get_num_threads()),
        *arguments,
    ]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{task}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def interpreted(quick: bool) -> dict[str, float]:
    """Seconds of every row under Triton's interpreter, scaled to the whole; runs in the interpreter's process."""
    seconds = {}
    for row in ROWS:
        if row.quick or not quick:
            seconds[row.name] = _seconds(row.make(row.interpreted_share).ours) / row.interpreted_share
    return seconds


def launch_overhead() -> float:
    """Seconds per warm launch of a kernel that has next to nothing to do."""
    from benches.kernels.vector_add import add_kernel

    x = torch.zeros(16)
    add_kernel[(1,)](x, x, x, 16, BLOCK=16)
    samples = [_seconds(lambda: [add_kernel[(1,)](x, x, x, 16, BLOCK=16) for _ in range(100)]) / 100 for _ in range(7)]
    return statistics.median(samples)


def first_launch() -> float:
    """Seconds of a matmul's first launch, with an empty compile cache; runs in a fresh process."""
    from benches.kernels.matmul import matmul
    from benches.kernels.vector_add import add

    x = torch.zeros(64)
    add(x, x)  # what every process pays once: imports, the driver
    a = _randn(128, 128, dtype=torch.float16)
    return _seconds(lambda: matmul(a, a))


def _each(function: Callable[[Any], Any], arguments: list[Any]) -> None:
    for argument in arguments:
        function(argument)


def ranks_in_one_batch() -> tuple[float, float, float]:
    """Seconds of one rank's 128^3 gemm, of eight ranks' launches of it executed as one batch, and one after the other."""
    from benches.kernels.matmul import matmul
    from kernbench.triton_engine import execute, set_launch_sink

    class Collector:
        def __init__(self) -> None:
            self.launches: list[Any] = []

        def submit(self, launch: Any) -> None:
            self.launches.append(launch)

    def batch(ranks: int, together: bool = True) -> float:
        operands = [
            (_randn(128, 128, dtype=torch.float16), _randn(128, 128, dtype=torch.float16)) for _ in range(ranks)
        ]
        samples = []
        for _ in range(15):
            collector = Collector()
            before = set_launch_sink(collector)
            try:
                outs = [matmul(a, b, tile=(32, 32, 32)) for a, b in operands]
            finally:
                set_launch_sink(before)
            launches = collector.launches
            parts = [launches] if together else [[launch] for launch in launches]
            samples.append(_seconds(partial(_each, execute, parts)))
            del outs  # held until their launches have run
        return statistics.median(samples)

    return batch(1), batch(8), batch(8, together=False)


def extra_memory(mib: int) -> dict[str, float]:
    """Bytes the process grew by, at its peak, while a kernel read and wrote ``mib`` MiB; runs in a fresh process."""
    import resource

    from benches.kernels.vector_add import add_kernel

    n = mib * MIB // 4
    x = torch.ones(n)
    out = torch.zeros(n)
    small = torch.ones(1 << 16)
    add_kernel[(64,)](small, small, small, 1 << 16, BLOCK=1024)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    add_kernel[(n // 1024,)](x, x, out, n, BLOCK=1024)
    if not bool((out[:: n // 1000] == 2).all()):
        raise RuntimeError("wrong result")
    return {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before}


TASKS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "interpreter": lambda options: interpreted(options.quick),
    "first-launch": lambda _: first_launch(),
    "memory": lambda options: extra_memory(128 if options.quick else 1024),
}


def figures(quick: bool) -> list[tuple[str, float, float, str]]:
    """(name, value, goal, unit) of what is not a ratio to torch; lower is better."""
    one, eight, in_turn = ranks_in_one_batch()
    mib = 128 if quick else 1024
    with tempfile.TemporaryDirectory() as cache:
        first = _isolated("first-launch", TRITON_CACHE_DIR=cache)
    memory = _isolated("memory", *(["--quick"] if quick else []))["bytes"]
    return [
        ("warm launch of a small kernel", launch_overhead() * 1e6, 150, "us"),
        ("first launch, compilation included", first * 1e3, 100, "ms"),
        ("8 ranks' 128^3 gemm in one batch / one rank's", eight / one, 2.0, "x"),
        ("8 ranks' 128^3 gemm in one batch / one after the other", eight / in_turn, 1.0, "x"),
        (f"peak extra memory, add over {mib} MiB", memory / MIB, 64, "MiB"),
    ]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _verdict(value: float | None, goal: float | None, lower: bool) -> str:
    if value is None or goal is None:
        return ""
    met = value <= goal if lower else value >= goal
    return "[green]met[/]" if met else "[red]missed[/]"


def report(rows: list[Measurement], others: list[tuple[str, float, float, str]]) -> None:
    """Print both tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    clock = "CPU time" if torch.get_num_threads() == 1 else "wall clock"
    console.width = max(console.width, 150)
    table = Table(title=f"Kernels on the engine (torch threads: {torch.get_num_threads()}, {clock})")
    for heading in ("kernel", "ours", "torch", "ours / torch", "goal", "interpreter", "speed-up", "goal "):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for r in rows:
        table.add_row(
            r.name, _duration(r.ours), _duration(r.torch), f"{r.ratio_torch:.2f}",
            f"<= {r.goal_torch} {_verdict(r.ratio_torch, r.goal_torch, True)}" if r.goal_torch else "",
            _duration(r.interpreter), "-" if r.speedup is None else f"{r.speedup:.0f}",
            f">= {r.goal_interpreter:.0f} {_verdict(r.speedup, r.goal_interpreter, False)}",
        )  # fmt: skip
    console.print(table)
    speedups = [r.speedup for r in rows if r.speedup]
    if speedups:
        mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
        console.print(f"geometric mean over the interpreter: {mean:.0f} (goal >= 50 {_verdict(mean, 50, False)})")
    table = Table(title="Other figures")
    for heading in ("figure", "value", "goal"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, value, goal, unit in others:
        table.add_row(name, f"{value:.3g} {unit}", f"<= {goal:g} {unit} {_verdict(value, goal, True)}")
    console.print(table)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.triton_speed", description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows, fewer repetitions, 128 MiB instead of 1 GiB")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads that torch may use")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if os.environ.get("TRITON_INTERPRET") != "1":
        from kernbench.triton_engine import activate

        activate()
    if options.task:
        print(json.dumps(TASKS[options.task](options)))
        return
    seconds = _isolated("interpreter", *(["--quick"] if options.quick else []), TRITON_INTERPRET="1")
    rows = [measure(r, seconds[r.name], 0.5 if options.quick else 2.0) for r in ROWS if r.quick or not options.quick]
    others = figures(options.quick)
    report(rows, others)
    if options.json:
        data = {
            "kernels": [asdict(r) for r in rows],
            "figures": [dict(zip(("name", "value", "goal", "unit"), o, strict=True)) for o in others],
        }
        options.json.write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
