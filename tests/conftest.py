"""Fixtures shared by all tests."""

from __future__ import annotations

import multiprocessing.process
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

# One thread per test process, of torch and of what tests start: xdist already keeps every core busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import hypothesis
import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup starts it: what tests start would ignore it, too
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import kernbench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology import TopologyHandle, resolve_topology
from tests.warm_python import WARM

# no test depends on how busy the machine is
hypothesis.settings.register_profile(
    "kernbench", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("kernbench")


TEMPORARY = pytest.StashKey[Path]()
"""The folder for temporary files of the process of a run."""

OURS = ("kernbench-run-", "kernbench-dask-", "kernbench-compare-")
"""How names begin of the folders that kernbench makes there."""


@pytest.hookimpl(trylast=True)  # after pytest has its own folder
def pytest_configure(config: pytest.Config) -> None:
    """What tests and their processes leave in the folder for temporary files goes with the run: torchrun leaves a folder, as
    on a machine with GPUs, and so does what is killed."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())  # compiled once for all runs
    folder = config._tmp_path_factory.mktemp("t")  # type: ignore[attr-defined]  # short: names of sockets are in it
    config.stash[TEMPORARY] = folder
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # Python looks again


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(TEMPORARY, None):
        shutil.rmtree(folder, ignore_errors=True)


# What changes how the tools that tests start print (pytest wraps and shortens by them, too).
SURROUNDINGS = ("CI", "BUILD_NUMBER", "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "PYTEST_ADDOPTS")


SET_BY_TOOLS = (
    "PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
    "TRITON_DEFAULT_FP_FUSION",  # ours, for the rest of the process: kernels of kernbench.tp outside of a simulation
)  # fmt: skip
"""Variables that pytest, torch and Triton's driver set when they want to."""


@pytest.fixture(scope="session", autouse=True)
def plain_surroundings() -> Iterator[None]:
    """Output does not depend on where the suite runs: on a developer's terminal or in a CI."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SURROUNDINGS:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def own_surroundings(pytestconfig: pytest.Config) -> Iterator[None]:
    """A test leaves the process as it was: what one leaves behind is a failure of another, in some orders."""
    temporary = pytestconfig.stash[TEMPORARY]
    before, files = _surroundings(), set(os.listdir(temporary))
    yield
    left = _surroundings()
    assert [name for name in set(os.listdir(temporary)) - files if name.startswith(OURS)] == [], "folders left behind"
    assert {name: value for name, value in left.items() if before.get(name) != value} == {}, "left behind"
    assert before.keys() - left.keys() == set(), "taken away"


def _surroundings() -> dict[str, Any]:
    """Variables of the environment, and what else is the process's."""
    variables = {name: value for name, value in os.environ.items() if name not in SET_BY_TOOLS}
    return {
        **variables,
        "sys.argv": list(sys.argv),
        "os.getcwd()": os.getcwd(),
        "how processes are started": multiprocessing.process.BaseProcess.start,
        "torch's default dtype": torch.get_default_dtype(),
        "torch's precision of products": torch.get_float32_matmul_precision(),
        "torch's precision of convolutions": torch.backends.cudnn.allow_tf32,
        "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch's gradients": torch.is_grad_enabled(),
    }


@pytest.fixture
def topology() -> TopologyHandle:
    """The default system."""
    return resolve_topology()


@pytest.fixture
def spec(topology: TopologyHandle) -> Mapping[str, Any]:
    """The mapping that the default system was read from."""
    return topology.topology_obj.spec


@pytest.fixture
def ctx() -> Iterator[RuntimeContext]:
    """A simulation of the default system."""
    with kernbench.simulate() as context:
        yield context


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ``python`` whose processes are forks of one that has imported torch and kernbench (:mod:`tests.warm_python`)."""
    return str(WARM.executable(tmp_path_factory.mktemp("warm") / "python"))


@pytest.fixture(scope="module")
def started_warm(warm_python: str) -> Iterator[None]:
    """What a module's tests start as ``sys.executable`` is that one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm_python)
        yield


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own reaction to Ctrl-C, also where the parent of the tests has it ignored (in the background of a shell)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
