"""Compiling many variants side by side in spawned processes.

Processes, because Triton's compiler holds the interpreter lock; spawned, because a fork would copy the locks of the
threads that the parent runs. Triton's cache needs no lock of ours: entries are written beside and renamed.

A compiler that crashes takes its process with it, and the pool. The variants that were on their way then run one by
one, so that the one to blame is known by name and the others are compiled all the same.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kernbench.child_processes import leaving_none
from kernbench.errors import KernbenchError
from kernbench.input_files import resolved
from kernbench.interruption import ending_signals
from kernbench.precompile.kernels import surroundings_now
from kernbench.precompile.space import Space, Variant, read_spaces, variants
from kernbench.precompile.worker import COMPILED, FAILED, HIT, Compilation, begin_worker, compile_variant
from kernbench.stand_ins import TOLD

Progress = Callable[[Compilation], None]


@dataclass(frozen=True)
class Report:
    """What a precompilation did.

    Attributes:
        outcomes: one per variant, in the order of the declaration.
        seconds: wall-clock of the whole, start of the processes included.
        jobs: number of processes.
    """

    outcomes: tuple[Compilation, ...]
    seconds: float
    jobs: int

    @property
    def compiled(self) -> int:
        """Variants that were compiled now."""
        return sum(outcome.status == COMPILED for outcome in self.outcomes)

    @property
    def hits(self) -> int:
        """Variants that were in the cache."""
        return sum(outcome.status == HIT for outcome in self.outcomes)

    @property
    def failed(self) -> tuple[Compilation, ...]:
        """Variants that could not be compiled."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == FAILED)

    def raise_if_failed(self) -> Report:
        """Return the report, or raise :class:`~kernbench.errors.KernbenchError` naming every variant that failed."""
        if self.failed:
            lines = [f"{len(self.failed)} of {len(self.outcomes)} variants could not be compiled:"]
            raise KernbenchError("\n  ".join([*lines, *(f"{each.name}: {each.error}" for each in self.failed)]))
        return self


def precompile(
    spec: str | Path | Space | Iterable[Space],
    *,
    jobs: int | None = None,
    targets: Sequence[str] = (),
    cache_dir: str | Path | None = None,
    values: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Compile every variant of ``spec`` into Triton's cache.

    Args:
        spec: a YAML file, a Python module or file with declared spaces, or spaces.
        jobs: processes; by default as many as this process has cores, at most one per variant.
        targets: compile for these instead of those that the spec names: ``sm_80``, ``sm_90``, ``sm_100``, ``gfx942``, ...
        values: compile what kernbench's own engine runs (as far as TTIR) instead of the device's binaries.
        cache_dir: where to, instead of Triton's own cache (``TRITON_CACHE_DIR``, else ``~/.triton/cache``).
        progress: called with every outcome as it comes.

    Returns:
        the outcomes. A failure does not raise: see :meth:`Report.raise_if_failed`.

    Raises:
        ConfigError: the spec is wrong.
    """
    if isinstance(spec, (str, Path)):
        spaces: Iterable[Space] = read_spaces(spec)
    else:
        spaces = [spec] if isinstance(spec, Space) else spec
    todo = variants(spaces, targets)
    return compile_all(todo, jobs=jobs, cache_dir=cache_dir, values=values, progress=progress)


def compile_all(
    todo: Sequence[Variant],
    *,
    jobs: int | None = None,
    cache_dir: str | Path | None = None,
    values: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Compile these variants; see :func:`precompile`."""
    begin = time.perf_counter()
    jobs = max(1, min(jobs or _cores(), len(todo)))
    cache = None if cache_dir is None else str(resolved(cache_dir))
    done: dict[str, Compilation] = {}
    for outcome in _run(list(todo), jobs, cache, values):
        done[outcome.name] = outcome
        if progress is not None:
            progress(outcome)
    ordered = _refuse_shared([done[variant.name] for variant in todo])
    return Report(tuple(ordered), time.perf_counter() - begin, jobs)


def _run(todo: list[Variant], jobs: int, cache: str | None, values: bool) -> Iterator[Compilation]:
    """Outcomes as they come."""
    while todo:
        suspects: list[Variant] = []
        with _pool(jobs, cache) as pool:
            waiting = iter(todo)
            running: dict[Future[Compilation], Variant] = {}
            left = {variant.name: variant for variant in todo}
            try:
                while True:
                    # No more in flight than processes, so that few are under suspicion when one dies.
                    while len(running) < jobs and (variant := next(waiting, None)) is not None:
                        running[pool.submit(compile_variant, variant, values)] = variant
                    if not running:
                        break
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        outcome = future.result()
                        del left[running.pop(future).name]
                        yield outcome
            except BrokenProcessPool:
                suspects = [variant for variant in left.values() if variant in running.values()] or [*left.values()][:1]
        for variant in suspects:
            del left[variant.name]
            yield _alone(variant, cache, values)
        todo = list(left.values())


def _alone(variant: Variant, cache: str | None, values: bool) -> Compilation:
    """Compile in a process of its own; if that dies, this variant is what kills it."""
    with _pool(1, cache) as pool:
        try:
            return pool.submit(compile_variant, variant, values).result()
        except BrokenProcessPool:
            return Compilation(
                variant.name, FAILED, 0.0, (), "the compiler crashed: its process died without a Python error"
            )


@contextmanager
def _pool(jobs: int, cache: str | None) -> Iterator[ProcessPoolExecutor]:
    """Processes that compile. What interrupts the block ends them at once, with what they are compiling."""
    given = cache, surroundings_now(), os.environ.get(TOLD, "")
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=begin_worker, initargs=given)
    try:
        with leaving_none(0.0, unless=lambda: True), ending_signals():
            yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _refuse_shared(outcomes: list[Compilation]) -> list[Compilation]:
    """Two different programs under one entry of the cache: whichever is compiled first is run for both."""
    first: dict[str, tuple[str, Compilation]] = {}
    checked = []
    for outcome in outcomes:
        for entry, identity in outcome.entries:
            known, owner = first.setdefault(entry, (identity, outcome))
            if known != identity:
                outcome = replace(
                    outcome,
                    status=FAILED,
                    error=f"shares the cache entry {entry[:12]} with {owner.name}, although their constants differ: "
                    "Triton writes constants into its key as text. Tell them apart by another parameter or name",
                )
                break
        checked.append(outcome)
    return checked


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
