"""The engine's own tests: its parts, its promises to the runtime, and what it relies on in Triton."""

from __future__ import annotations

import contextlib

import pytest

from tests.triton_fixtures import collect_ignore_glob, engine, seeded


class Collected:
    """A launch sink that keeps launches, one rank each."""

    def __init__(self) -> None:
        self.launches = []

    def submit(self, launch) -> None:
        launch.rank = len(self.launches)
        self.launches.append(launch)

    def memory(self) -> None:
        return None

    def aside(self):
        return contextlib.nullcontext()

    def say(self, sentence) -> None:
        pass


@pytest.fixture
def collected():
    from kernbench.triton_engine import set_launch_sink

    sink = Collected()
    before = set_launch_sink(sink)
    yield sink
    set_launch_sink(before)


__all__ = ["collect_ignore_glob", "collected", "engine", "seeded"]
