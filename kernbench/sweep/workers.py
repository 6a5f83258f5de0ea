"""Where points run: here, on a local Dask cluster, or on that of a scheduler's address.

What a point is does not matter here: it has a place and a key (:class:`Keyed`), and a function makes its outcome.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kernbench.child_processes import end_children
from kernbench.environment_variables import variables_kept
from kernbench.errors import ConfigError
from kernbench.grid import Point
from kernbench.sweep.outcome import FAILED, Outcome


class Keyed(Protocol):
    """A point, as far as it matters where it runs."""

    @property
    def index(self) -> int:
        """Its place in the grid."""

    @property
    def key(self) -> str:
        """What the journal knows it by."""

    @property
    def point(self) -> Point:
        """The values of the axes."""


T = TypeVar("T", bound=Keyed)
Run = Callable[[T], Outcome]
"""Makes the outcome of a point, whatever happens; a function at the top of a module, so that another process finds it."""


def run_here(tasks: Sequence[T], run: Run[T]) -> Iterator[Outcome]:
    """One after the other in this process; for debugging, and where Dask is not installed."""
    for task in tasks:
        yield run(task)


def run_side_by_side(tasks: Sequence[T], run: Run[T], jobs: int) -> Iterator[Outcome]:
    """Outcomes as they come, ``jobs`` at a time, by threads: for points that are processes of their own."""
    with ThreadPoolExecutor(jobs, thread_name_prefix="kernbench-point") as pool:
        futures = [pool.submit(run, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
            end_children()


def run_on_dask(tasks: Sequence[T], run: Run[T], *, scheduler: str | None, jobs: int | None) -> Iterator[Outcome]:
    """Outcomes as they come.

    A point whose worker dies is run again elsewhere; one that has killed several workers is a failed point.

    Raises:
        ConfigError: distributed is not installed, or there is no answer at the address.
    """
    with connected(scheduler, jobs) as (distributed, client):
        path = modules_path()
        futures = {
            client.submit(_run_remotely, run, task, path, key=f"kernbench-{task.key}", pure=False): task
            for task in tasks
        }
        for future in distributed.as_completed(futures, loop=client.loop):
            lost = future.exception()
            task = futures[future]
            if lost is None:
                yield future.result()
            else:
                yield Outcome(task.index, task.key, FAILED, {}, f"{type(lost).__name__}: {lost}")
            future.release()


@contextmanager
def connected(scheduler: str | None, jobs: int | None = None) -> Iterator[tuple[Any, Any]]:
    """The module ``distributed`` and a client of a scheduler; None: of a cluster of ``jobs`` processes on this machine.

    Raises:
        ConfigError: distributed is not installed, or there is no answer at the address.
    """
    try:
        import distributed
    except ImportError:
        without = "use jobs=0" if scheduler is None else "leave out the scheduler"
        raise ConfigError(f"this needs Dask: install kernbench[sweep], or {without}") from None
    with ExitStack() as stack:
        address: Any = scheduler
        if scheduler is None:
            address = stack.enter_context(_cluster_of_this_machine(distributed, jobs))
        try:
            client = stack.enter_context(distributed.Client(address, set_as_default=False))
        except (OSError, TimeoutError, ValueError) as error:
            raise ConfigError(f"no Dask scheduler answers at {scheduler}: {error}") from None
        yield distributed, client


@contextmanager
def _cluster_of_this_machine(distributed: Any, jobs: int | None) -> Iterator[Any]:
    """A Dask cluster of ``jobs`` processes that only this run can use.

    A peer of a Dask scheduler runs code as its owner, so every connection is authenticated by keys of this run (TLS, in
    memory alone), and all that listens is bound to the loopback address: Dask's own web server too, which has no pages. Its
    files are in a folder of this run, which others cannot read (mode 0700).
    """
    import dask

    try:
        security = distributed.Security.temporary()
    except ImportError:
        raise ConfigError(
            "a cluster of this machine needs the package cryptography, for connections that no other user of the machine "
            "can make: install kernbench[sweep], or use jobs=0"
        ) from None
    pages: dict[str, object] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
    with (
        tempfile.TemporaryDirectory(prefix="kernbench-dask-") as folder,  # what spills is pickled, and read again
        dask.config.set({**pages, "temporary-directory": folder}),  # it makes one of its own, and leaves it
        variables_kept(),  # Dask sets some for its workers, here too
        # One thread per process: a simulation changes the state of torch in its process while it runs.
        distributed.LocalCluster(
            n_workers=jobs, threads_per_worker=1, processes=True, security=security, host="127.0.0.1",
            dashboard_address="127.0.0.1:0", silence_logs="CRITICAL", local_directory=folder,
        ) as cluster,
    ):  # fmt: skip
        yield cluster


def modules_path() -> list[str]:
    """Where modules are found here, for workers (:func:`find_modules`)."""
    return [*(entry for entry in sys.path if entry and Path(entry).is_dir()), str(Path.cwd())]


def find_modules(path: Sequence[str]) -> None:
    """In a worker: find modules where the client found them, as far as they are there."""
    sys.path.extend(entry for entry in path if entry not in sys.path)


def _run_remotely(run: Run[T], task: T, path: list[str]) -> Outcome:
    find_modules(path)
    return run(task)
