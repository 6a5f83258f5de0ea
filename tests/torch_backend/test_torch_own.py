"""torch's own distributed tests: what eight gloo processes pass, eight simulated ranks pass.

The lists of what gloo passes were recorded by ``python -m tests.torch_backend.torch_own --side gloo --record``. A few tests run
always; with ``KERNBENCH_TORCH_OWN=1`` all of them do, which takes minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.torch_backend.torch_own.suite import PASSED, RECORD

CANNOT = {"test_get_rank": "counts process ids: simulated ranks share a process, and its id"}
"""Tests that gloo passes and simulated ranks do not, by the reason."""

ALWAYS = (
    "test_all_gather_coalesced_complex",
    "test_all_to_all_single_unequal_split_group",
    "test_scatter_object_list",
    "test_ddp_comm_hook_logging",
    "test_isend_autograd_profiler",
    "test_monitored_barrier_wait_all_ranks",
    "test_new_subgroups_overlap_not_allowed",
    "test_send_recv_any_source",
    "test_reduce_group_product",
    "test_static_graph_api_cpu",
)
"""Tests that take little time, of various kinds."""

EVERYTHING = os.environ.get("KERNBENCH_TORCH_OWN") == "1"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="expecttest is not installed")


def recorded() -> list[str]:
    """The tests that gloo passes with the gates open."""
    return [line for line in RECORD[True].read_text().splitlines() if not line.startswith("#")]


class Server:
    """A fresh process that forks one of its own for each test: the neighbours of this one may have trained.

    Args:
        isolation: what ranks are.
    """

    def __init__(self, isolation: str = "carrier") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.torch_backend.torch_own", "--serve", "--isolation", isolation],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.names: list[str] = self.said()

    def said(self) -> Any:
        """Its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the server of torch's own tests ended with {self.process.wait()}"
        return json.loads(line)

    def outcome(self, name: str) -> str:
        """What the test ended with."""
        assert self.process.stdin is not None
        print(name, file=self.process.stdin, flush=True)
        return str(self.said())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.process.communicate()


@pytest.mark.parametrize("name", [name for name in recorded() if EVERYTHING or name in ALWAYS])
def test_passes_as_on_gloo(server: Server, name: str) -> None:
    if name in CANNOT:
        pytest.skip(CANNOT[name])
    assert server.outcome(name) == PASSED


@pytest.fixture(scope="module")
def server_of_processes() -> Iterator[Server]:
    server = Server("process")
    yield server
    server.process.communicate()


IN_PROCESSES = ("test_get_rank", *ALWAYS)
"""``python -m tests.torch_backend.torch_own --isolation process NAME ...`` runs others, a few seconds each."""


@pytest.mark.long
@pytest.mark.parametrize("name", IN_PROCESSES)
def test_passes_in_processes(server_of_processes: Server, name: str) -> None:
    assert server_of_processes.outcome(name) == PASSED


def test_the_record_is_of_this_torch(server: Server) -> None:
    version = RECORD[True].read_text().splitlines()[0]
    if torch.__version__.split("+")[0] not in version:
        pytest.skip(f"recorded with another torch: {version}")
    assert set(recorded()) <= set(server.names)
    assert {*CANNOT, *ALWAYS} <= set(recorded())
