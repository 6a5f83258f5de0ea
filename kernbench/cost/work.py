"""What occupies a stream: how long, within which interval, moving how much; and work that a program states itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from kernbench.cost.estimate import Estimate
from kernbench.topology import Route
from kernbench.topology.device import DeviceSpec

LEAST = 1e-6
"""Seconds that a kernel occupies its stream for at least: it is fetched, starts, ends and signals."""

_COPY = (0.1, 0.3)  # as below, of a copy over the host link: pinned memory; pageable memory is slower
_STATED = (0.3, 0.6)  # shares below and above a plain roofline between which measurements lie


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operation occupies its stream for.

    Attributes:
        seconds: how long.
        low, high: the interval in seconds that is meant to cover 80 % of measurements (ADR 0031).
        nbytes: bytes read and written.
        kind: ``"gemm"``, ``"attention"``, ``"math"``, ``"kernel"`` or ``"dma"``.
        limit: what limits it: ``"compute"``, ``"memory"``, ``"cache"``, ``"launch"``, ...
        host: seconds that it costs the host beyond one launch: further launches, tensors of a list, bookkeeping.
        alone: the whole duration as it is measured alone, seconds; 0: as ``seconds`` says.
        draw: watts that it draws at the boost clock above a board at rest, where its kind does not say; 0: as its kind.
    """

    seconds: float
    low: float
    high: float
    nbytes: int = 0
    kind: str = "math"
    limit: str = ""
    host: float = 0.0
    alone: float = 0.0
    draw: float = 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """The interval as shares of ``seconds``, below and above it."""
        if not self.seconds:
            return 0.0, 0.0
        return 1 - self.low / self.seconds, self.high / self.seconds - 1

    @classmethod
    def on_stream(cls, found: Estimate, device: DeviceSpec, *, kind: str, nbytes: int, host: float = 0.0) -> Cost:
        """The part of an estimate that is not the launch's latency, which a stream counts apart (ADR 0038)."""
        if not found.seconds:
            return cls(0.0, 0.0, 0.0, nbytes, kind, "view")
        seconds = max(found.seconds - ramp_of(device), LEAST)
        return cls(
            seconds, seconds * found.low / found.seconds, seconds * found.high / found.seconds, nbytes, kind,
            found.algorithm, host, found.seconds,
        )  # fmt: skip

    def in_graph(self, device: DeviceSpec) -> Cost:
        """As one of a captured graph's kernels, which follow one another as they are measured one by one: start and end of
        each show, for no launch is on its way meanwhile (ADR 0191)."""
        ramp = ramp_of(device) if self.kind != "dma" else 0.0
        if self.alone:
            ramp = max(self.alone, device.launch.in_graph) - self.seconds
        return replace(self, seconds=self.seconds + ramp, low=self.low + ramp, high=self.high + ramp)


def ramp_of(device: DeviceSpec) -> float:
    """Seconds of a kernel's measured duration that a launch's latency covers where the device waits for it (ADR 0038)."""
    return max(device.launch.latency - LEAST, 0.0)


def copy_cost(route: Route, nbytes: int, over: str = "host link", share: float = 1.0) -> Cost:
    """A copy between a SIP and its host, or (``over`` other links) another SIP, on a route that it has to itself.

    ``share``: of the route's bandwidth, that it reaches.
    """
    seconds = route.latency + nbytes / (route.bandwidth * share)
    below, above = _COPY
    return Cost(seconds, seconds * (1 - below), seconds * (1 + above), nbytes, "dma", over)


def over_links(cost: Cost, seconds: float, latency: float) -> Cost:
    """An operation that also moves data over links, which takes ``seconds`` for the fullest one and ``latency`` for the first
    byte: what it computes meanwhile is hidden."""
    whole = max(cost.seconds, seconds) + latency
    below, above = _COPY if seconds > cost.seconds else cost.spread
    limit = "link" if seconds > cost.seconds else cost.limit
    return Cost(whole, whole * (1 - below), whole * (1 + above), cost.nbytes, cost.kind, limit, cost.host)


def stated_cost(seconds: float) -> Cost:
    """What takes as long as it says."""
    return Cost(seconds, seconds, seconds, 0, "math", "stated")


class OperationWork(Protocol):
    """What an operation does, in whatever terms, so that a device says what it takes. It can be hashed.

    Attributes:
        nbytes: bytes read and written.
        flops, matrix, dtype: as of :class:`StatedWork`.
    """

    @property
    def nbytes(self) -> int:
        """See above."""

    @property
    def flops(self) -> int:
        """See above."""

    @property
    def matrix(self) -> bool:
        """See above."""

    @property
    def dtype(self) -> str:
        """See above."""

    def cost(self, device: DeviceSpec) -> Cost:
        """What it occupies a stream for."""


@dataclass(frozen=True, slots=True)
class StatedWork:
    """What an operation does, where the program states it.

    Attributes:
        nbytes: bytes read and written.
        flops: floating-point operations; a multiply-add counts as two.
        matrix: whether the matrix engines do them.
        dtype: short dtype name (``"fp16"``), which selects the rate.
    """

    nbytes: int
    flops: int = 0
    matrix: bool = False
    dtype: str = "fp32"

    def cost(self, device: DeviceSpec) -> Cost:
        """Roofline: the larger of ``nbytes`` at copy bandwidth and ``flops`` at the dtype's peak."""
        seconds, limit = self.nbytes / device.hbm_copy_bandwidth, "memory"
        if self.flops:
            rate = device.matrix_rate(self.dtype) if self.matrix else device.vector_rate(self.dtype)
            if self.flops / rate > seconds:
                seconds, limit = self.flops / rate, "compute"
        below, above = _STATED
        return Cost(seconds, seconds * (1 - below), seconds * (1 + above), self.nbytes, "kernel", limit)
