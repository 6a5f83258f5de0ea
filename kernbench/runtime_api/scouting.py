"""Finds out which ranks of a program do the same: rank 0 runs it alone up to the end of its first optimizer step.

See :mod:`kernbench.simulation.ranks.folding`. A scout has a simulation of its own; what it prints is dropped.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kernbench.errors import ConfigError, KernbenchError
from kernbench.runtime_api.multiprocessing import Multiprocessing, SpawnCall
from kernbench.runtime_api.scout_progress import showing
from kernbench.simulation.ranks.failures import SpawnException
from kernbench.simulation.ranks.folding import Axis, Folding, chosen_ranks

_MOST_SCOUTS = 8


class Scouts:
    """Decides who runs, by running scouts.

    Args:
        ranks: ``"auto"``, ``"all"``, or the ranks to run, as ``"0,8-11"``.
        fresh: makes a context like the one that the program will run in.

    Attributes:
        tell: whether a scout that takes long says on stderr how far it has got.
    """

    def __init__(self, ranks: str, fresh: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._ranks = ranks
        self._fresh = fresh
        self.tell = True

    def __call__(self, multiprocessing: Multiprocessing, program: SpawnCall) -> Folding | None:
        """Who runs ``program``; None: all."""
        world = program.nprocs
        chosen = chosen_ranks(self._ranks, world)
        if chosen == "all" or world == 1:
            return None
        if program.isolation != "carrier":
            raise ConfigError(f"ranks={self._ranks!r} needs isolation='carrier'")
        if isinstance(chosen, tuple):
            folding = Folding(world, chosen, frozenset({Axis(1, world)}))
        else:
            folding = Folding(world, (0,), scouting=True)
        for _ in range(_MOST_SCOUTS):
            if not folding.scouting:
                break
            self._scout(multiprocessing, program, folding)
            folding = folding.refined()
        if len(folding.live) < world and not folding.scouting:
            return folding
        for reason in folding.calls:
            multiprocessing.remark(f"all {world} ranks run: {reason}")
        return None

    def _scout(self, multiprocessing: Multiprocessing, program: SpawnCall, folding: Folding) -> None:
        with _silence() as terminal, self._fresh() as ctx, contextlib.ExitStack() as stack:
            if self.tell:
                stack.enter_context(showing(ctx.simulation, folding, terminal))
            ctx.simulation.steps.stop_after(1)
            ctx.multiprocessing.configure = multiprocessing.configure
            # an error of the program's is for the run to tell: the run that follows meets it too
            with contextlib.suppress(SpawnException, KernbenchError):
                ctx.multiprocessing.run_part(program, folding)


@contextlib.contextmanager
def _silence() -> Iterator[int]:
    """What is printed in a block, by any writer, is dropped; gives the descriptor of what was stderr."""
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
                yield kept[1]
            finally:
                sys.stdout, sys.stderr = streams
    finally:
        os.close(nowhere)
        for target, before in zip((1, 2), kept, strict=True):
            os.dup2(before, target)
            os.close(before)
