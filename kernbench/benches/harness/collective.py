"""A collective bench in the manner of nccl-tests: what is measured, what the ranks report, what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from kernbench.benches.harness.elements import ELEMENT_TYPES, Inputs, Scratch
from kernbench.benches.harness.nccl_format import Results
from kernbench.benches.harness.nccl_rows import Case, Measurement, Plan, Row
from kernbench.benches.harness.oracle import AllReduceOracle, count_wrong
from kernbench.ccl.schedule import Schedule

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

PLACES = ("out_of_place", "in_place")


_AVERAGES: dict[str, Callable[[Sequence[float]], float]] = {
    "rank0": lambda seconds: seconds[0],
    "avg": lambda seconds: sum(seconds) / len(seconds),
    "min": min,
    "max": max,
}


@dataclass(eq=False)
class Session:
    """One run of a plan: gives ranks their cases and inputs, and takes their times and results.

    Args:
        ctx: the context of the simulation.
        plan: what to measure.
        world_size: number of ranks.
        on_row: called with each row when the last rank has reported it.
    """

    ctx: RuntimeContext
    plan: Plan
    world_size: int
    on_row: Callable[[Row], None] | None = None
    _reports: dict[tuple[int, str], dict[int, tuple[float, int | None]]] = field(default_factory=dict)
    _inputs: dict[tuple[str, str], Inputs] = field(default_factory=dict)
    _oracles: dict[tuple[str, str, Schedule], AllReduceOracle] = field(default_factory=dict)
    _told: set[int] = field(default_factory=set)
    _scratch: Scratch = field(default_factory=Scratch)

    @property
    def check(self) -> bool:
        """Whether values are checked: the plan wants it, and the simulation has values."""
        return self.plan.check and bool(self.ctx.enable_data)

    def fill(self, buffer: Any, case: Case, rank: int) -> None:
        """Write what ``rank`` contributes to ``case`` into its tensor; nothing, if values are not checked."""
        if self.check:
            buffer.copy_(self.ctx.from_numpy(self._inputs_of(case).of(rank, 0, case.count, self._scratch)))

    def record(self, case: Case, place: str, rank: int, seconds: float, result: Any = None) -> None:
        """Take a rank's report: time of one operation, and the tensor that it left, if values are checked."""
        wrong = None
        if self.check and result is not None:
            wide = result.float() if case.element.torch_name == "bfloat16" else result
            wrong = count_wrong(wide.detach().numpy(), self._oracle(case).expected(rank, case.count))
        self._reports.setdefault((case.index, place), {})[rank] = (seconds, wrong)
        if case.index not in self._told:
            row = self.row(case)
            if None not in row.measurements:
                self._told.add(case.index)
                if self.on_row is not None:
                    self.on_row(row)

    def row(self, case: Case) -> Row:
        """What is known of a case."""
        return Row(case, self.world_size, *(self._measurement(case, place) for place in PLACES))

    def results(self) -> Results:
        """All rows."""
        return Results(tuple(self.row(case) for case in self.plan.cases))

    def _measurement(self, case: Case, place: str) -> Measurement | None:
        reports = self._reports.get((case.index, place), {})
        if len(reports) < self.world_size:
            return None
        ranks = [reports[rank] for rank in sorted(reports)]
        checked = [wrong for _, wrong in ranks if wrong is not None]
        return Measurement(
            _AVERAGES[self.plan.average]([seconds for seconds, _ in ranks]), sum(checked) if checked else None
        )

    def _inputs_of(self, case: Case) -> Inputs:
        key = (case.element.name, case.op)
        if key not in self._inputs:
            self._inputs[key] = Inputs(self.plan.seed, case.element, case.op)
        return self._inputs[key]

    def _oracle(self, case: Case) -> AllReduceOracle:
        # which algorithm runs may depend on the size
        schedule = self.ctx.distributed.schedule_of("all_reduce", case.count, getattr(torch, case.element.torch_name))
        key = (case.element.name, case.op, schedule)
        if key not in self._oracles:
            self._oracles.clear()  # rows come type by type: one at a time is enough, and its results are large
            self._oracles[key] = AllReduceOracle(schedule, self._inputs_of(case), case.element, case.op)
        return self._oracles[key]


_sessions: WeakKeyDictionary[object, Session] = WeakKeyDictionary()


@contextmanager
def session(
    ctx: RuntimeContext, plan: Plan, world_size: int, on_row: Callable[[Row], None] | None = None
) -> Iterator[Session]:
    """Run ``plan`` in ``ctx``: meanwhile :func:`session_of` gives its ranks this session."""
    _sessions[ctx] = Session(ctx, plan, world_size, on_row)
    try:
        yield _sessions[ctx]
    finally:
        del _sessions[ctx]


def session_of(ctx: RuntimeContext) -> Session:
    """The session that runs in ``ctx``; one over ``ccl.yaml``'s ``n_elem`` if a worker is spawned without one."""
    found = _sessions.get(ctx)
    if found is None:
        found = _sessions[ctx] = Session(ctx, default_plan(ctx), ctx.distributed.get_world_size())
    return found


def default_plan(ctx: RuntimeContext) -> Plan:
    """One row: a sum of ``ccl.yaml``'s ``n_elem`` floats."""
    nbytes = ctx.ccl_config.select().n_elem * ELEMENT_TYPES["float"].itemsize
    return Plan.of([nbytes], seed=ctx.seed, check=ctx.enable_data)
