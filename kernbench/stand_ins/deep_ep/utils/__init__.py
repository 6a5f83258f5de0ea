"""What says when a dispatch or a combination has ended."""

from __future__ import annotations

import torch


class EventHandle:
    """What the current stream has been given so far."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event()
        self._event.record()

    def current_stream_wait(self) -> None:
        """The current stream waits for it."""
        torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """An event, whose wait may be a block's end."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: object = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """The current stream waits for it."""
        if self.event is None:
            raise AssertionError("there is no event: the call was not asynchronous")
        self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.event is not None:
            self.event.current_stream_wait()
