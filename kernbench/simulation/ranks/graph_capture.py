"""What a host enqueues while it captures a graph, to be enqueued again as one: CUDA graphs (ADR 0112).

A capture is a list of steps. While it is open, what would be put on a stream becomes a step instead. Values are computed
then, too, without effect on memory that was there before; a replay computes them again, in the same memory. To the host a
replay is one launch: what the graph consists of follows on the device without it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

import torch

from kernbench.cost.work import Cost
from kernbench.errors import KernbenchError
from kernbench.order import GraphOrder, RankOrder
from kernbench.sim_engine.operation import Operation, is_default
from kernbench.simulation.ranks.accelerator_errors import cuda_error
from kernbench.simulation.ranks.captured_streams import CapturedStreams, Known

NOT_PERMITTED = "operation not permitted when stream is capturing"
"""What CUDA says when a host waits for a device, or looks at its memory, during a capture."""

INVALIDATED = "operation failed due to a previous error during capture"
"""What it says at the end of such a capture."""

CAPTURED_EVENT = "operation not permitted on an event last recorded in a capturing stream"
"""What it says when a host waits for a moment of the graph."""

OUTSIDE = "operation would make the legacy stream depend on a capturing blocking stream"
"""What it says of work on the default stream, which no capture reaches."""

UNJOINED = "capturing stream has unjoined work"
"""What it says at the end of a capture that has work on a stream which the first one has not waited for."""

ISOLATED = "dependency created on uncaptured work in another stream"
"""What it says when a stream of the capture waits for an event of work that is not captured."""

FOREIGN_GENERATOR = (
    "Attempt to increase offset for a CUDA generator not in capture mode: register the generator with the graph before "
    "the capture (CUDAGraph.register_generator_state)."
)
"""What it says of random numbers from a generator that the graph does not know."""


FOREIGN_STATE = (
    "random numbers of a captured graph from a state that the program has read outside of this capture: a replay goes on from "
    "the state that the generator has then. Read it (get_rng_state) within the capture"
)
"""What is said of a draw for which no replay has the state."""


class Recorded(Protocol):
    """The memory of one recording (:class:`kernbench.torch_backend.gpu.memory.captured_memory.RecordedMemory`)."""

    pool: Any
    memories: list[Any]

    def alias(self, value: Any) -> Any:
        """A value for the recording."""

    def expect(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The recording has tensors that are not in the pool yet."""

    def hold_expected(self) -> None:
        """They are now, if they are to be."""

    def forget(self) -> bool:
        """The recording is gone."""


class CapturingHost(Protocol):
    """The host that captures (:class:`kernbench.simulation.ranks.hosts.Host`)."""

    rank: int | None
    stream: str
    clock: float
    order: RankOrder | None

    @property
    def tails(self) -> Mapping[str, Operation]:
        """The last operations of its streams."""

    def let_wait(self, name: str, operations: Iterable[Operation]) -> None:
        """What is enqueued next on a stream starts after ``operations``."""

    def launching_graph(self, overhead: float) -> AbstractContextManager[None]:
        """For the length of a block, launches are those of a graph."""


class PostedAgain(Protocol):
    """What stands for a collective in a replay."""

    def wait(self) -> object:
        """What is enqueued next on the current stream starts after it."""


