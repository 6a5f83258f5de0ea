"""Who runs next: ranks as greenlets, carriers (OS threads behind a baton), policies and the wait-for graph.

This room knows no torch and no virtual time. It guarantees one thing: at any moment exactly one rank, kernel or the
main greenlet executes, and the parent of every rank is main.
"""

from kernbench.scheduler.policy import Policy, RoundRobin, SeededRandom, make_policy
from kernbench.scheduler.ranks import Rank, RankScheduler, RankState
from kernbench.scheduler.waitgraph import find_cycle

__all__ = ["Policy", "Rank", "RankScheduler", "RankState", "RoundRobin", "SeededRandom", "find_cycle", "make_policy"]
