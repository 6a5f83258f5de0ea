"""Where points run: here, on a local Dask cluster, or on that of a scheduler's address.

What a point is does not matter here: it has a place and a key (:class:`Keyed`), and a function makes its outcome.
"""

from __future__ import annotations

import errno
import logging
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kernbench.child_processes import threads_with_children
from kernbench.environment_variables import variables_kept
from kernbench.errors import ConfigError, KernbenchError
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
    with threads_with_children(jobs) as pool:
        for future in as_completed([pool.submit(run, task) for task in tasks]):
            yield future.result()


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
    without = "use jobs=0" if scheduler is None else "leave out the scheduler"
    try:
        import distributed
    except ImportError:
        raise ConfigError(f"this needs Dask: install kernbench[sweep], or {without}") from None
    except Exception as error:  # it looks at the machine
        raise KernbenchError(f"Dask cannot be imported here: {type(error).__name__}: {error}: {without}") from error
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
    logging.getLogger("asyncio").addFilter(_not_of_dask)
    pages: dict[str, object] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
    with (
        tempfile.TemporaryDirectory(prefix="kernbench-dask-") as folder,  # what spills is pickled, and read again
        dask.config.set({**pages, "temporary-directory": folder}),  # it makes one of its own, and leaves it
        variables_kept(),  # Dask sets some for its workers, here too
    ):
        try:
            # One thread per process: a simulation changes the state of torch in its process while it runs.
            cluster = distributed.LocalCluster(
                n_workers=jobs, threads_per_worker=1, processes=True, security=security, host="127.0.0.1",
                dashboard_address="127.0.0.1:0", silence_logs="CRITICAL", local_directory=folder,
            )  # fmt: skip
        except Exception as error:
            raise KernbenchError(_why_not_started(error)) from error
        except BaseException:  # its processes end with this one; to close what is half made fails
            for made in distributed.SpecCluster._instances:  # noqa: SLF001  all that Dask closes in the end
                made.shutdown_on_close = False
            raise
        with cluster:
            yield cluster


def _not_of_dask(record: logging.LogRecord) -> bool:
    """Whether asyncio has something to say that is not of Dask's own tasks, which are left alone when a signal ends a run."""
    error = record.exc_info[1] if record.exc_info else None
    frames = [] if error is None else traceback.walk_tb(error.__traceback__)
    return not any(frame.f_globals.get("__name__", "").startswith("distributed.") for frame, _ in frames)


_MORE = {errno.EMFILE: "allow more files (ulimit -n)", errno.EAGAIN: "allow more processes (ulimit -u)"}


def _why_not_started(error: BaseException) -> str:
    """The message of a cluster that could not be started, with what was wrong first."""
    first, seen = error, {id(error)}
    while (before := first.__cause__ or first.__context__) is not None and id(before) not in seen:
        seen.add(id(before))
        first = before
    what = _MORE.get(getattr(first, "errno", 0) or 0, "")
    return (
        f"Dask could not start its processes: {type(first).__name__}: {first}. "
        f"{f'{what.capitalize()}, or run' if what else 'Run'} one point after the other, with jobs=0"
    )


def modules_path() -> list[str]:
    """Where modules are found here, for workers (:func:`find_modules`)."""
    return [*(entry for entry in sys.path if entry and Path(entry).is_dir()), str(Path.cwd())]


def find_modules(path: Sequence[str]) -> None:
    """In a worker: find modules where the client found them, as far as they are there."""
    sys.path.extend(entry for entry in path if entry not in sys.path)


def _run_remotely(run: Run[T], task: T, path: list[str]) -> Outcome:
    find_modules(path)
    return run(task)
