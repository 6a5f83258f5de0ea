"""What happens before the host looks at a value: the one list of entry points, and what each of them costs.

Looking drains (invariant 3): what the value depends on has been computed first. Entry points that bring values to the host
are copies on the current stream, as on a GPU: the host waits for that stream, and for the copy. Those that make a view only
have the values computed, and take no time. A pending collective does not count: it completes when all its members have
arrived, which a rank that stopped here could prevent (ADR 0004).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from kernbench.cost.work import copy_cost
from kernbench.sim_engine import GraphEngine, Operation
from kernbench.simulation.launches.streams import Streams
from kernbench.simulation.matching.hooks import RunHooks
from kernbench.simulation.memory.storages import Block, StorageTable, Stored
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.time.wait_queue import Waits
from kernbench.simulation.values.deferred_launches import Values

ENTRY_POINTS: tuple[str, ...] = (
    "numpy", "data", "item", "tolist", "cpu", "is_nonzero", "equal", "allclose", "storage", "untyped_storage",
    "__getitem__", "__repr__", "__str__", "__format__", "__bool__", "__float__", "__int__", "__index__", "__complex__",
    "__array__", "__iter__", "__contains__", "__dlpack__", "__reduce_ex__", "__deepcopy__",
)  # fmt: skip
"""Every entry point through which the host looks at a value. Closed: a test compares it with torch's own list."""

COPIES = frozenset(ENTRY_POINTS) - {
    "data", "storage", "untyped_storage", "__getitem__", "__iter__", "__str__", "__deepcopy__",
}  # fmt: skip
"""Those that bring values to the host. The others make a view, and work without values too."""

_VERDICTS = frozenset({"equal", "allclose", "is_nonzero", "__contains__"})
"""Those of them that bring a verdict, not the tensor."""


@dataclass(eq=False, repr=False)
class HostReads:
    """The looks of one simulation's hosts at values."""

    engine: GraphEngine
    hosts: Hosts
    storages: StorageTable
    streams: Streams
    values: Values
    waits: Waits
    hooks: RunHooks | None

    def before(self, tensors: Iterable[torch.Tensor], name: str) -> None:
        """Drain what the values of ``tensors`` depend on; ``name``: the entry point of :data:`ENTRY_POINTS`."""
        for tensor in tensors:
            stored = self.storages.of(tensor)
            if self.hooks is not None:
                self.hooks.host_read(tensor, name)
            self.await_values(tensor, stored)
            if isinstance(stored, Block) and name in COPIES:
                self.to_host(stored.own_sip, 1 if name in _VERDICTS else tensor.nbytes)

    def await_values(self, tensor: torch.Tensor, stored: Stored | None) -> None:
        """Have what launches write into ``tensor`` computed; no virtual time passes. Raises what made one of them fail."""
        self.values.before_use((tensor,))
        if stored is not None and stored.last is not None:
            if stored.last.kind != "collective":
                self.waits.wait_for_values(stored.last)
            self.values.raise_failure_on(stored)

    @staticmethod
    def synchronizing(host: Host) -> None:
        """``host`` is about to wait for a GPU. Warns, or raises RuntimeError, as its program wants (``sync_debug``)."""
        if host.sync_debug > 1:
            raise RuntimeError("called a synchronizing CUDA operation")
        if host.sync_debug:
            warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=3)

    def to_host(self, sip: int | None, nbytes: int, *, waits: bool = True, pinned: bool = False) -> Operation:
        """A copy of ``nbytes`` from ``sip`` (None: the one that the host drives) to the host, on the stream that is current
        there; the host waits for it by default.

        ``pinned``: it is to memory that is.
        """
        host = self.hosts.current()
        if waits and host.capture is not None:
            host.capture.forbid()
        if waits and host.sync_debug:
            self.synchronizing(host)
        topology = self.engine.topology
        share = 1.0 if pinned else topology.device.host_link.pageable
        with host.driving(sip):
            cost = copy_cost(topology.host_route(host.sip, "d2h"), nbytes, share=share)
            op = self.streams.enqueue(host, "device to host", cost)
            if waits:
                self.finish_stream(host.stream)
            return op

    def finish_stream(self, name: str) -> None:
        """Wait for one of the streams of this rank, and for what it has to wait for."""
        host = self.hosts.current()
        if host.capture is not None:
            host.capture.forbid()
        with host.waiting_for((name,)) as operations:
            for op in operations:
                self.waits.wait(op)

    def before_copy(self, source: object) -> None:
        """``target.copy_(source)`` drains its source only. Draining the target would wait for a collective of another
        rank that this rank has yet to join, and deadlock (ADR 0005)."""
        if isinstance(source, torch.Tensor):
            self.await_values(source, self.storages.of(source))

    def synchronize(self, failed: Sequence[Operation], sip: int | None = None) -> None:
        """Wait for all streams of this rank on a SIP (None: on all), those of its groups too, and raise failures that have not
        been raised yet."""
        host = self.hosts.current()
        if host.capture is not None:
            host.capture.forbid()
        with host.waiting_for(host.streams_of(sip)) as operations:
            for op in operations:
                self.waits.wait(op)
        if failed:
            self.values.flush()
            for op in self.values.unobserved_failures(host):
                op.observed = True
                assert op.error is not None
                raise op.error
