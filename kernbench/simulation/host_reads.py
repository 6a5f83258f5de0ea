"""What happens before the host looks at a value: the one list of entry points, and what each of them costs.

Looking drains (invariant 3): what the value depends on has been computed first. Entry points that bring values to the host
are copies on the current stream, as on a GPU: the host waits for that stream, and for the copy. Those that make a view only
have the values computed, and take no time. A pending collective does not count: it completes when all its members have
arrived, which a rank that stopped here could prevent (ADR 0004).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from kernbench.cost.work import copy_cost
from kernbench.errors import KernbenchError
from kernbench.sim_engine import GraphEngine, Operation
from kernbench.simulation.hooks import RunHooks
from kernbench.simulation.hosts import Hosts
from kernbench.simulation.storages import Block, StorageTable, Stored
from kernbench.simulation.streams import Streams
from kernbench.simulation.values import Values
from kernbench.simulation.waits import Waits

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


class HostReads:
    """The looks of one simulation's hosts at values."""

    def __init__(
        self,
        engine: GraphEngine,
        hosts: Hosts,
        storages: StorageTable,
        streams: Streams,
        values: Values,
        waits: Waits,
        hooks: RunHooks | None,
    ) -> None:
        self._engine = engine
        self._hosts = hosts
        self._storages = storages
        self._streams = streams
        self._values = values
        self._waits = waits
        self._hooks = hooks

    def before(self, tensors: Iterable[torch.Tensor], name: str) -> None:
        """Drain what the values of ``tensors`` depend on; ``name``: the entry point of :data:`ENTRY_POINTS`.

        Raises:
            KernbenchError: the values of a tensor on a SIP are wanted, and this simulation computes none.
        """
        for tensor in tensors:
            stored = self._storages.of(tensor)
            if name in COPIES and name != "__repr__":
                self.require_values(tensor, stored, name)
            if self._hooks is not None:
                self._hooks.host_read(tensor, name)
            self.await_values(tensor, stored)
            if isinstance(stored, Block) and name in COPIES:
                self.to_host(stored.memory.sip, 1 if name in _VERDICTS else tensor.nbytes)

    def require_values(self, tensor: torch.Tensor, stored: Stored | None, name: str) -> None:
        """Raise if ``tensor`` is on a SIP of a simulation that computes no values."""
        if tensor.is_meta or (not self._engine.enable_data and isinstance(stored, Block)):
            raise KernbenchError(
                f"{name}: the host looks at a value, but this context was made with enable_data=False and has none: "
                "a program whose control flow reads data needs enable_data=True"
            )

    def await_values(self, tensor: torch.Tensor, stored: Stored | None) -> None:
        """Have what launches write into ``tensor`` computed; no virtual time passes. Raises what made one of them fail."""
        self._values.before_use((tensor,))
        if stored is not None and stored.last is not None:
            if stored.last.kind != "collective":
                self._waits.wait_for_values(stored.last)
            self._values.raise_failure_on(stored)

    def to_host(self, sip: int, nbytes: int) -> Operation:
        """A copy of ``nbytes`` from ``sip`` to the host, on the current stream; the host waits for it."""
        host = self._hosts.current()
        cost = copy_cost(self._engine.topology.host_route(sip, "d2h"), nbytes)
        op = self._streams.enqueue(host, "device to host", cost, sip=sip)
        self.finish_stream(host.stream)
        return op

    def finish_stream(self, name: str) -> None:
        """Wait for one of the streams of this rank, and for what it was told to wait for."""
        host = self._hosts.current()
        for op in host.before(name):
            self._waits.wait(op)
        host.awaited.pop(name, None)

    def before_copy(self, source: object) -> None:
        """``target.copy_(source)`` drains its source only. Draining the target would wait for a collective of another
        rank that this rank has yet to join, and deadlock (ADR 0005)."""
        if isinstance(source, torch.Tensor):
            self.await_values(source, self._storages.of(source))

    def synchronize(self, failed: Sequence[Operation]) -> None:
        """Wait for all streams of this rank, those of its groups too, and raise what nobody has seen fail."""
        host = self._hosts.current()
        for op in list(host.tails.values()):
            self._waits.wait(op)
        host.awaited.clear()
        if failed:
            self._values.flush()
            for op in self._values.unobserved_failures(host):
                op.observed = True
                assert op.error is not None
                raise op.error
