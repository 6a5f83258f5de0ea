"""Kernels run on the engine for the whole session, in this process.

``TRITON_INTERPRET=1 pytest tests/kernels`` runs the same tests on Triton's own interpreter instead: a check of the
tests themselves, whose references must hold there too wherever the interpreter is able.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "beyond_interpreter(reason): what Triton's own interpreter cannot run")


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("beyond_interpreter")
    if INTERPRETED and marker:
        pytest.skip(f"Triton's interpreter: {marker.args[0]}")


@pytest.fixture(scope="session", autouse=True)
def _engine():
    """The engine's driver, active while these tests run."""
    if INTERPRETED:
        yield
        return
    from kernbench.triton_engine import activate, deactivate

    activate()
    yield
    deactivate()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
