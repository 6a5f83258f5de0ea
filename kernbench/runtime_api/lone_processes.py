"""Processes that use a GPU and are no ranks: workers of a pool, a program that another one starts.

Each has a simulation of its own, from its first use of a GPU until it ends: it is rank 0 of a world of one, where it stands
(:mod:`kernbench.runtime_api.being_alone`). What its environment says of that comes from here, and here its figures arrive: in a
file that no folder has.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernbench.runtime_api.child_variables import child_variables
from kernbench.runtime_api.start_up import ALONE
from kernbench.topology import Topology
from kernbench.trace.process_figures import ProcessFigures, read

_OPTIONS = (
    "nodes", "seed", "enable_data", "unknown", "memory_limit", "exact_dtype", "fill_uninitialized", "memory", "jitter",
)  # fmt: skip
"""Options of a simulation that hold for the simulations of these processes. They are no ranks, of which some are slower."""


class LoneProcesses:
    """Those that a program starts, from the side of its simulation.

    Args:
        system: name of a shipped system, or the path of a file.
        options: of :func:`kernbench.simulate`. Races are an error, or are not looked for: they are not collected.
    """

    def __init__(self, system: str | Path, options: Mapping[str, Any]) -> None:
        told = {name: options[name] for name in _OPTIONS if name in options}
        if options.get("races") in ("error", True):
            told["races"] = "error"
        place = os.path.abspath(system) if os.path.exists(system) else str(system)
        self._file = os.memfd_create("kernbench-figures")
        self._told = json.dumps({"system": place, "options": told, "figures": f"/proc/{os.getpid()}/fd/{self._file}"})

    def variables_of(self, topology: Topology) -> Callable[[Mapping[str, str]], dict[str, str]]:
        """What else the environment says of a process that is started with these variables."""

        def of_children(environ: Mapping[str, str]) -> dict[str, str]:
            return {**child_variables(topology, environ), **self.variables}

        return of_children

    @property
    def variables(self) -> dict[str, str]:
        """Of their environment."""
        return {ALONE: self._told}

    def figures(self) -> list[ProcessFigures]:
        """What they have said so far."""
        size = os.fstat(self._file).st_size
        return read(os.pread(self._file, size, 0))

    def close(self) -> None:
        """None writes any more. Idempotent."""
        with contextlib.suppress(OSError):
            os.close(self._file)
