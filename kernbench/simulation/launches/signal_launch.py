"""Signals on a rank's stream: words that it raises at its peers, and words of its own that it waits for and takes down.

What ``put_signal``, ``wait_signal`` and ``barrier`` of torch's symmetric memory launch on hardware. A word is raised with
compare-and-swap from 0 to 1, so that no signal is lost: raising one that is not taken down yet waits for that.
Kernels of the program's own may use the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernbench.cost.work import LEAST
from kernbench.sim_engine import Condition, Operation
from kernbench.sim_engine.data_executor import Deferred
from kernbench.simulation.launches.kernel_launch import KernelLauncher
from kernbench.simulation.launches.signal_timing import SignalTiming
from kernbench.simulation.order.kernel_order import SignalOrder
from kernbench.simulation.ranks.locations import Location
from kernbench.simulation.time.deadlines import Deadlines
from kernbench.triton_engine.memory import write_epoch
from kernbench.triton_engine.signals import WORD, Party, Words


@dataclass(frozen=True, slots=True)
class Swap:
    """One compare-and-swap that is tried until it succeeds.

    Attributes:
        pad: ``[n]`` uint32 signal words of a rank.
        index: of the word in it.
        expected, value: what it must be, and becomes.
        words: who wrote the pad's words.
        waits_for: what has to happen, for people.
        sender: the rank whose signal it takes down; None: it takes none.
    """

    pad: NDArray[np.uint32]
    index: int
    expected: int
    value: int
    words: Words
    waits_for: str
    sender: int | None = None

    @property
    def address(self) -> int:
        """Of the word, in this process."""
        return int(self.pad.ctypes.data) + self.index * WORD

    def foreign(self) -> int | None:
        """A rank that has raised the signal which is to be taken down, and is not the one that it is taken for."""
        if self.sender is None or self.pad[self.index] != self.expected:
            return None
        writers = self.words.writers(self.index)
        return None if not writers or self.sender in writers else min(writers)

    def try_once(self, party: Party, order: SignalOrder | None) -> bool:
        """Whether the word was as expected, and has been swapped."""
        offset = (self.index * WORD,)
        self.words.read(party, offset)
        if self.pad[self.index] != self.expected:
            return False
        self.pad[self.index] = self.value
        if order is not None:
            order.swapped(self.address, sem="acquire" if self.expected else "release")
        self.words.write(party, offset)
        write_epoch.bump()
        return True


class SignalLaunch:
    """Chains of swaps: those of a chain one after the other, the chains side by side, as the threads of a block."""

    touches: frozenset[int] = frozenset()

    def __init__(
        self,
        timing: SignalTiming,
        op: Operation,
        chains: Sequence[Sequence[Swap]],
        after: Sequence[Operation],
        at: Location,
        order: SignalOrder | None = None,
        remark: Callable[[str], object] = str,
    ) -> None:
        self.op = op
        self._order = order
        self._remark = remark
        self.rank = op.rank
        self.after = after
        self.batch_key: Hashable = id(self)
        self.errors: Sequence[BaseException | None] | None = None
        self._timing = timing
        self._chains = [list(chain) for chain in chains]
        self._party = Party([op])
        self._at = at

    def start_batch(self, batch: Sequence[Deferred]) -> SignalLaunch:
        """Swap what can be swapped now."""
        self.run()
        return self

    def run(self) -> bool:
        """Swap as far as possible; whether anything was swapped."""
        swapped = False
        for chain in self._chains:
            while chain:
                other = chain[0].foreign()
                if not chain[0].try_once(self._party, self._order):
                    break
                if other is not None:
                    self._remark(self._mistaken(chain[0], other))
                del chain[0]
                swapped = True
        self._chains = [chain for chain in self._chains if chain]
        if not self._chains:
            self.errors = [None]
            if self._order is not None:
                self._order.ended()
            self._timing.finished(self._party, [LEAST])
        return swapped

    def _mistaken(self, swap: Swap, other: int) -> str:
        return (
            f"{self.op.name} of rank {self.rank}, at {self._at}, took rank {other}'s signal for one of rank {swap.sender}: "
            "groups that meet on one buffer share its signal pad, in which a channel of each begins at the same word. Give "
            "each group channels or a buffer of its own"
        )

    def describe_wait(self) -> str:
        """What is missing, and where the program asked for it."""
        return "; ".join(map(self._wait, self._chains[:8])) + f"\n    at {self._at}"

    def _wait(self, chain: Sequence[Swap]) -> str:
        told = "" if self._order is None else self._order.history(chain[0].address)
        return f"it waits for {chain[0].waits_for}" + (f" ({told})" if told else "")


def submit_signals(
    kernels: KernelLauncher,
    deadlines: Deadlines,
    name: str,
    chains: Sequence[Sequence[Swap]],
    at: Location,
    timeout: float | None,
    remark: Callable[[str], object],
) -> Operation:
    """Enqueue swaps on the current stream of the rank that runs; its host goes on.

    Args:
        name: of the operation.
        at: where the program asked for it.
        timeout: in virtual seconds from now, after which it fails with a RuntimeError; None: never.
        remark: takes what the summary is to say.
    """
    host = kernels.hosts.current()
    awaited = host.awaiting_values()
    op = kernels.streams.enqueue(host, name, None, deferred=True)
    order = None
    if host.order is not None:
        order = SignalOrder(kernels.engine.memory, kernels.hosts, host.order.kernel(op.moment), name, at)
    launch = SignalLaunch(kernels.signal_timing, op, chains, awaited, at, order, remark)
    kernels.executor.submit(launch)
    host.unsettled.setdefault(op.stream, []).append(op)
    if timeout is not None:
        came = Condition(f"timeout of {op.name}", op.rank)  # deadlines do not hold for operations that have started
        op.when_resolved(came.fulfil)
        deadlines.add(came, op.enqueue + timeout, True, _expire, kernels, launch, timeout)
    return op


def _expire(came: Condition, at: float, kernels: KernelLauncher, launch: SignalLaunch, timeout: float) -> None:
    error = RuntimeError(
        f"rank {launch.rank}: {launch.op.name} has timed out after {round(timeout * 1000)} ms (virtual time): "
        f"{launch.describe_wait()}"
    )
    kernels.executor.withdraw(launch.op, error, at)
