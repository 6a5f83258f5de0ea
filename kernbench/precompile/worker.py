"""Compiling one variant, in whatever process."""

from __future__ import annotations

import os
import signal
import time
import traceback
from dataclasses import dataclass

from kernbench.child_processes import end_with_parent
from kernbench.precompile import target as triton_target
from kernbench.precompile.arguments import stand_in
from kernbench.precompile.events import count_compiles
from kernbench.precompile.kernels import Surroundings, import_within, load_kernel
from kernbench.precompile.space import Variant
from kernbench.stand_ins import stand_in_as_told

COMPILED, HIT, FAILED = "compiled", "hit", "failed"


@dataclass(frozen=True)
class Compilation:
    """What became of one variant.

    Attributes:
        name: of the variant.
        status: ``"compiled"``, ``"hit"`` (it was in the cache) or ``"failed"``.
        seconds: wall-clock of this compilation.
        entries: the entries of Triton's cache that a launch will look for, with the identity of each program.
        error: why it failed, one line; ``detail`` has all of it.
    """

    name: str
    status: str
    seconds: float
    entries: tuple[tuple[str, str], ...] = ()
    error: str = ""
    detail: str = ""


def begin_worker(directory: str | None, surroundings: Surroundings, stand_ins: str) -> None:
    """Start of a worker process: where Triton keeps what it compiles, what modules of kernels are executed within, and which
    packages they can import besides (:data:`kernbench.stand_ins.TOLD`)."""
    end_with_parent(signal.SIGKILL)  # it would wait for work for ever, whatever it loads that handles other signals
    if directory is not None:
        os.environ["TRITON_CACHE_DIR"] = directory
    import_within(surroundings)
    stand_in_as_told(stand_ins)


def compile_variant(variant: Variant, values: bool = False) -> Compilation:
    """Compile one variant into Triton's cache, or find it there. Never raises an Exception.

    ``values``: what kernbench's own engine runs, instead of the device's binary.
    """
    begin = time.perf_counter()
    try:
        kernel = load_kernel(variant.kernel)
        constexpr = triton_target.parameters(kernel)
        arguments = {
            name: stand_in(value, constexpr=constexpr[name], where=f"{variant.kernel}: {name}")
            for name, value in variant.arguments.items()
        }
        triton_target.forget_compiled(kernel)
        inner = kernel.fn if hasattr(kernel, "configs") else kernel  # the variant has chosen the config
        compiling = triton_target.compiling_values_for if values else triton_target.compiling_for
        with compiling(variant.target), count_compiles() as count:
            inner.warmup(**arguments, **variant.options, grid=(1,))
        entries = tuple((event.hash, event.identity) for event in count.events)
        status = COMPILED if count.compiled else HIT
        return Compilation(variant.name, status, time.perf_counter() - begin, entries)
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        return Compilation(variant.name, FAILED, time.perf_counter() - begin, (), _first_line(error), text)


def _first_line(error: BaseException) -> str:
    """The innermost reason in one line: Triton wraps what a kernel's line raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
