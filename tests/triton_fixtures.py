"""Fixtures of the directories whose kernels run on the engine: their ``conftest.py`` imports them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator

import pytest
import torch

#: Tests run on Triton's own interpreter instead of the engine.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

#: Descriptors of Triton before 3.7 do not round what they read.
ROUNDING = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None
    or tuple(map(int, importlib.metadata.version("triton").split(".")[:2])) < (3, 7),
    reason="descriptors of this release of Triton do not round to TF32",
)

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
