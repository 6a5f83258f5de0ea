"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kernbench.topology import TopologyHandle, resolve_topology


@pytest.fixture
def topology() -> TopologyHandle:
    """The default system."""
    return resolve_topology()


@pytest.fixture
def spec(topology: TopologyHandle) -> Mapping[str, Any]:
    """The mapping that the default system was read from."""
    return topology.topology_obj.spec
