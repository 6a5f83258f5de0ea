"""A run while it lasts: what another thread than the one that runs can see of it.

The run notifies no viewer, and viewers notify no rank, so a run is the same with a viewer and without. What is read may
be of neighbouring moments: ranks go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kernbench.simulation.deadlock_reports import who_waits
from kernbench.simulation.memory.process_memory import ProcessMemory
from kernbench.simulation.simulation import Simulation

MOST_RANKS = 64
"""Ranks that are shown one by one: the first ones."""
MOST_MEETINGS = 16
"""Collectives that are shown which members are missing in."""

_ATTEMPTS = 20

T = TypeVar("T")


def live_state(simulation: Simulation) -> dict[str, object]:
    """How far a run has got, for JSON. Times are virtual seconds, sizes bytes.

    - ``operations``, ``collectives``: enqueued operations, and collectives that have ended; ``begun``: those whose
      members have all come;
    - ``steps``, ``wanted``: optimizer steps that every rank has made, and after which the program is stopped (None: never);
    - ``alive``, ``ranks``, ``world``: ranks that have not ended, that run, and of the world (others may stand in for some);
    - ``time``: the latest of all clocks;
    - ``missing``: collectives that wait for members;
    - ``fullest``: the rank with the highest peak of memory, None if none is known;
    - ``rows``: the first :data:`MOST_RANKS` ranks.
    """
    return _settled(lambda: _look_at(simulation))


def _settled(look: Callable[[], T]) -> T:
    """What is read must not grow while it is gone through: then look again."""
    for _ in range(_ATTEMPTS):
        try:
            return look()
        except RuntimeError:  # a dictionary has changed its size
            continue
    return look()


def _look_at(simulation: Simulation) -> dict[str, object]:
    scheduler, log, matcher = simulation.scheduler, simulation.engine.op_log, simulation.matcher
    hosts = dict(simulation.hosts.of_rank)
    memories = {each.host.rank: each for each in simulation.memories.of_last_world()}
    waits_for, doing = who_waits(scheduler, simulation.waits, matcher)
    phases = {rank.index: rank.phase.value for rank in [*scheduler.ranks]}
    pending = [*matcher.pending]
    capacity = simulation.topology.device.hbm.size
    # what a process allocates is reported when it ends: until then there is no peak
    memory = {rank: _memory(each, capacity) for rank, each in memories.items() if each.ledger.peak}
    fullest = max(memory, key=lambda rank: (memory[rank]["peak"], -(rank or 0)), default=None)
    steps = simulation.steps
    made = {rank: mine.count for rank, mine in dict(steps.of_rank).items()}
    folding = simulation.hosts.folding
    return {
        "operations": log.dropped + len(log.operations),
        "collectives": matcher.posted - sum(not each.complete for each in pending),
        "begun": matcher.posted - sum(not each.matched for each in pending),
        "steps": min(made.values(), default=0),
        "wanted": steps.limit,
        "alive": scheduler.live_count,
        "ranks": len(phases),
        "world": len(phases) if folding is None else folding.world,
        "time": max([simulation.engine.now, *(host.clock for host in hosts.values())]),
        "missing": [
            {"what": str(each), "there": len(each.arrivals), "missing": each.missing}
            for each in pending if not each.matched
        ][:MOST_MEETINGS],
        "fullest": None if fullest is None else {"rank": fullest, **memory[fullest]},
        "rows": [
            {
                "rank": rank,
                "phase": "waiting" if rank in waits_for or words.startswith("waits") else phases.get(rank, "done"),
                "time": None if rank not in hosts else hosts[rank].clock, "step": made.get(rank, 0), "doing": words,
                "waits_for": waits_for.get(rank, [])[:MOST_RANKS], "memory": memory.get(rank),
            }
            for rank, words in list(doing.items())[:MOST_RANKS]
        ],
    }  # fmt: skip


def _memory(memory: ProcessMemory, capacity: int) -> dict[str, object]:
    allocator, room = memory.allocator, memory.room
    return {
        "used": allocator.allocated, "reserved": allocator.reserved, "peak": memory.ledger.peak,
        "capacity": capacity if room is None else room,
    }  # fmt: skip
