"""FSDP's profiler of itself, for ranks that share a process.

It notes in a set of its class what it measures now, and refuses to measure that twice: the ranks of a process would meet
there while they wait for one another. Here the set is each thread's, which is each rank's.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.fsdp._debug_utils"


RELIES_ON = (
    Reliance(
        f"{MODULE}.SimpleProfiler.profiling", "it is used through `in`, `add`, `remove` and `clear`",
        looked_up_by=(f"{MODULE}.SimpleProfiler",), has=("__contains__", "add", "remove", "clear"),
    ),
)  # fmt: skip


class _OwnSet(threading.local):
    """A set per thread."""

    def __init__(self) -> None:
        values: set[Any] = set()
        self.add, self.remove, self.clear = values.add, values.discard, values.clear
        self._values = values

    def __contains__(self, value: object) -> bool:
        return value in self._values


def install(patches: Patches, module: ModuleType) -> None:
    """Give each rank its set."""
    patches.set(module.SimpleProfiler, "profiling", _OwnSet())
