"""The same programs on real gloo processes and on simulated ranks: the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch.multiprocessing

import kernbench
from tests.parity.programs import PROGRAMS, run_all

WORLD = 2
Results = list[dict[str, list[float]]]


def _process(rank: int, directory: str) -> None:
    results = run_all(rank, WORLD, f"file://{directory}/rendezvous")
    Path(directory, f"{rank}.json").write_text(json.dumps(results))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What gloo processes compute."""
    directory = tmp_path_factory.mktemp("gloo")
    torch.multiprocessing.spawn(_process, args=(str(directory),), nprocs=WORLD)
    return [json.loads(Path(directory, f"{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.fixture(scope="module")
def simulated() -> Results:
    """What simulated ranks compute."""
    results: Results = [{}] * WORLD

    def worker(rank: int) -> None:
        results[rank] = run_all(rank, WORLD, "file:///nowhere/rendezvous")

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=WORLD)
    return results


@pytest.mark.parametrize("program", list(PROGRAMS))
def test_same_numbers(real: Results, simulated: Results, program: str) -> None:
    for rank in range(WORLD):
        assert simulated[rank][program] == pytest.approx(real[rank][program], rel=1e-6)
    assert any(results[program] for results in real)
