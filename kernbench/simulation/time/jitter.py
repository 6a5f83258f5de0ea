"""Ranks that are not equally quick (ADR 0130).

A board's clock depends on its silicon, its cooling and its power; hosts have other work. So the kernels of one rank take longer
than those of another, and who is slow changes. What differs from kernel to kernel averages out over the thousands of a step,
and is not drawn: a rank has one *pace* for a step, by which the time of each of its kernels is multiplied.

Paces are log-normal with mean one, so that none is negative. The draw is a function of the seed, the rank and the step: neither
the order of ranks nor values nor what keeps ranks apart change it. Ranks that are not run draw nothing: who stands for them
takes as long as the slowest of all those alike is expected to, which is what collectives wait for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import exp, isfinite, log1p, sqrt
from statistics import NormalDist

from kernbench.errors import ConfigError
from kernbench.sim_engine import Operation
from kernbench.sim_engine.operation import ON_PES
from kernbench.simulation.ranks.folding import Folding
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.listeners import Listener

_MOST = 1.0
"""Largest standard deviation that is taken: beyond it, the mean of few ranks says nothing."""

_NORMAL = NormalDist()
_REACH, _PARTS = 9.0, 3600  # of the integral over a normal variable


def pace_of(seed: int, rank: int, step: int, spread: float) -> float:
    """How many times as long a rank's kernels take in a step; ``spread``: their standard deviation, mean one."""
    digest = hashlib.blake2b(f"{seed} {rank} {step}".encode(), digest_size=8).digest()
    drawn = ((int.from_bytes(digest, "big") >> 11) + 0.5) / (1 << 53)
    sigma = sqrt(log1p(spread**2))
    return exp(sigma * _NORMAL.inv_cdf(drawn) - sigma**2 / 2)


@lru_cache(256)
def slowest_of(ranks: int, spread: float) -> float:
    """What the largest of so many paces is expected to be.

    With a small ``spread``, ``1 + 1.42 * spread`` for 8, ``2.51`` for 100, ``3.24`` for 1000 (Tippett, Biometrika 17, 1925).
    """
    sigma = sqrt(log1p(spread**2))
    total = below = 0.0
    for part in range(1, _PARTS + 1):
        at = _REACH * (2 * part / _PARTS - 1)
        above = _NORMAL.cdf(at) ** ranks
        total += exp(sigma * (at - _REACH / _PARTS) - sigma**2 / 2) * (above - below)
        below = above
    return total


class Jitter(Listener):
    """The paces of the ranks of one simulation; where it is on, it listens to what they enqueue.

    Args:
        spread: standard deviation of the time of a rank's kernels, as a share, between ranks and steps; 0: all are alike.
        stragglers: by rank, how many times as long its kernels always take besides.
        seed: of the draws.

    Raises:
        ConfigError: a spread that is not between 0 and 1, or a factor that is not positive.
    """

    def __init__(self, spread: float = 0.0, stragglers: Mapping[int, float] | None = None, seed: int = 0) -> None:
        if not 0 <= spread <= _MOST:
            raise ConfigError(f"jitter {spread:g}: expected a share between 0 and {_MOST:g}, such as 0.02")
        self._stragglers = dict(stragglers or {})
        for rank, factor in self._stragglers.items():
            if not (isfinite(factor) and factor > 0):
                raise ConfigError(f"straggler {rank}: a factor of {factor:g}; expected a positive number, such as 1.2")
        self._spread = spread
        self._seed = seed
        self._folding: Folding | None = None
        self._known: dict[tuple[int, int], float] = {}

    def priced(self, host: Host, op: Operation) -> None:
        """See :class:`Listener`."""
        if host.rank is not None and op.kind in ON_PES:
            op.pace = self.pace(host.rank, host.step)

    @property
    def is_on(self) -> bool:
        """Whether any rank is to have another pace than the others."""
        return bool(self._spread or self._stragglers)

    def open(self, size: int, folding: Folding | None) -> None:
        """A world of ``size`` ranks begins. Raises ConfigError for a straggler that is not run."""
        self._known.clear()
        self._folding = folding
        for rank in self._stragglers:
            if not 0 <= rank < size:
                raise ConfigError(f"straggler {rank} is not one of {size} ranks")
            if folding is not None and not folding.scouting and not folding.runs(rank):
                raise ConfigError(
                    f"straggler {rank} is not run: rank {folding.representative(rank)} stands for it. Run it, too: --ranks "
                    f"{','.join(map(str, sorted({*folding.live, rank})))}, or all of them (--ranks all)"
                )

    def pace(self, rank: int, step: int) -> float:
        """By what the time of a rank's kernels is multiplied after ``step`` of its steps."""
        known = self._known.get((rank, step))
        if known is None:
            known = self._known[rank, step] = self._drawn(rank, step) * self._stragglers.get(rank, 1.0)
        return known

    def _drawn(self, rank: int, step: int) -> float:
        if not self._spread:
            return 1.0
        if self._folding is None:
            return pace_of(self._seed, rank, step, self._spread)
        return slowest_of(self._folding.stands_for(rank), self._spread)

    def sentences(self, size: int) -> Iterator[str]:
        """What is to be said of a run of ``size`` ranks; 0: none was started."""
        if self._spread and size:
            slowest = slowest_of(size, self._spread) - 1
            text = (
                f"jitter: the kernels of each rank take {self._spread:.3%} more or less (standard deviation), drawn anew each "
                f"step; those of the slowest of {size} are expected to take {slowest:.2%} more than the mean"
            )
            if self._folding is not None:
                text += ", and ranks that stand for others were given what the slowest of those takes"
            yield text
        for rank, factor in sorted(self._stragglers.items()):
            text = f"straggler: the kernels of rank {rank} were made to take {factor:g} times as long"
            others = 1 if self._folding is None else self._folding.stands_for(rank)
            yield text + (f", and so those of the {others - 1} ranks like it" if others > 1 else "")
