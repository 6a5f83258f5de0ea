"""torch's own distributed tests: what eight gloo processes pass, eight simulated ranks pass.

The lists of what gloo passes were recorded by ``python -m tests.torch_backend.torch_own --side gloo --record``. A few tests run
always; with ``KERNBENCH_TORCH_OWN=1`` all of them do, which takes minutes.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import pytest
import torch

from tests.torch_backend.torch_own import on_ranks
from tests.torch_backend.torch_own.suite import PASSED, RECORD, Suite

CANNOT = {"test_get_rank": "counts process ids: simulated ranks share a process, and its id"}
"""Tests that gloo passes and simulated ranks do not, by the reason."""

ALWAYS = (
    "test_all_gather_coalesced_complex",
    "test_all_to_all_single_unequal_split_group",
    "test_broadcast_object_list",
    "test_ddp_comm_hook_logging",
    "test_isend_autograd_profiler",
    "test_monitored_barrier_wait_all_ranks",
    "test_new_subgroups_by_enumeration",
    "test_recv_anysource",
    "test_reduce_group_product",
    "test_static_graph_api_cpu",
)
"""Tests that take little time, of various kinds."""

EVERYTHING = os.environ.get("KERNBENCH_TORCH_OWN") == "1"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="expecttest is not installed")


def recorded() -> list[str]:
    """The tests that gloo passes with the gates open."""
    return [line for line in RECORD[True].read_text().splitlines() if not line.startswith("#")]


@cache
def suite() -> Suite:
    return Suite(opened=True)


@pytest.mark.parametrize("name", [name for name in recorded() if EVERYTHING or name in ALWAYS])
def test_passes_as_on_gloo(name: str) -> None:
    if name in CANNOT:
        pytest.skip(CANNOT[name])
    environment = dict(os.environ)
    try:
        outcome = on_ranks.run_apart(suite(), name)
    finally:
        os.environ.clear()
        os.environ.update(environment)
    assert outcome == PASSED


def test_the_record_is_of_this_torch() -> None:
    version = RECORD[True].read_text().splitlines()[0]
    if torch.__version__.split("+")[0] not in version:
        pytest.skip(f"recorded with another torch: {version}")
    assert set(recorded()) <= set(suite().names)
    assert set(CANNOT) <= set(recorded())
