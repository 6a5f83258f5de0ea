"""What the runtime keeps per rank (and for main)."""

from __future__ import annotations

import torch

from kernbench.sim_engine.operation import Operation


class RankState:
    """One rank's side of the simulation.

    Attributes:
        rank: index, None for main.
        sip: SIP that it drives.
        clock: its host clock, virtual seconds.
        last: the last operation it enqueued on its compute stream.
        tails: the last operation it enqueued on each stream, by the stream's name.
        inside_operation: whether torch is computing an operation that the context records.
        holds_tensors: whether it has made tensors of the context.
        generator: its random generator.
    """

    __slots__ = (
        "__weakref__",
        "_generator",
        "_seed",
        "clock",
        "holds_tensors",
        "idle_polls",
        "inside_operation",
        "last",
        "progress_seen",
        "rank",
        "sip",
        "tails",
    )

    def __init__(self, rank: int | None, sip: int, seed: int, clock: float = 0.0) -> None:
        self.rank = rank
        self.sip = sip
        self.clock = clock
        self.last: Operation | None = None
        self.tails: dict[str, Operation] = {}
        self.idle_polls = 0
        self.inside_operation = False
        self.holds_tensors = False
        self.progress_seen = -1
        self._seed = seed if rank is None else seed * 1_000_003 + rank + 1
        self._generator: torch.Generator | None = None

    @property
    def generator(self) -> torch.Generator:
        """The rank's generator, seeded by the context's seed and the rank until it is seeded by hand."""
        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self._seed)
        return self._generator

    @property
    def label(self) -> str:
        return "main" if self.rank is None else f"rank {self.rank}"
