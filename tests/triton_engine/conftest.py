"""The engine's own tests: its parts, its promises to the runtime, and what it relies on in Triton."""

from __future__ import annotations

import sys

import pytest
import torch

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _engine():
    from kernbench.triton_engine import activate, deactivate

    activate()
    yield
    deactivate()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Collected:
    """A launch sink that keeps launches, one rank each."""

    def __init__(self) -> None:
        self.launches = []

    def submit(self, launch) -> None:
        launch.rank = len(self.launches)
        self.launches.append(launch)


@pytest.fixture
def collected():
    from kernbench.triton_engine import set_launch_sink

    sink = Collected()
    before = set_launch_sink(sink)
    yield sink
    set_launch_sink(before)