class GraphCapture:
    """The steps of one graph.

    Attributes:
        stream: on which the capture began; a replay has what was on it on the stream that it is launched on.
        first_node: the number of autograd's node that is the first one of the capture.
        memory: what it has of its pool.
        steps: what a replay does, in order.
        nodes: kernels and copies among them.
        is_empty: whether nothing has been put on a stream.
        works: by collective of the capture, the one that stands for it in the present replay.
        posted: collectives of the capture.
        kept: by storage, what was in memory that the capture has written (:mod:`.capture_rollback`).
        random: the generators that it may draw from, by identity, with the states that they had when it began.
        states: by generator, the states of it that the program has read during the capture, each with the one that the present
            replay has had there.
        foreign: the generators that have a state from outside of the capture.
        broken: whether something was not permitted.
        order: what happens before what in a replay; None: no listener.
        streams: those that belong to it.
    """

    def __init__(self, stream: str, memory: Recorded, order: GraphOrder | None = None, first_node: int = 0) -> None:
        self.stream = stream
        self.streams = CapturedStreams(stream)
        self.first_node = first_node
        self.memory = memory
        self.order = order
        self.steps: list[Callable[[], object]] = []
        self.nodes = 0
        self.is_empty = True
        self.works: dict[Operation, PostedAgain] = {}
        self.posted: list[Operation] = []
        self.kept: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self.random: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self.states: dict[int, list[tuple[torch.Tensor, list[torch.Tensor]]]] = {}
        self.foreign: set[int] = set()
        self.broken = False

    def may_draw(self, generator: torch.Generator) -> None:
        """A generator belongs to the graph: what the capture draws from it, it has not drawn when the capture ends."""
        self.random[id(generator)] = generator, generator.get_state()

    def draw(self, generator: object) -> None:
        """Raise what CUDA says of a generator that does not belong to the graph."""
        if id(generator) not in self.random:
            raise RuntimeError(FOREIGN_GENERATOR)
        if id(generator) in self.foreign:
            self.broken = True
            raise KernbenchError(FOREIGN_STATE)

    def read_state(self, generator: torch.Generator) -> torch.Tensor:
        """The program reads a generator's state; a replay reads the one that it has there then."""
        state = generator.get_state()
        now = [state]
        self.states.setdefault(id(generator), []).append((state, now))

        def read_again() -> None:
            now[0] = generator.get_state()

        self.add(read_again)
        return state

    def put_state(
        self, generator: torch.Generator, state: torch.Tensor, same: Callable[[torch.Tensor, torch.Tensor], bool]
    ) -> None:
        """The program puts a state into a generator: a replay puts what it has read there, where the capture has read it."""
        generator.set_state(state)
        self.foreign.discard(id(generator))
        for read, now in reversed(self.states.get(id(generator), [])):
            if same(read, state):
                self.add(functools.partial(_put_again, generator, now))
                return
        self.foreign.add(id(generator))

    def add(self, step: Callable[[], object]) -> None:
        """Have a step taken, after those before it, whenever the graph is replayed."""
        self.steps.append(step)
        if self.order is not None:
            self.order.captured()

    def forget(self) -> bool:
        """The graph is gone, whatever else holds this. Whether it was the last of its pool."""
        self.steps.clear()
        self.works.clear()
        self.posted.clear()
        self.kept.clear()
        return self.memory.forget()

    def forbid(self, words: str = NOT_PERMITTED) -> NoReturn:
        """Raise what CUDA says of what it does not permit now. The capture is lost."""
        self.broken = True
        raise cuda_error(words)

    def work(self, name: str, stream: str) -> None:
        """Something is put on a stream. Raises KernbenchError if that does not belong to the capture: on hardware it runs at
        once there, and no replay has it."""
        if not self.streams.work(stream):
            self.broken = True
            raise KernbenchError(
                f"{name} during the capture of a graph, on {_told(stream)}, which has waited for no stream of the capture: on "
                "hardware it runs at once, and no replay does it again. Let that stream wait for the capture's first, and the "
                "capture's for it (wait_stream)"
            )
        self.is_empty = False

    def wait(self, name: str, moment: Known | None, what: str) -> None:
        """A stream waits for a moment, or for ``what`` is not captured (None). Raises what CUDA says if a stream of the capture
        waits for that."""
        if moment is not None:
            self.streams.wait(name, moment)
        elif name in self.streams:
            self.broken = True
            raise cuda_error(ISOLATED, f"{_told(name)} belongs to the capture, and waits for {what}, which does not\n")

    def require_joined(self) -> None:
        """Raise what CUDA says at the end of a capture that has work which its first stream has not waited for."""
        unjoined = self.streams.unjoined()
        if unjoined:
            names = ", ".join(map(_told, unjoined))
            raise cuda_error(
                UNJOINED, f"{_told(self.stream)}, on which the capture began, has not waited for {names}\n"
            )

    def enqueue(
        self, enqueue: Callable[..., Operation], host: CapturingHost, name: str, cost: Cost | None, sip: int,
        cost_then: Callable[[], Cost] | None = None, again: Callable[[], object] | None = None,
    ) -> Operation:  # fmt: skip
        """An operation that will be on the host's current stream when the graph is replayed; it has no waiter now.

        Args:
            cost_then: what it costs at each replay, where that depends on values; None: as now.
            again: puts it there, where that needs nothing of this; None: ``enqueue`` does.
        """
        if cost is None:
            self.forbid()
        stream = host.stream
        self.work(name, stream)
        self.nodes += 1
        if again is None:
            again = lambda: enqueue(host, name, cost if cost_then is None else cost_then(), sip=sip)  # noqa: E731
        self.add_on_stream(host, again)
        op = Operation(name, "math", host.rank, sip, stream, host.clock, 0.0)
        op.start = op.end = host.clock
        return op

    def name(self, host: CapturingHost, stream: str) -> str:
        """The name that a stream of the capture has in a replay."""
        return host.stream if stream == self.stream else stream

    def add_on_stream(self, host: CapturingHost, step: Callable[[], object]) -> None:
        """Have a step taken, in each replay, on the stream of the capture that is the host's now."""
        stream = host.stream
        self.add(step if stream == self.stream else functools.partial(self._on_stream, host, stream, step))

    def _on_stream(self, host: CapturingHost, stream: str, step: Callable[[], object]) -> None:
        """Take a step on a stream of the capture."""
        before = host.stream
        if stream != self.stream:
            host.stream = stream
        try:
            step()
        finally:
            host.stream = before

    def wait_for_works(self, host: CapturingHost, operations: Sequence[Operation]) -> None:
        """What comes next on the host's stream comes, in a replay, after what stands for these collectives then."""
        self.add_on_stream(host, lambda: self._wait_again(host, operations))

    def _wait_again(self, host: CapturingHost, operations: Sequence[Operation]) -> None:
        """In a replay: wait for what stands for collectives of the capture now, and for what follows them on their streams."""
        for op in operations:
            if op in self.works:
                self.works[op].wait()
            elif op.stream in host.tails:
                host.let_wait(host.stream, (host.tails[op.stream],))

    def replay(self, host: CapturingHost, overhead: float) -> None:
        """Take all steps; the host pays ``overhead`` s."""
        self.works.clear()
        with host.launching_graph(overhead):
            if self.order is None or host.order is None:
                for step in self.steps:
                    step()
                return
            with host.order.replay(self.order, host.stream):
                for place, step in zip(self.order.places, self.steps, strict=True):
                    self.order.captured_at = place
                    step()


def _put_again(generator: torch.Generator, now: list[torch.Tensor]) -> None:
    """Put the state that the present replay has read."""
    generator.set_state(now[0])


def _told(stream: str) -> str:
    """A stream, in words."""
    return "the default stream" if is_default(stream) else stream
