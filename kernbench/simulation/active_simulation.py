"""The active simulation: the one that was opened, or spawned ranks, last and has not been closed."""

from __future__ import annotations

import weakref

from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.simulation import Simulation

_active: list[weakref.ref[Simulation]] = []


def current_simulation() -> Simulation | None:
    """The active simulation, or None."""
    while _active:
        simulation = _active[-1]()
        if simulation is not None:
            return simulation
        del _active[-1]  # dropped without having been closed
    return None


def activate(simulation: Simulation) -> None:
    """Make ``simulation`` the active one."""
    deactivate(simulation)
    _active.append(weakref.ref(simulation))


def deactivate(simulation: Simulation) -> None:
    """``simulation`` is no longer active; the one that was active before it is again."""
    _active[:] = [other for other in _active if other() not in (simulation, None)]


def current_owner() -> Host | None:
    """State of the simulated rank that is running, None in main and outside simulations.

    What a real process would keep in a module's globals, a library keeps per owner instead (in a mapping with weak keys),
    so that it works for ranks that share one process.
    """
    simulation = current_simulation()
    if simulation is None:
        return None
    me = simulation.hosts.current()
    return None if me.rank is None else me
