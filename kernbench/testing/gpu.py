"""``--kernbench-gpu`` and the mark of the same name: tests that want a GPU have a simulated one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from kernbench.errors import KernbenchError
from kernbench.runtime_api.adoption import simulated_gpu
from kernbench.testing.table import RAISED

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


class SessionGpu:
    """The simulated GPU of a whole run of pytest: conftests and test modules find it when they are imported.

    Attributes:
        ctx: the context of its simulation.
        system: whose GPU it is.
    """

    def __init__(self, system: str) -> None:
        self.system = system
        self._open = ExitStack()
        try:
            self.ctx = self._open.enter_context(simulated_gpu(system))
        except KernbenchError as error:
            raise pytest.UsageError(f"--kernbench-gpu {system}: {error}") from None

    def close(self) -> None:
        """Put everything back. Idempotent."""
        self._open.close()

    def run(self) -> Iterator[None]:
        """Around a test: what it has launched ends with it, and fails it."""
        result = yield
        self.ctx.synchronize()
        return result

    def header(self) -> str:
        """For the head of pytest's report."""
        return f"simulated GPU: {_name(self.ctx)} of {self.ctx.topology.system.name}"

    def report(self, terminal: Any) -> None:
        """What has to be said in the end: what no model knows, what was assumed."""
        from kernbench.trace.notes import notes_of
        from kernbench.trace.rank_times import rank_times

        notes = notes_of(self.ctx.simulation, rank_times(self.ctx.simulation))
        if notes:
            terminal.section("simulated GPU")
            for note in notes:
                terminal.line(note)


def _name(ctx: RuntimeContext) -> str:
    device = ctx.topology.device
    return device.product or device.description or device.name


def gpu_of(request: pytest.FixtureRequest, session: SessionGpu | None) -> Iterator[RuntimeContext]:
    """A context in which the test is rank 0: the run's, or one of the system that the test's mark names."""
    from kernbench.testing.checks import read_mark

    if session is not None:
        yield session.ctx
        return
    with simulated_gpu(**read_mark("kernbench_gpu", request.node.get_closest_marker("kernbench_gpu"))) as ctx:
        yield ctx
        try:
            ctx.synchronize()
        except KernbenchError as error:
            if error is not request.node.stash.get(RAISED, None):  # which the test has failed with
                raise
