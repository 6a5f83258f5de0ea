"""Runs of pytest inside a test, with the plugin as an installed kernbench would bring it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = any(point.name == "kernbench" for point in entry_points(group="pytest11"))


RunPytest = Callable[..., pytest.RunResult]


@pytest.fixture
def run_pytest(warm_python: str, fresh_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch) -> RunPytest:
    """Runs the files of ``pytester`` in a process of its own, a fork of one that has imported what all need."""
    monkeypatch.setattr(sys, "executable", warm_python)
    return fresh_pytest


@pytest.fixture
def fresh_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunPytest:
    """The same in a fresh process."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)
    plugin = [] if INSTALLED else ["-p", "kernbench.testing.plugin"]

    def run(*args: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider", "-p", "no:randomly", *args)

    return run
