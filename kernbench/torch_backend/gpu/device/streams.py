"""Streams and events of simulated GPUs: ``torch.cuda.Stream``, ``torch.cuda.Event`` and what chooses the current stream.

A rank has one default stream on each of its GPUs and as many others as it makes; each GPU has a current one. What a stream
waits for is kept with the rank, until something is enqueued on it. Time is virtual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.types import Device

from kernbench.errors import KernbenchError
from kernbench.sim_engine.operation import Operation, is_default, shown
from kernbench.simulation.ranks.accelerator_errors import cuda_error
from kernbench.simulation.ranks.graph_capture import CAPTURED_EVENT, NOT_PERMITTED
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.gpu.device.stream_waits import StreamMark, let_stream_wait

_OTHER = "stream "
"""What names of streams begin with that a program makes."""


class Stream:
    """A stream of a simulated GPU; without a ``name`` or a number, a new one."""

    device_type = 1  # ``c10::DeviceType::CUDA``

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least priority of a stream and the greatest, as torch clamps them."""
        return 0, -3

    def __init__(
        self, device: Device = None, priority: int = 0, *, stream_id: int | None = None, device_index: int | None = None,
        device_type: int = device_type, stream_ptr: int | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        devices = bound_devices()
        at = devices.number(device if stream_id is None else device_index)
        self.device = torch.device("cuda", devices.told(at))
        self.device_index = self.device.index
        least, greatest = self.priority_range()
        self.priority = min(max(priority, greatest), least)
        number = stream_id or stream_ptr  # 0 as an address is none, and what has no number is a new one
        if name is None and (number or stream_id is not None):
            name = _of_number(number or 0, at)
        if name is None:
            mine = devices.mine()
            mine.streams_made += 1
            name = f"{_OTHER}{mine.streams_made}"
        self.name = name
        self.cuda_stream = self.stream_id = 0 if is_default(name) else int(name.rpartition(" ")[2])

    def synchronize(self) -> None:
        bound_devices().mine().finish_stream(self.name)

    def wait_stream(self, stream: Any) -> None:
        """What is enqueued here next starts after what is on ``stream`` now."""
        let_stream_wait(bound_devices().mine().host, self.name, stream.name)

    def wait_event(self, event: Any) -> None:
        """What is enqueued here next starts after the event."""
        event.wait(self)

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        _not_in_a_capture()
        host = bound_devices().mine().host
        ended = _have_ended(host.before(self.name))
        if ended and host.order is not None:
            host.order.host_waits(host.order.mark(self.name))
        return ended

    def is_capturing(self) -> bool:
        return bound_devices().mine().host.capture is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (other.name, other.device) == (self.name, self.device)

    def __hash__(self) -> int:
        return hash((self.name, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} {shown(self.name)} (simulated)>"

    def __enter__(self) -> Any:
        self._before = _current_streams(self)
        set_stream(self)
        return self

    def __exit__(self, *exc: object) -> None:
        for stream in self._before:
            set_stream(stream)


class ExternalStream(Stream):
    """``torch.cuda.ExternalStream``: the stream that another library knows by an address."""

    def __init__(self, stream_ptr: int, device: Any = None) -> None:
        super().__init__(device, stream_id=int(stream_ptr), device_index=device)


def _of_number(number: int, device: Device) -> str:
    """A stream's name. Raises KernbenchError if no stream of the rank has this number, which is also its address."""
    if number == 0:
        mine = bound_devices().mine()
        return mine.host.default_stream(mine.sip(device))
    if not 0 < number <= bound_devices().mine().streams_made:
        raise KernbenchError(
            f"no stream of this simulated GPU is at {number:#x}: the streams of other libraries are not simulated, but for "
            "those that they were given (torch.cuda.Stream.cuda_stream)"
        )
    return f"{_OTHER}{number}"


class StreamContext:
    """``torch.cuda.stream``: another stream for the length of a block, set by the name that a program may have replaced."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self._before = _current_streams(self.stream)
            torch.cuda.set_stream(self.stream)

    def __exit__(self, *exc: object) -> None:
        if self.stream is not None:
            for stream in self._before:
                torch.cuda.set_stream(cast(Any, stream))


class Event:
    """A moment on a rank's stream."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        if interprocess:
            raise KernbenchError("a simulated GPU has no interprocess events: ranks share a process")
        self.enable_timing = enable_timing
        self._device: int | None = None
        self._at = StreamMark()

    def record(self, stream: Any = None) -> None:
        state = bound_devices().mine().host
        name = state.stream if stream is None else stream.name
        self._make(bound_devices().number(None) if stream is None else stream.device.index)
        self._at.record(state, name)

    def _make(self, device: int) -> None:
        """An event is of the GPU on which it is first recorded. Raises RuntimeError, as torch does, on another one."""
        if self._device not in (None, device):
            raise RuntimeError(f"Event device {self._device} does not match recording stream's device {device}.")
        self._device = device

    @property
    def device(self) -> torch.device | None:
        """The GPU on which it was recorded first; None: it has not been."""
        return None if self._device is None else torch.device("cuda", self._device)

    @property
    def cuda_event(self) -> int:
        """A number that no other event has; 0 before it is recorded."""
        return 0 if self._at.clock is None else id(self)

    event_id = cuda_event

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {f'{self.cuda_event:#x}' if self.cuda_event else 'uninitialized'}>"

    def _seen(self) -> None:
        """The host knows that it has happened."""
        order = bound_devices().mine().host.order
        if order is not None:
            order.host_waits(self._at.moment)

    def _time(self) -> float:
        """When it happens, s of virtual time; waits until that is known."""
        if self._at.clock is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self._not_captured()
        moment, waits = self._at.clock, bound_devices().simulation.waits
        waits.refresh(self._at.after)
        for op in self._at.after:
            if op.end is None:
                waits.wait(op)
            assert op.end is not None
            moment = max(moment, op.end)
        return moment

    def _not_captured(self) -> None:
        """Raise what CUDA says if the host waits for it during a capture."""
        graph = bound_devices().mine().host.capture
        if graph is not None and self._at.clock is not None:
            graph.forbid(CAPTURED_EVENT if self._at.captured is graph else NOT_PERMITTED)

    def synchronize(self) -> None:
        self._not_captured()
        for op in self._at.after:
            bound_devices().simulation.waits.wait(op)
        self._seen()

    def wait(self, stream: Any = None) -> None:
        """What is enqueued next on ``stream``, or on the current one, starts after it."""
        state = bound_devices().mine().host
        self._at.let_wait(state, state.stream if stream is None else stream.name)

    def query(self) -> bool:
        self._not_captured()
        happened = _have_ended(self._at.after)
        if happened:
            self._seen()
        return happened

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds of virtual time from this event to ``end``. Raises CUDA's error if one of them has not happened yet."""
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        now, times = bound_devices().simulation.now(), (self._time(), end._time())
        if self._device != end._device:
            raise cuda_error(
                "invalid resource handle",
                f"Events of cuda:{self._device} and cuda:{end._device} have no time between them: record both on one GPU",
            )
        if max(times) > now:
            raise cuda_error("device not ready", "An event has not happened when the host asks: synchronize() it first")
        return (times[1] - times[0]) * 1e3


def _have_ended(operations: Sequence[Operation]) -> bool:
    """Whether what a program asks for is over now. Asking in vain takes time, so a loop of this ends."""
    simulation = bound_devices().simulation
    simulation.waits.refresh(operations)
    unknown = next((op for op in operations if op.end is None), None)
    if unknown is not None:
        simulation.polls.look(unknown)
    now = simulation.now()
    ends = [op.end for op in operations if op.end is None or op.end > now]
    if unknown is None and ends:
        simulation.polls.look_early(max(end for end in ends if end is not None))
    return not ends


def _not_in_a_capture() -> None:
    graph = bound_devices().mine().host.capture
    if graph is not None:
        graph.forbid()


def set_stream(stream: Any) -> None:
    """``torch.cuda.set_stream``: the stream's device becomes the current one, too."""
    if stream is None:
        return
    devices = bound_devices()
    mine = devices.mine()
    if stream.device.index != devices.told(devices.number(None)):
        mine.host.drive(mine.sip(stream.device))
    mine.stream_changes.go_on(mine.host.sip, stream.name)


def set_stream_by_number(stream_id: int, device_index: int, device_type: int) -> None:
    """``torch._C._cuda_setStream``: the device becomes the current one, too."""
    mine = bound_devices().mine()
    mine.host.drive(mine.sip(device_index))
    mine.stream_changes.go_on(mine.host.sip, _of_number(stream_id, device_index))


def current_stream(device: Device = None) -> Stream:
    """``torch.cuda.current_stream``."""
    mine = bound_devices().mine()
    return Stream(device, name=mine.host.stream_on(mine.sip(device)))


def default_stream(device: Device = None) -> Stream:
    """``torch.cuda.default_stream``."""
    mine = bound_devices().mine()
    return Stream(device, name=mine.host.default_stream(mine.sip(device)))


def _current_streams(other: Any) -> list[Stream]:
    """What is current now, to be set again in this order after ``other`` has been: on its GPU, and on the current one."""
    here = current_stream()
    return [here] if other.device == here.device else [current_stream(other.device), here]
