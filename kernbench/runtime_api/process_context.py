"""What ``spawn(join=False)`` returns: ranks that run while a caller joins them, and what stands for their processes."""

from __future__ import annotations

import signal

from kernbench.scheduler.rank import Rank, RankPhase
from kernbench.simulation.ranks.failures import SpawnException, pid_of
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.rank_state.clocks import PATIENCE, POLL_STEP


class ProcessContext:
    """The ranks of a spawn that has not joined them.

    Attributes:
        processes: what stands for their processes, by rank.
    """

    def __init__(self, simulation: Simulation, nprocs: int) -> None:
        self._simulation = simulation
        self._ranks = simulation.scheduler.ranks
        self._joined = nprocs == 0
        self._failure: SpawnException | None = None
        self._looks = 0
        run = {rank.index: rank for rank in self._ranks}
        self.processes = [SpawnedProcess(self, index, run.get(index)) for index in range(nprocs)]

    @property
    def over(self) -> bool:
        """Whether all have ended."""
        return self._joined or self._simulation.scheduler.ranks is not self._ranks

    def pids(self) -> list[int]:
        """Stand-ins for process ids, one per rank."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Run the ranks until one more of them has ended, or all have.

        Args:
            timeout: at most this long, in virtual seconds.
            grace_period: accepted for compatibility; ranks are always unwound at once.

        Returns:
            True if all ranks have ended, False if more remain (also after one has ended), as torch does.

        Raises:
            SpawnException: a rank raised. The others have been unwound.
        """
        self.raise_failure()
        if self.over:
            return True
        scheduler = self._simulation.scheduler
        live = scheduler.live_count
        try:
            self._joined = self._simulation.threads.go_on_for(
                None if timeout is None else timeout or POLL_STEP, lambda: scheduler.live_count < live
            )
        except BaseException:
            self._joined = True
            raise
        if self._joined:
            self._simulation.world.close()
        return self._joined

    def poll(self) -> None:
        """Main looks whether they have ended: if it does nothing else for long, they go on a little, so that it sees them end.

        What they fail with is raised where they are joined, or where the context ends.
        """
        self._looks += 1
        if self._looks <= PATIENCE or not self._simulation.world.is_beside:
            return
        try:
            self._simulation.threads.go_on_for(POLL_STEP)
        except SpawnException as failure:
            self._joined, self._failure = True, failure

    def raise_failure(self) -> None:
        """Raise what they have failed with, if nothing has yet."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def end(self, number: int) -> None:
        """Have all ranks that are left unwound, as if a signal had ended their processes: one alone would leave the others
        to wait for it in vain."""
        if self.over:
            return
        for process in self.processes:
            process.killed_by(number)
        self._joined = True
        self._simulation.world.abort()


class SpawnedProcess:
    """What a program keeps of a process that it has spawned: a rank, which runs while main waits.

    Args:
        rank: None: it is not run, because another one does the same.

    Attributes:
        name, pid: made up.
    """

    def __init__(self, context: ProcessContext, index: int, rank: Rank | None) -> None:
        self.name = f"SpawnProcess-{index + 1}"
        self.pid = pid_of(index)
        self._context = context
        self._rank = rank
        self._signal = 0

    @property
    def exitcode(self) -> int | None:
        """As multiprocessing has it; None while it runs. See :meth:`ProcessContext.poll`."""
        if self.is_alive():
            return None
        phase = RankPhase.DONE if self._rank is None else self._rank.phase
        if self._signal or phase is RankPhase.ABORTED:  # torch ends the others when one has failed
            return -(self._signal or signal.SIGTERM)
        return int(phase is RankPhase.FAILED)

    def is_alive(self) -> bool:
        """Whether its rank has not ended. See :meth:`ProcessContext.poll`."""
        alive = self._lives()
        if alive:
            self._context.poll()
        return alive

    def _lives(self) -> bool:
        return not self._context.over if self._rank is None else self._rank.live and not self._signal

    def join(self, timeout: float | None = None) -> None:
        """Run the ranks until this one has ended, or at most ``timeout`` virtual seconds for each that ends before.

        Raises:
            SpawnException: a rank raised. The others have been unwound.
        """
        while self._lives() and not self._context.over:
            if not self._context.join(timeout) and timeout is not None:
                return

    def terminate(self) -> None:
        """See :meth:`ProcessContext.end`."""
        self._context.end(signal.SIGTERM)

    def kill(self) -> None:
        """See :meth:`ProcessContext.end`."""
        self._context.end(signal.SIGKILL)

    def killed_by(self, number: int) -> None:
        """It ends by a signal, if it has not."""
        if self._lives():
            self._signal = number
