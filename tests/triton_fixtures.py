"""Fixtures of the directories whose kernels run on the engine: their ``conftest.py`` imports them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import torch

#: Tests run on Triton's own interpreter instead of the engine.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

#: Triton exists for Linux only.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def engine() -> Iterator[None]:
    """The engine's driver, active while these tests run."""
    if INTERPRETED:
        yield
        return
    from kernbench.triton_engine import activate, deactivate

    activate()
    yield
    deactivate()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same random numbers, whatever ran before it."""
    torch.manual_seed(0)
