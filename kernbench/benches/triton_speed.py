"""How fast kernels run on the engine: in turns with torch's own operation on the same values, and with Triton's interpreter.

    python -m kernbench.benches.triton_speed [--threads N] [--interpreter] [--only softmax] [--json FILE]

With one thread, the default, times are CPU seconds of the process: what else runs on the machine moves them little. With more,
they are wall seconds. The interpreter, which has to be chosen before Triton is imported, is a process of its own that takes
turns with this one; it is slow, and of large kernels it runs the share of the programs that the figure's name says, scaled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F

from kernbench.benches.harness.history import ROOT
from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turn_worker import TurnWorker
from kernbench.benches.harness.turns import CPU, WALL, Comparison, Outcome, Sampler, Side, seconds
from kernbench.tp import decode_attention

NAME = "triton_speed"
MIB = 1 << 20
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether this is the interpreter's process."""


@dataclass(frozen=True)
class Work:
    """One measurement: the launch, and torch's own operation on the same values."""

    ours: Callable[[], Any]
    torch: Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """A kernel. ``make(share)`` prepares the work, on the first ``share`` of its programs.

    Attributes:
        goal: ours may take at most this many times torch's time.
        faster: ours is at least this many times faster than the interpreter.
        share: of the programs that the interpreter runs.
    """

    name: str
    make: Callable[[float], Work]
    goal: float | None = None
    faster: float = 1.0
    share: float = 1.0


def _randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _gemm(n: int, tile: tuple[int, int, int]) -> Callable[[float], Work]:
    def make(share: float) -> Work:
        from kernbench.benches.kernels.matmul import matmul

        a, b = _randn(int(n * share), n, dtype=torch.float16), _randn(n, n, dtype=torch.float16)
        return Work(lambda: matmul(a, b, tile=tile, num_warps=8), lambda: torch.matmul(a.float(), b.float()).half())

    return make


