"""The same arguments give the same bytes: table, JSON and trace, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def _run(folder: Path, hash_seed: str) -> tuple[bytes, bytes, bytes]:
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-m", "benches.ccl_allreduce", "-e", "4K", "-d", "half", "-J", "out.json", "--trace", "trace.json"],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=(folder / "table").open("wb"),
        check=True,
    )  # fmt: skip
    return tuple((folder / name).read_bytes() for name in ("table", "out.json", "trace.json"))  # type: ignore[return-value]


def test_runs_are_equal_byte_for_byte(tmp_path: Path) -> None:
    assert _run(tmp_path / "a", "1") == _run(tmp_path / "b", "2")
