"""One stream of a rank waits for another: ``cudaEventRecord`` and ``cudaStreamWaitEvent``."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.order import Moment
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.ranks.captured_streams import Known
from kernbench.simulation.ranks.graph_capture import GraphCapture
from kernbench.simulation.ranks.hosts import Host


class StreamMark:
    """A moment on a stream: its end as it was when it was recorded, in a capture also at each replay.

    Attributes:
        after: the operations that have ended by then.
        clock: when it was recorded, s of virtual time; None: it has not been.
        moment: what has happened by then; None: no listener.
        captured: the graph in whose capture it was recorded.
        known: what of that graph comes before it; None: its stream does not belong to the capture.
    """

    def __init__(self) -> None:
        self.after: Sequence[Operation] = ()
        self.clock: float | None = None
        self.moment: Moment | None = None
        self.captured: GraphCapture | None = None
        self.known: Known | None = None

    @classmethod
    def now(cls, host: Host, stream: str) -> StreamMark:
        """What is on a stream now."""
        made = cls()
        made.record(host, stream)
        return made

    def record(self, host: Host, stream: str) -> None:
        """It is what is on a stream now."""
        self._record(host, stream)
        graph = host.capture
        if graph is not None:
            graph.add(lambda: self._record(host, graph.name(host, stream)))

    def let_wait(self, host: Host, stream: str, what: str = "an event that was recorded outside of it") -> None:
        """What is enqueued next on ``stream`` starts after it; ``what`` says of what a capture cannot know."""
        graph = host.capture
        if graph is None:
            self._let_wait(host, stream)
            return
        if self.clock is not None:
            graph.wait(stream, self.known if self.captured is graph else None, what)
        host.let_wait(stream, self.after)
        graph.add(lambda: self._let_wait(host, graph.name(host, stream)))

    def _record(self, host: Host, stream: str) -> None:
        self.after, self.clock, self.captured = host.before(stream), host.clock, host.capture
        self.known = None if host.capture is None else host.capture.streams.moment(stream)
        self.moment = None if host.order is None else host.order.mark(stream)

    def _let_wait(self, host: Host, stream: str) -> None:
        host.let_wait(stream, self.after)
        if host.order is not None:
            host.order.stream_waits(stream, (self.moment,))


def let_stream_wait(host: Host, stream: str, other: str) -> None:
    """What is enqueued next on ``stream`` starts after what is on ``other`` now; in a capture, also in each replay."""
    StreamMark.now(host, other).let_wait(host, stream, f"what is on {other}")
