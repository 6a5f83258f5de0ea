"""What was measured when, of which tree, on which machine: one line of JSON per figure, in a file that git ignores."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[3]
"""Folder of the tree that these benches belong to."""

HISTORY = ROOT / ".benches" / "history.jsonl"


def revision(tree: Path) -> dict[str, object]:
    """``commit`` (None where ``tree`` is not the root of a git tree) and ``dirty``: whether files differ from it."""
    if not (tree / ".git").exists():
        return {"commit": None, "dirty": None}
    commit = _git(tree, "rev-parse", "HEAD")
    return {"commit": commit, "dirty": None if commit is None else bool(_git(tree, "status", "--porcelain"))}


def _git(tree: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or not its folder
        return None
    return done.stdout.strip()


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """``cpu`` by its maker's name, ``cores`` that this process may use, ``load`` of the last minute, versions."""
    try:
        named = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
    except OSError:
        named = []
    return {
        "cpu": named[0] if named else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def append(
    records: Iterable[Mapping[str, object]], bench: str, *, tree: Path = ROOT, path: Path | None = None
) -> Path | None:
    """Add a line per record to ``path``, by default the tree's own file; None where there is no git tree to keep it in.

    Benches that run at the same time wait for each other, so that lines stay whole.
    """
    of_tree = revision(tree)
    if path is None:
        if of_tree["commit"] is None:
            return None
        path = tree / HISTORY.relative_to(ROOT)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "bench": bench, **of_tree, **machine()}
    with FileLock(path.with_suffix(".lock")), path.open("a") as file:
        file.writelines(json.dumps({**head, **record}) + "\n" for record in records)
    return path
