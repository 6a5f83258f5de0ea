"""Finds out which ranks of a program do the same: rank 0 runs it alone up to the end of its first optimizer step.

See :mod:`kernbench.simulation.folding`. A scout has a simulation of its own; what it prints is dropped.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from kernbench.errors import ConfigError, KernbenchError
from kernbench.simulation.failures import SpawnException
from kernbench.simulation.folding import Axis, Folding, chosen_ranks

_MOST_SCOUTS = 8


class Scouts:
    """Decides who runs, by running scouts.

    Args:
        ranks: ``"auto"``, ``"all"``, or the ranks to run, as ``"0,8-11"``.
        fresh: makes a context like the one that the program will run in.

    Attributes:
        found: the folding of the last spawn, None if all ranks ran.
    """

    def __init__(self, ranks: str, fresh: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._ranks = ranks
        self._fresh = fresh
        self.found: Folding | None = None

    def __call__(
        self,
        multiprocessing: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        nprocs: int,
        isolation: str,
        per_rank_modules: Sequence[str],
    ) -> Folding | None:
        """Who runs of ``nprocs`` ranks; None: all."""
        chosen = chosen_ranks(self._ranks, nprocs)
        self.found = None
        if chosen == "all" or nprocs == 1:
            return None
        if isolation != "carrier":
            raise ConfigError(f"ranks={self._ranks!r} needs isolation='carrier'")
        if isinstance(chosen, tuple):
            folding = Folding(nprocs, chosen, frozenset({Axis(1, nprocs)}))
        else:
            folding = Folding(nprocs, (0,), scouting=True)
        for _ in range(_MOST_SCOUTS):
            if not folding.scouting:
                break
            self._scout(multiprocessing, fn, args, nprocs, per_rank_modules, folding)
            folding = folding.refined()
        if len(folding.live) == nprocs or folding.scouting:
            return None
        self.found = folding
        return folding

    def _scout(
        self,
        multiprocessing: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        nprocs: int,
        per_rank_modules: Sequence[str],
        folding: Folding,
    ) -> None:
        hook = register_optimizer_step_post_hook(lambda *ignored: folding.stepped())
        try:
            with _silence(), self._fresh() as ctx:
                ctx.multiprocessing.configure = multiprocessing.configure
                # an error of the program's is for the run to tell: whoever runs then meets it too
                with contextlib.suppress(SpawnException, KernbenchError):
                    ctx.multiprocessing.run_part(fn, args, nprocs, per_rank_modules, folding)
        finally:
            hook.remove()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What is printed in a block, by whomever, is dropped."""
    streams = sys.stdout, sys.stderr
    for stream in streams:
        stream.flush()
    kept = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with open(os.devnull, "w") as sink:
            sys.stdout = sys.stderr = sink
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            try:
                yield
            finally:
                sys.stdout, sys.stderr = streams
    finally:
        os.close(nowhere)
        for target, before in zip((1, 2), kept, strict=True):
            os.dup2(before, target)
            os.close(before)
