"""Plugins that the tests give to simulations, and handlers that they run in worker processes."""

from __future__ import annotations

import os
import time
from typing import Any

from kernbench.plugins.specs import OBSERVED


class Recorder:
    """Keeps every event: ``(hook without its prefix, event)``."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def of(self, what: str) -> list[Any]:
        """The events of one hook."""
        return [event for name, event in self.events if name == what]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


def _record(hook: str) -> Any:
    def record(self: Recorder, event: Any) -> None:
        self.events.append((hook.removeprefix("kernbench_"), event))

    return record


for _hook in OBSERVED:
    setattr(Recorder, _hook, _record(_hook))


class Handler:
    """Takes events in a worker process, and writes a line for each to a file when it is closed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines: list[str] = []

    def kernbench_rank_started(self, event: Any) -> None:
        self.lines.append(f"started {event.rank}")

    def kernbench_collective_completed(self, event: Any) -> None:
        self.lines.append(f"{event.op} {list(event.ranks)}")

    def count(self) -> int:
        return len(self.lines)

    def close(self) -> None:
        with open(self.path, "w") as file:
            file.writelines(f"{line}\n" for line in self.lines)


class Odd:
    """A handler that does everything which may go wrong."""

    def add(self, a: int, b: int) -> int:
        return a + b

    def fail(self) -> None:
        raise ValueError("no such thing")

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def die(self) -> None:
        os._exit(7)

    def unpicklable(self) -> Any:
        return lambda: None

    def large(self, size: int) -> bytes:
        return bytes(size)

    def kernbench_rank_started(self, event: Any) -> None:
        if event.rank == 1:
            os._exit(9)


def refuses() -> None:
    """Makes no handler."""
    raise RuntimeError("not today")
