"""Public packages' Triton kernels, unmodified, on plain CPU tensors."""

from __future__ import annotations

import sys

import pytest
import torch

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _engine():
    """The engine's driver, active while these tests run."""
    from kernbench.triton_engine import activate, deactivate

    activate()
    yield
    deactivate()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
