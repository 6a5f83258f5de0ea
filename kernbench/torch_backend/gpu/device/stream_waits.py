"""One stream of a rank waits for another: ``cudaStreamWaitEvent`` on an event that is recorded at the same moment."""

from __future__ import annotations

from kernbench.simulation.ranks.hosts import Host


def let_stream_wait(host: Host, stream: str, other: str) -> None:
    """What is enqueued next on ``stream`` starts after what is on ``other`` now; in a capture, also in each replay."""
    graph = host.capture
    if graph is None:
        _wait(host, stream, other)
        return
    graph.wait(stream, graph.streams.moment(other), f"what is on {other}")
    host.let_wait(stream, host.before(other))
    graph.add(lambda: _wait(host, graph.name(host, stream), graph.name(host, other)))


def _wait(host: Host, stream: str, other: str) -> None:
    host.let_wait(stream, host.before(other))
    if host.order is not None:
        host.order.stream_waits(stream, (host.order.mark(other),))
