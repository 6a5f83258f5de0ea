"""When values are computed: launches are deferred until a value is read, or something else needs their memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kernbench.sim_engine import Condition, DataExecutor, MemoryRange, Operation
from kernbench.simulation.memory.storages import Stored
from kernbench.simulation.memory.tensor_queries import storage_of
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.time.wait_queue import Waits


class Values:
    """The values of one simulation's launches.

    Args:
        executor: keeps the launches.
        hosts: whose they are.
        waits: blocks those that need them.
    """

    def __init__(self, executor: DataExecutor, hosts: Hosts, waits: Waits) -> None:
        self._executor = executor
        self._hosts = hosts
        self._waits = waits

    def flush(self) -> None:
        """Have the values of everything that this rank has launched computed."""
        if len(self._executor):
            host = self._hosts.current()
            self._await(host, self._executor.kept(host.rank))

    def before_use(self, tensors: Iterable[torch.Tensor]) -> None:
        """Kept launches that touch these tensors run first: a rank's operations take effect in program order."""
        executor = self._executor
        if len(executor) and executor.touches_any(id(storage_of(tensor)) for tensor in tensors):
            self.flush()

    def settle_stream(self) -> None:
        """What this rank's current stream has to do first has been computed; its host's clock stays where it is.

        For operations that torch computes at once: a launch before them may wait for another writer still.
        """
        host = self._hosts.current()
        behind = [*host.unsettled.pop(host.stream, ()), *host.awaiting_values()]
        for stream in [stream for stream, ops in host.unsettled.items() if all(op.executed for op in ops)]:
            del host.unsettled[stream]
        if not all(op.executed for op in behind):
            self._await(host, behind)
        for op in behind:
            if op.error is not None and not op.observed:
                op.observed = True
                raise op.error

    def _await(self, host: Host, operations: list[Operation]) -> None:
        there = Condition("values", host.rank)
        self._executor.when_executed(operations, there)
        self._waits.block_on(there)

    def unobserved_failures(self, host: Host | None = None) -> list[Operation]:
        """Failed operations (of ``host``) that have not been waited for."""
        return [op for op in self._executor.failed if not op.observed and (host is None or op.rank == host.rank)]

    def raise_failure_on(self, stored: Stored) -> None:
        """Raise what made an earlier operation on this memory fail, if that is not raised yet: its values mean nothing."""
        mine = stored.allocation
        if mine is None or not self._executor.failed:
            return
        for op in self.unobserved_failures(self._hosts.current()):
            if any(isinstance(it, MemoryRange) and it.space == mine.space and it.sip == mine.sip
                   and mine.address <= it.address < mine.address + max(mine.nbytes, 1) for it in op.operands):  # fmt: skip
                self._waits.wait(op)
