"""The simulated rank that is running, as a library of programs sees it: :mod:`kernbench.tp`, say.

Such a library runs in simulated ranks, in real processes and in a process that is alone. Where no rank is simulated,
:func:`running_rank` is None, and the library does what it does on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.scheduler.carrier import has_own_thread
from kernbench.simulation.active_simulation import current_owner, current_simulation
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.simulation import Simulation
from kernbench.topology.device import DeviceSpec


def running_rank() -> Host | None:
    """What stands for the rank: a library keeps what is a process's global on a GPU in a mapping with this as its weak key."""
    return current_owner()


def rank_number() -> int:
    """The rank's number in its world; 0 where none is simulated."""
    rank = current_owner()
    return 0 if rank is None or rank.rank is None else rank.rank


def rank_count() -> int:
    """Ranks of its world; 1 where none is simulated."""
    simulation = _of_rank()
    return 1 if simulation is None else simulation.world.size


def group_of(ranks: Sequence[int]) -> object:
    """A new process group, which every rank of the world makes; None where none is simulated."""
    simulation = _of_rank()
    return None if simulation is None else simulation.distributed.new_group(list(ranks))


def has_thread() -> bool:
    """Whether the rank, or the process, has what torch keeps per thread to itself: autograd may wait for other ranks then."""
    return current_owner() is None or has_own_thread()


def has_values() -> bool:
    """False in a simulation that models time only: what tensors hold does not matter there."""
    simulation = current_simulation()
    return simulation is None or simulation.engine.enable_data


def simulated_device() -> DeviceSpec | None:
    """The description of the GPUs of the simulation that is open; None if there is none."""
    simulation = current_simulation()
    return None if simulation is None else simulation.topology.device


def _of_rank() -> Simulation | None:
    return None if current_owner() is None else current_simulation()
