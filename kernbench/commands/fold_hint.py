"""Says of a run of all ranks without data that fewer would do (``--ranks auto``), as soon as it shows.

What a scout would find out beforehand, the run itself has met by the end of rank 0's first optimizer step: the groups that it
is in, and who wants something of whom. Nothing is run for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TextIO

from kernbench.simulation.ranks.folding import Folding, ScoutEndedError
from kernbench.simulation.ranks.training_steps import StepEnd
from kernbench.simulation.simulation import Simulation

_MOST_SCOUTS = 8


def would_run(world: int, groups: Collection[tuple[int, ...]], needs: Iterable[tuple[int, tuple[int, ...]]]) -> int:
    """How many ranks ``--ranks auto`` would run.

    Args:
        world: number of ranks.
        groups: members of each group that the program has made.
        needs: who has wanted something (a message) of whom.
    """
    folding, needs = Folding(world, (0,), scouting=True), list(needs)
    for _ in range(_MOST_SCOUTS):
        if not folding.scouting:
            return len(folding.live)
        for members in groups:
            folding.made(members)
        for rank, members in needs:
            if folding.runs(rank):
                with suppress(ScoutEndedError):
                    folding.need(rank, members, "a message")
        folding = folding.refined()
    return world


class FoldHint:
    """Follows a run.

    Args:
        simulation: of the run.
        out: where to say it at once; None: in the summary alone.
    """

    def __init__(self, simulation: Simulation, out: TextIO | None) -> None:
        self._simulation = simulation
        self._out = out
        self._said = False
        simulation.steps.noted = self._step_ended

    def _step_ended(self, number: int, end: StepEnd) -> None:
        if not self._said and self._simulation.hosts.current().rank == 0:
            self._said = True
            hosts = self._simulation.hosts
            world = len(hosts.of_rank)
            count = would_run(world, self._simulation.world.communicators.members, hosts.needs)
            if count < world:
                self._say(f"all {world} ranks run; --ranks auto would run {count} of {world}")

    def _say(self, text: str) -> None:
        self._simulation.remarks.setdefault(f"{text}, and take the others to do what these do")
        if self._out is not None:
            with suppress(OSError, ValueError):  # a terminal that is gone is no reason for a run to end
                self._out.write(f"kernbench: {text}\n")
                self._out.flush()
