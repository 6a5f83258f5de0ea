"""Who runs next: ranks as greenlets or carriers (OS threads behind a baton), policies and the wait-for graph.

This room knows no torch and no virtual time. It guarantees one thing: at any moment exactly one rank, kernel or the
main greenlet executes, and the parent of every rank is main.
"""

from kernbench.scheduler.host_effects import HostEffects
from kernbench.scheduler.policy import ChosenOrder, Policy, RoundRobin, SeededRandom, make_policy
from kernbench.scheduler.rank import RaisedElsewhere, Rank, RankPhase, SideThread
from kernbench.scheduler.rank_scheduler import RankScheduler, named_after
from kernbench.scheduler.tracebacks import user_traceback
from kernbench.scheduler.waitgraph import find_cycle

__all__ = [
    "ChosenOrder", "HostEffects", "Policy", "RaisedElsewhere", "Rank", "RankPhase", "RankScheduler", "RoundRobin",
    "SeededRandom", "SideThread", "find_cycle", "make_policy", "named_after", "user_traceback",
]  # fmt: skip
