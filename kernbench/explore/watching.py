"""Watching a run: what its collectives give, what went wrong, which answers its schedule has given."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from kernbench.errors import CollectiveMismatchError, ConfigError, DeadlockError, RaceError, message_of
from kernbench.explore.trial import Trial, Trouble
from kernbench.order import Conflicts
from kernbench.scheduler.tracebacks import headline
from kernbench.simulation.matching.groups import Arrival, Collective
from kernbench.simulation.memory.tensor_queries import plain

_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_KINDS = {RaceError: "race", DeadlockError: "deadlock", CollectiveMismatchError: "mismatch"}
_OF_RANK = re.compile(r"\[rank(\d+)\] ?(.*)")


_MOST_KEPT = 1 << 24


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def _together(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """All values of a call, of one dtype, in a row."""
    if not tensors or sum(tensor.nbytes for tensor in tensors) > _MOST_KEPT:
        return None
    return torch.cat([tensor.reshape(-1).clone() for tensor in tensors])


class Watch:
    """A plugin that watches the simulations of one run.

    Args:
        keep: of the values of collectives, the one to keep whole, by its place; None: none.
        follow: find out where another answer may matter.
    """

    name = "explore"

    def __init__(self, keep: int | None = None, *, follow: bool = False) -> None:
        self.values: list[tuple[str, str]] = []
        self.kept: Any = None
        self._keep = keep
        self._calls: Counter[tuple[str, str, int]] = Counter()
        self._contexts: list[Any] = []
        self._conflicts = Conflicts() if follow else None
        self._followed = False

    def kernbench_context_opened(self, ctx: Any) -> None:
        """See :mod:`kernbench.plugins.specs`."""
        self._contexts.append(ctx)
        if self._conflicts is not None and len(self._contexts) == 1:
            order, giving_way = ctx.simulation.order, ctx.simulation.giving_way
            if order is not None and giving_way is not None:
                self._followed = True
                order.races.unordered = self._conflicts.met
                giving_way.follow(self._conflicts)
        if ctx.enable_data:
            ctx.simulation.runs.watch = self._moved

    def _moved(self, collective: Collective, arrivals: Sequence[Arrival]) -> None:
        group, op = collective.group.name, collective.signature.op
        for arrival in dict.fromkeys(arrivals):
            key = group, op, arrival.rank
            self._calls[key] += 1
            name = f"{op} number {self._calls[key]} of rank {arrival.rank} on {group}, at {arrival.location}"
            digest = hashlib.blake2b(digest_size=8)
            tensors = [plain(tensor).detach() for tensor in arrival.outputs]
            for tensor in tensors:
                digest.update(_bytes_of(tensor))
            if self._keep == len(self.values):
                self.kept = _together(tensors)
            self.values.append((name, digest.hexdigest()))

    def trial(self, schedule: str, output: str, failure: BaseException | None) -> Trial:
        """What the run came to, which has printed ``output`` and ended with ``failure`` (None: well).

        Raises :class:`ConfigError` if it could not be followed.
        """
        trial = Trial(schedule, output=lines_by_rank(output), values=self.values, kept=self.kept)
        choices = self._contexts[0].simulation.choices if self._contexts else None
        if choices is not None:
            trial.taken = list(zip(choices.taken, choices.places, strict=True))
            trial.asked, trial.steps = choices.asked.total(), choices.steps
        trial.trouble = self._trouble(failure)
        if self._conflicts is not None:
            if self._contexts and not self._followed:
                raise ConfigError(
                    "exhaustive search needs --races warn or error: they tell where another order matters"
                )
            trial.open, trial.alike = self._conflicts.open()
            trial.signature = repr(self._conflicts.signature)
            trial.pairs = self._conflicts.pairs
        return trial

    def _trouble(self, failure: BaseException | None) -> Trouble | None:
        for ctx in self._contexts:
            order = ctx.simulation.order
            if order is not None and order.races.found:
                race = order.races.found[0]
                places = [(each.where.file, each.where.line) for each in (race.first, race.second)]
                return Trouble("race", (race.kind, *places), str(race))
            for rank in ctx.scheduler.failed:
                return trouble_of(rank.error, rank.traceback, f"rank {rank.index}")
        return None if failure is None else trouble_of(failure, "", "the program")


def trouble_of(error: BaseException | None, traceback: str, who: str) -> Trouble:
    """What went wrong, of an error and its traceback."""
    kind = next((kind for error_type, kind in _KINDS.items() if isinstance(error, error_type)), "exception")
    said = "" if error is None else message_of(error) if kind != "exception" else headline(error)
    if kind == "deadlock":
        return Trouble(kind, kind, said)
    lines = _LINE.findall(traceback)
    place = lines[-1] if lines else ("", "")
    text = said if kind != "exception" else f"{who} raises {traceback.strip() or said}"
    return Trouble(kind, (type(error).__name__, *place), text)


def lines_by_rank(output: str) -> dict[int, list[str]]:
    """The lines of each rank, of output with the rank in front of each; others' are -1's."""
    lines: dict[int, list[str]] = {}
    for line in output.splitlines():
        found = _OF_RANK.fullmatch(line)
        rank, text = (-1, line) if found is None else (int(found[1]), found[2])
        lines.setdefault(rank, []).append(text)
    return lines
