"""``--kernbench-distributed``: test cases of many processes run on simulated ranks, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kernbench.errors import KernbenchError
from kernbench.runtime_api.context import simulate
from kernbench.testing.distributed_cases import SimulatedTestCases, patched_classes, see_devices
from kernbench.testing.ranks import RANK
from kernbench.topology import TopologyHandle, resolve_topology
from kernbench.torch_backend.environment import Environment
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.output import rank_streams


class DistributedTests:
    """From :meth:`open` to :meth:`close` torch's test cases use simulated ranks.

    Args:
        system: name or file of the system that they run on; its GPUs are those that tests see.

    Raises:
        pytest.UsageError: there is no such system.
    """

    def __init__(self, system: str) -> None:
        try:
            self._system = resolve_topology(system)
        except KernbenchError as error:
            raise pytest.UsageError(f"--kernbench-distributed {system}: {error}") from None
        self._patches = Patches()
        self._cases = SimulatedTestCases(self._run)

    def open(self) -> None:
        """Before the first test module is imported: torch's test modules ask for GPUs when they are.

        Raises:
            pytest.UsageError: torch's test cases cannot be imported.
        """

        with simulate(self._system) as ctx:
            see_devices(self._patches, ctx.simulation)
        try:
            self._cases.install()
        except ImportError as error:
            self._patches.undo()
            raise pytest.UsageError(f"--kernbench-distributed: torch's test cases: {error}") from error

    def close(self) -> None:
        """Put everything back. Idempotent."""
        self._cases.undo()
        self._patches.undo()

    def _run(self, body: Callable[[int], object], count: int, per_rank_modules: Sequence[str]) -> None:
        def configure(environment: Environment) -> None:
            modules = environment.state.modules
            modules.shared = not per_rank_modules
            modules.classes = () if modules.shared else patched_classes()
            environment.end_alone = bool(per_rank_modules)
            environment.state.variables = lambda rank: {}  # a test's processes are not launched by torchrun

        with simulate(self._system_for(count)) as ctx, rank_streams(ctx.simulation.scheduler.current_rank, RANK):
            ctx.multiprocessing.configure = configure
            ctx.multiprocessing.spawn(body, nprocs=count, per_rank_modules=per_rank_modules)

    def _system_for(self, count: int) -> TopologyHandle:
        """The system, with as many nodes as ``count`` ranks need."""
        node = self._system.topology_obj.sip_count
        return self._system if count <= node else self._system.with_nodes(-(-count // node))