def _add(mib: int) -> Callable[[float], Work]:
    def make(share: float) -> Work:
        from kernbench.benches.kernels.vector_add import add

        x = _randn(int(mib * MIB * share) // 4)
        return Work(lambda: add(x, x), lambda: x + x)

    return make


def _softmax(share: float) -> Work:
    from kernbench.benches.kernels.softmax import softmax

    x = _randn(int(8192 * share), 2048)
    return Work(lambda: softmax(x), lambda: x.softmax(-1))


def _layer_norm(share: float) -> Work:
    from kernbench.benches.kernels.layer_norm import layer_norm

    x, w, b = _randn(int(8192 * share), 2048), _randn(2048), _randn(2048)
    return Work(lambda: layer_norm(x, w, b), lambda: F.layer_norm(x, (2048,), w, b))


def _layer_norm_backward(share: float) -> Work:
    from kernbench.benches.kernels.layer_norm import layer_norm

    x, w, b = _randn(int(512 * share), 1024).requires_grad_(), _randn(1024).requires_grad_(), _randn(1024)
    dy = _randn(*x.shape)
    ours, theirs = layer_norm(x, w, b), F.layer_norm(x, (1024,), w, b)
    return Work(
        lambda: torch.autograd.grad(ours, (x, w), dy, retain_graph=True),
        lambda: torch.autograd.grad(theirs, (x, w), dy, retain_graph=True),
    )


def _dropout(share: float) -> Work:
    from kernbench.benches.kernels.dropout import dropout

    x = _randn(int(16 * MIB * share))
    return Work(lambda: dropout(x, 0.5, 7), lambda: F.dropout(x, 0.5))


def _attention(heads: int, length: int, causal: bool, backward: bool = False) -> Callable[[float], Work]:
    def make(share: float) -> Work:
        from kernbench.benches.kernels.flash_attention import attention

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
    from kernbench.benches.kernels.grouped_gemm import grouped_gemm

    sizes = [(128, 256, 128), (256, 128, 256), (64, 512, 128), (256, 256, 256)]
    pairs = [(_randn(m, k, dtype=torch.float16), _randn(k, n, dtype=torch.float16)) for m, n, k in sizes]
    return Work(
        lambda: grouped_gemm(pairs, programs=16, tile=(64, 64, 32)),
        lambda: [(a.float() @ b.float()).half() for a, b in pairs],
    )


def _persistent(share: float) -> Work:
    from kernbench.benches.kernels.persistent_matmul import persistent_matmul

    a, b = _randn(512, 512, dtype=torch.float16), _randn(512, 512, dtype=torch.float16)
    return Work(
        lambda: persistent_matmul(a, b, programs=16, tile=(64, 64, 64)), lambda: (a.float() @ b.float().T).half()
    )


ROWS = [
    Row("gemm fp16 1024, tiles 128x128x64", _gemm(1024, (128, 128, 64)), 1.5, 150),
    Row("gemm fp16 512, tiles 64x64x32", _gemm(512, (64, 64, 32)), 1.5, 150),
    Row("add 64 MiB", _add(64), 3.0, share=1 / 64),
    Row("softmax 64 MiB, rows of 2048", _softmax, 1.2, share=1 / 64),
    Row("layer norm 64 MiB, rows of 2048", _layer_norm, 1.5, share=1 / 64),
    Row("dropout 64 MiB", _dropout, 3.0, share=1 / 256),
    Row("layer norm backward 512 x 1024, spin locks", _layer_norm_backward, 4.0),
    Row("grouped gemm fp16, 4 products", _grouped, 4.0),
    Row("persistent gemm fp16 512, descriptors", _persistent, 4.0),
    Row("attention fp16 8 x 2048 x 64", _attention(8, 2048, False), 5.0, share=1 / 8),
    Row("attention fp16 8 x 2048 x 64, causal", _attention(8, 2048, True), 5.0, share=1 / 8),
    Row("attention fp16 8 x 512 x 64, causal", _attention(8, 512, True), share=1 / 4),
    Row("attention fp16 4 x 512 x 64, fwd + bwd", _attention(4, 512, True, True), share=1 / 4),
]


def clock() -> Callable[[], float]:
    """CPU seconds where one thread computes."""
    return CPU if torch.get_num_threads() == 1 else WALL


def beside_torch(row: Row) -> Comparison:
    """A kernel and torch's operation; in the interpreter's process, the kernel alone."""

    def sides() -> dict[str, Side]:
        work = row.make(row.share if INTERPRETED else 1.0)
        ours = seconds(work.ours, clock=clock())
        if INTERPRETED:
            return {"interpreter": Side(lambda: ours() / row.share)}
        return {"kernbench": Side(ours), "torch": Side(seconds(work.torch, clock=clock()))}

    return Comparison(row.name, "ms", sides, {} if row.goal is None else {"torch": row.goal})


def beside_interpreter(row: Row, worker: TurnWorker) -> Comparison:
    """A kernel on the engine, and under Triton's interpreter in ``worker``."""
    share = "" if row.share == 1 else f", 1/{1 / row.share:.0f} of it interpreted"

    def sides() -> dict[str, Side]:
        ours = seconds(row.make(1.0).ours, clock=clock())
        return {"kernbench": Side(ours), "interpreter": worker.ours(row.name)}

    return Comparison(f"{row.name}{share}", "ms", sides, {"interpreter": 1 / row.faster})


# -- what is not a kernel beside torch's ---------------------------------------------------------------------------------


def _small_launch() -> dict[str, Side]:
    from kernbench.benches.kernels.vector_add import add_kernel

    x = torch.zeros(16)
    return {"kernbench": Side(seconds(lambda: add_kernel[(1,)](x, x, x, 16, BLOCK=16), 50, clock()))}


def _decode() -> dict[str, Side]:
    """Both kernels of attention of one token and 8 heads over 64 positions; two launches, hence half of it."""
    q, cache = _randn(1, 8, 64), _randn(1, 64, 8, 64)
    lengths = torch.full((1,), 64, dtype=torch.int32)
    both = seconds(lambda: decode_attention(q, cache, cache, lengths), 20, clock())
    return {"kernbench": Side(lambda: both() / 2)}


class _Collector:
    def __init__(self) -> None:
        self.launches: list[Any] = []

    def submit(self, launch: Any) -> None:
        self.launches.append(launch)


def _batch(ranks: int, together: bool = True) -> Side:
    """Launches of ``ranks`` ranks' 128^3 gemms, executed as one batch or one after the other."""
    from kernbench.benches.kernels.matmul import matmul
    from kernbench.triton_engine import execute, set_launch_sink

    operands = [(_randn(128, 128, dtype=torch.float16), _randn(128, 128, dtype=torch.float16)) for _ in range(ranks)]

    def run() -> float:
        collector = _Collector()
        before = set_launch_sink(collector)
        try:
            outs = [matmul(a, b, tile=(32, 32, 32)) for a, b in operands]
        finally:
            set_launch_sink(before)
        parts = [collector.launches] if together else [[launch] for launch in collector.launches]
        took = seconds(lambda: [execute(part) for part in parts], clock=clock())()
        del outs  # held until their launches have run
        return took

    return Side(run)


def first_launch() -> float:
    """Seconds of a matmul's first launch, with an empty compile cache; of a fresh process."""
    from kernbench.benches.kernels.matmul import matmul
    from kernbench.benches.kernels.vector_add import add

    x = torch.zeros(64)
    add(x, x)  # what every process pays once: imports, the driver
    a = _randn(128, 128, dtype=torch.float16)
    return seconds(lambda: matmul(a, a), clock=CPU)()


def extra_memory(mib: int = 1024) -> float:
    """Bytes the process grew by, at its peak, while a kernel read and wrote ``mib`` MiB; of a fresh process."""
    import resource

    from kernbench.benches.kernels.vector_add import add_kernel

    n = mib * MIB // 4
    x = torch.ones(n)
    out = torch.zeros(n)
    small = torch.ones(1 << 16)
    add_kernel[(64,)](small, small, small, 1 << 16, BLOCK=1024)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    add_kernel[(n // 1024,)](x, x, out, n, BLOCK=1024)
    if not bool((out[:: n // 1000] == 2).all()):
        raise RuntimeError("wrong result")
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)


def _in_a_process(function: Callable[[], float]) -> Sampler:
    """A sampler that calls a function of this module in a process of its own, with an empty cache of compiled kernels."""

    def sample() -> float:
        name = function.__name__
        program = f"from kernbench.benches import triton_speed\ntriton_speed.prepare(1)\nprint(triton_speed.{name}())"
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "TRITON_CACHE_DIR": cache}
            done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr.strip().splitlines()[-1]}")
        return float(done.stdout.split()[-1])

    return sample


def prepare(threads: int) -> None:
    """Give torch that many threads, and Triton the engine."""
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if not INTERPRETED:
        from kernbench.triton_engine import activate

        activate()


def figures(threads: int = 1) -> list[Comparison]:
    """In the order of the table."""
    prepare(threads)
    kernels = [beside_torch(row) for row in ROWS]
    if INTERPRETED:
        return kernels
    return [
        *kernels,
        Comparison("warm launch of a small kernel", "us", _small_launch, limit=40.0),
        Comparison("warm launch of a decoding kernel, 1 token x 8 heads", "us", _decode, limit=40.0),
        Comparison(
            "8 ranks' 128^3 gemm in one batch", "ms",
            lambda: {"one batch": _batch(8), "one rank's": _batch(1), "one after the other": _batch(8, together=False)},
            {"one rank's": 1.5, "one after the other": 1.0},
        ),
        Comparison(
            "first launch, compilation included", "ms", lambda: {"kernbench": Side(_in_a_process(first_launch))}, limit=100.0
        ),
        Comparison(
            "peak extra memory, add over 1 GiB", "MiB", lambda: {"kernbench": Side(_in_a_process(extra_memory))}, limit=64.0
        ),
    ]  # fmt: skip


def run(
    ctx: object = None, speed: SpeedRun | None = None, *, threads: int = 1, interpreter: bool = False
) -> list[Outcome]:
    """Measure and print; with ``interpreter``, the kernels beside Triton's interpreter instead."""
    speed = speed or SpeedRun()
    before = torch.get_num_threads()
    try:
        if not interpreter:
            return speed.run(NAME, figures(threads))
        prepare(threads)
        environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": str(threads)}
        with TurnWorker(NAME, Path(ROOT), environment) as worker:
            return speed.run(f"{NAME}, interpreter", [beside_interpreter(row, worker) for row in ROWS])
    finally:
        torch.set_num_threads(before)


@click.command(name=NAME, help=__doc__)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads that torch may use.")
@click.option("--interpreter", is_flag=True, help="Measure beside Triton's interpreter instead of torch.")
@speed_options
def command(speed: SpeedRun, threads: int, interpreter: bool) -> None:
    """Measure and print."""
    run(speed=speed, threads=threads, interpreter=interpreter)


if __name__ == "__main__":
    command()
