"""Kernels run on the engine for the whole session, in this process.

``TRITON_INTERPRET=1 pytest tests/kernels`` runs the same tests on Triton's own interpreter instead: a check of the
tests themselves, whose references must hold there too wherever the interpreter is able.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.triton_fixtures import INTERPRETED, collect_ignore_glob, engine, seeded


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("beyond_interpreter")
    if INTERPRETED and marker:
        pytest.skip(f"Triton's interpreter: {marker.args[0]}")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


__all__ = ["collect_ignore_glob", "engine", "rng", "seeded"]
