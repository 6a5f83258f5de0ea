"""Starting the ranks of a spawn as processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kernbench.errors import ConfigError, KernbenchError
from kernbench.processes import program
from kernbench.processes.family import Child, Family
from kernbench.processes.rank_process import RankProcesses
from kernbench.processes.relay import Relay
from kernbench.processes.timekeeper import Timekeeper
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.time.free_threads import LOOK
from kernbench.simulation.time.rank_threads import RankThreads
from kernbench.torch_backend.environment import Environment
from kernbench.torch_backend.process_groups import stores


def require(simulation: Simulation) -> None:
    """Raise :class:`ConfigError` if what was asked of a simulation cannot be had with ranks that are processes."""
    if simulation.hooks is not None:
        raise ConfigError(
            "isolation='process': a plugin listens to what ranks do, which their processes do not show: use "
            "isolation='carrier', or run without the plugin"
        )
    if simulation.order is not None:
        asked = "races" if simulation.order.weak is None else "memory='weak'"
        raise ConfigError(
            f"isolation='process': what nothing orders is found where all ranks' accesses are seen: use isolation='carrier' "
            f"with {asked}"
        )


def start(
    simulation: Simulation, environment: Environment, ranks: Sequence[int], bodies: Sequence[Callable[[], object]]
) -> list[Callable[[], Any]]:
    """Fork a process per rank, which runs its body: what the scheduler is to run in their stead.

    The environment is open, and the world is; it ends the processes when it closes. Raises OSError if the system has no more.
    """
    family = Family(ranks, lambda: simulation.scheduler.aborting)
    simulation.world.closers.append(family.close)
    simulation.world.apart = True
    shared = stores.innermost()
    body_of = dict(zip(ranks, bodies, strict=True))

    with suppress(KernbenchError):  # what is wrong with it is reported where it is needed
        simulation.ccl_config  # noqa: B018  read once, not by every rank

    def begin(child: Child) -> None:
        program.run(child, simulation, environment, shared, body_of[child.rank])

    family.start(begin)
    return relay(simulation, family)


def relay(simulation: Simulation, members: RankProcesses, keeper: Timekeeper | None = None) -> list[Callable[[], Any]]:
    """What the scheduler is to run in the stead of ranks whose processes are there, in their order.

    ``keeper``: keeps the time of processes beside them.
    """
    simulation.world.apart = True
    shared = stores.innermost()
    relays = {rank: Relay(simulation, member, members, shared, keeper) for rank, member in members.by_rank.items()}
    rank_of = simulation.scheduler.rank_by_greenlet

    def answer_early(target: object, error: BaseException | None) -> None:
        relay = relays.get(rank_of.get(target, -1))
        if relay is not None and error is None:
            relay.answer_early()

    def await_absent() -> bool:
        if keeper is not None and keeper.active:
            return keeper.await_any(simulation.threads.looks)
        if simulation.threads.looks:
            return _look_or_await(simulation.threads, members)
        return members.await_absent(simulation.threads.limits.first())

    if keeper is not None:
        keeper.serve(members)
        simulation.drain.hold, simulation.drain.let_go = partial(_hold, simulation, keeper), keeper.release
        simulation.world.closers.append(partial(keeper.serve, None))
        simulation.world.closers += [partial(setattr, simulation.drain, each, None) for each in ("hold", "let_go")]

    simulation.waits.resuming, simulation.drain.await_absent = answer_early, await_absent
    simulation.scheduler.apart = members
    simulation.world.closers.append(partial(setattr, simulation.scheduler, "apart", None))
    simulation.world.closers.append(partial(setattr, simulation.waits, "resuming", None))
    simulation.world.closers.append(partial(setattr, simulation.drain, "await_absent", None))
    return [relay.serve for relay in relays.values()]


def _look_or_await(threads: RankThreads, members: RankProcesses) -> bool:
    """As long as ranks are away and no limit runs out: whether one has come back, or what another looks at is ready."""
    waited, limit = 0.0, threads.limits.first()
    while not (threads.look() or members.await_absent(LOOK)):
        waited += LOOK
        if not members.away or (limit is not None and waited > limit):
            return False
    return True


def _hold(simulation: Simulation, keeper: Timekeeper) -> bool:
    """Before time moves: let all processes do what they can at this time; whether a rank can go on."""
    if keeper.hold():
        return True
    if keeper.active:
        if keeper.has_changed() and sum(settle() for settle in simulation.threads.settlers):
            return True
        if simulation.threads.look():
            return True
        simulation.threads.limits.schedule(math.inf)
    return False
