"""Each program on several ranks: every rank knows who it is, and the losses are those of one rank.

What needs a package that is not among the development requirements is skipped without it; ``pip install 'kernbench[programs]'``
brings them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("started_warm")
SHELF = Path(__file__).parent / "shelf"
ROOT = Path(__file__).parents[2]


def run(world: int, program: Sequence[str], folder: Path) -> str:
    """What ``kernbench run`` of a program prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    line = [sys.executable, "-m", "kernbench", "run", "--nproc-per-node", str(world), "--system", "dgx_h100", *program]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def told(text: str) -> dict[int, Any]:
    """What each rank has printed last, as JSON."""
    lines = [line.partition("] ") for line in text.splitlines() if line.startswith("[rank")]
    return {int(head.removeprefix("[rank")): json.loads(rest) for head, _, rest in lines if rest.startswith('{"who"')}


def needs(*packages: str) -> Any:
    """Skip, and say so, where one of these cannot be imported."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"not installed: {', '.join(missing)} (pip install 'kernbench[programs]')"
    )


CASES: list[Any] = [
    pytest.param("with_accelerate.py", lambda rank, world: [rank, world, rank == 0, f"cuda:{rank}"],
                 marks=needs("accelerate"), id="accelerate"),
    pytest.param("with_hydra.py", lambda rank, world: [rank, world, 2], marks=needs("hydra"), id="hydra"),
    pytest.param("with_lightning.py", lambda rank, world: [rank, world], marks=needs("lightning"), id="lightning"),
    pytest.param("with_transformers.py", lambda rank, world: [rank, world], marks=needs("transformers", "accelerate"),
                 id="transformers"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "who"), CASES)
def test_data_parallel(program: str, who: Callable[[int, int], list[Any]], tmp_path: Path) -> None:
    alone, both = (told(run(world, [str(SHELF / program)], tmp_path)) for world in (1, 2))
    assert {rank: said["who"] for rank, said in both.items()} == {rank: who(rank, 2) for rank in range(2)}
    for said in both.values():
        assert said["losses"] == pytest.approx(alone[0]["losses"], rel=2e-3)
    assert alone[0]["losses"][-1] != pytest.approx(alone[0]["losses"][0], rel=1e-3), "it trains"


@pytest.fixture(scope="module")
def losses_of_one(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of the trainer in a namespace package."""
    return told(run(1, [str(SHELF / "train_parallel.py"), "1", "1", "1"], tmp_path_factory.mktemp("one")))[0]["losses"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("world", "split"),
    [(8, (2, 2, 2)), (4, (1, 1, 1)), (4, (4, 1, 1)), (4, (1, 4, 1)), (4, (1, 1, 4)), (8, (2, 1, 2)), (8, (1, 2, 2))],
)
def test_a_trainer_in_a_namespace_package(
    world: int, split: tuple[int, int, int], losses_of_one: list[float], tmp_path: Path
) -> None:
    """Over tensor, pipeline and context parallelism, the rest data: the groups are in a module, which is each rank's."""
    ranks = told(run(world, [str(SHELF / "train_parallel.py"), *map(str, split)], tmp_path))
    assert {rank: said["who"] for rank, said in ranks.items()} == {rank: [rank, [rank]] for rank in range(world)}
    for said in ranks.values():
        assert said["losses"] == pytest.approx(losses_of_one, rel=1e-4)


@needs("accelerate")
@pytest.mark.parametrize("script", ["test_script", "test_ops", "test_sync"])
def test_accelerates_own(script: str, tmp_path: Path) -> None:
    run(2, ["-m", f"accelerate.test_utils.scripts.{script}"], tmp_path)
