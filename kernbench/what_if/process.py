"""``kernbench run`` in a process of its own, and what it came to."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kernbench.child_processes import run_child
from kernbench.errors import ConfigError
from kernbench.trace.run_result import RunResult, read_result

_DETAIL = 4000
"""Characters of a failed run's output that are kept."""


class Ran(NamedTuple):
    """What became of a run.

    Attributes:
        result: what it came to; None if it failed.
        error: why it failed, one line; ``detail`` is the end of what it printed.
    """

    result: RunResult | None
    error: str = ""
    detail: str = ""


def run_in_process(
    arguments: Sequence[str], environment: Mapping[str, str], folder: str | Path, timeout: float | None = None
) -> Ran:
    """Run ``kernbench ARGUMENTS``, the first of which is ``run``. It never raises for what the run does.

    Args:
        arguments: of ``kernbench``, without the file of the result.
        environment: variables that the run has besides.
        folder: where it runs.
        timeout: seconds of real time after which it is given up, None: never.
    """
    with tempfile.TemporaryDirectory(prefix="kernbench-run-") as place:
        file = Path(place, "result.json")
        command, *rest = arguments
        try:
            ran = run_child(
                [sys.executable, "-m", "kernbench", command, "--json", str(file), *rest],
                cwd=folder, env={**os.environ, "PYTHONPATH": _path(), **environment}, timeout=timeout,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Ran(None, f"not done after {timeout:g} s of real time")
        except OSError as error:
            return Ran(None, f"could not be started: {error}")
        detail = f"{ran.stdout[-_DETAIL:]}{ran.stderr[-_DETAIL:]}"
        try:
            result = read_result(file)
        except ConfigError:
            return Ran(None, _last_line(ran.stderr) or f"exit code {ran.returncode}", detail)
    if result.status == "interrupted":
        return Ran(None, "interrupted by a signal", detail)
    if result.status == "failed":
        first = result.failures[0]
        return Ran(None, f"rank {first.rank}: {first.error}", detail)
    return Ran(result)


def _path() -> str:
    """Where Python finds this very kernbench, also one that is not installed."""
    home = Path(__file__).parents[2]
    given = os.environ.get("PYTHONPATH", "")
    return given if home.name == "site-packages" else os.pathsep.join(filter(None, [str(home), given]))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
