"""What ``spawn`` raises when ranks have failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.multiprocessing

from kernbench.errors import DeadlockError, KernbenchError
from kernbench.scheduler import Rank

_MOST_TRACEBACKS = 8


class SpawnException(KernbenchError, torch.multiprocessing.ProcessRaisedException):
    """One or more ranks raised.

    Attributes:
        errors: ``{rank: exception}`` of the root causes; ranks that were unwound because of them are not in it.
        error_index: the first rank in it, as ``torch.multiprocessing.ProcessRaisedException`` has it.
        error_pid: a stand-in for the process id that handlers of that exception may print.
    """

    def __init__(self, failed: Sequence[Rank]) -> None:
        ordered = sorted(failed, key=lambda rank: rank.index)
        self.errors = {rank.index: rank.error for rank in ordered if rank.error is not None}
        told: dict[str, int] = {}
        message = "".join(
            f"\n\n-- Process {rank.index} terminated with the following error:\n{_once(rank, told)}"
            for rank in ordered[:_MOST_TRACEBACKS]
        )
        if len(ordered) > _MOST_TRACEBACKS:
            message += f"\n\n... and {len(ordered) - _MOST_TRACEBACKS} more ranks: see .errors"
        first = ordered[0].index
        torch.multiprocessing.ProcessRaisedException.__init__(self, message, first, pid_of(first))

    def __reduce__(self) -> Any:
        return RuntimeError, (str(self),)


def _once(rank: Rank, told: dict[str, int]) -> str:
    """A rank's traceback. A report that another rank has shown, whom ``told`` names, is not shown again."""
    report = str(rank.error)
    if isinstance(rank.error, DeadlockError) and told.setdefault(report, rank.index) != rank.index:
        return rank.traceback.replace(report, f"deadlock: the report is that of process {told[report]} above.")
    return rank.traceback


def pid_of(rank: int) -> int:
    """The number that stands for a process id of a simulated rank: never one of a real process."""
    return -(rank + 1)
