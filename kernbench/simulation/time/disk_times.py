"""Files: what a node's storage takes to write and to read them (ADR 0131).

The ranks of a node share its storage. A rank that writes or reads waits until it is done: its host's clock moves, its device
goes on. Where the system describes no storage, files take no time, and the run says how much went by so.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from kernbench.sim_engine import Condition, GraphEngine
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.time.wait_queue import Waits

_WORTH_SAYING = 1 << 20  # bytes: a log file or a tokenizer is not


class Disks:
    """The storage of all nodes.

    Args:
        engine: lets bytes flow.
        hosts: who writes.
        waits: lets ranks wait.
    """

    def __init__(self, engine: GraphEngine, hosts: Hosts, waits: Waits) -> None:
        self._engine = engine
        self._hosts = hosts
        self._waits = waits
        self._untimed = {True: 0, False: 0}

    def move(self, nbytes: int, writes: bool) -> None:
        """The running rank's host writes (or reads) ``nbytes`` bytes of files, and waits for it."""
        host = self._hosts.current()
        engine, spec = self._engine, self._engine.topology.system.storage
        if spec is None:
            self._untimed[writes] += nbytes
            return
        node = engine.topology.node_of(host.sip)
        done = Condition(f"{'write' if writes else 'read'} of {nbytes:,} bytes", host.rank)

        def end(at: float) -> None:
            engine.fulfil_at(done, at + spec.latency)

        def begin() -> None:
            if nbytes:
                engine.start_flow([engine.storage_link(node, writes)], nbytes * self._alike(host, node), end, cap=inf)
            else:
                end(engine.now)

        engine.at(host.clock, begin)
        self._waits.wait(done)

    def _alike(self, host: Host, node: int) -> int:
        """How many ranks of its node do what this one does at the same time, itself included: those it stands for."""
        folding = self._hosts.folding
        if folding is None or host.rank is None:
            return 1
        sips = self._engine.topology.sips_of(node)
        there = [rank for rank in range(folding.world) if self._hosts.sips[rank] in sips]
        return max(sum(folding.representative(rank) == host.rank for rank in there), 1)

    def sentences(self) -> Iterator[str]:
        """What is to be said of a run."""
        written, read = self._untimed[True], self._untimed[False]
        if written + read >= _WORTH_SAYING:
            yield (
                f"files took no time ({written / 2**30:.3g} GiB of tensors written, {read / 2**30:.3g} GiB read): the system "
                "describes no storage (docs/systems.md)"
            )
