"""Features listen: the stages of an operation's path, and what is called at each of them (ADR 0160).

A feature that has to do with every operation (the order of events, weak memory, plugins' hooks, jitter, schedules that
interrupt, fills of fresh memory) is a :class:`Listener`. It overrides the stages that concern it; the path calls at each stage
those that do, in the order in which they were registered. Where no feature listens, nothing is called and nothing is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from kernbench.sim_engine import Operation
from kernbench.simulation.ranks.hosts import Host


class Listener:
    """What a feature does at the stages of an operation.

    Stages of streams, for all that is put on one; then those of torch's operations, whose ``call`` is a
    :class:`kernbench.torch_backend.operations.calls.OperatorCall`.
    """

    def enqueueing(self) -> None:
        """The host that runs is about to put an operation, or its part of a collective, on a stream."""

    def priced(self, host: Host, op: Operation) -> None:
        """How long an operation takes is known, and not yet when."""

    def enqueued(self, host: Host, op: Operation) -> None:
        """An operation is on its stream."""

    def posted(
        self, host: Host, op: Operation, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """A host's part of a collective or message has been made: it reads ``inputs`` and writes ``outputs`` until it ends."""

    def taken(self, host: Host, tensor: torch.Tensor, taken: torch.Tensor) -> None:
        """A message has taken a tensor as it is now: ``taken`` has its memory."""

    def looking(self, call: Any) -> None:
        """The host is about to get a value by an operation of torch."""

    def computing(self, call: Any) -> AbstractContextManager[Any] | None:
        """An operation of torch is about to be computed: what holds meanwhile, None: nothing."""

    def computed(self, call: Any) -> None:
        """It has a result."""

    def recorded(self, call: Any) -> None:
        """Its result is where it belongs, and it is on a stream if it takes time."""


class Stages:
    """What is called at each stage, in the order of the listeners; an empty tuple where none listens."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        def of(stage: str) -> tuple[Callable[..., Any], ...]:
            stock = getattr(Listener, stage)
            return tuple([getattr(each, stage) for each in found if getattr(type(each), stage) is not stock])

        found = list(listeners)
        self.any = bool(found)
        self.enqueueing, self.priced, self.enqueued, self.posted, self.taken = map(
            of, ("enqueueing", "priced", "enqueued", "posted", "taken")
        )
        self.looking, self.computing, self.computed, self.recorded = map(
            of, ("looking", "computing", "computed", "recorded")
        )

    def around_computing(self, call: object) -> AbstractContextManager[Any]:
        """All that holds while an operation is computed."""
        stack = ExitStack()
        for listener in self.computing:
            around = listener(call)
            if around is not None:
                stack.enter_context(around)
        return stack
