"""A collective bench in the manner of nccl-tests: what is measured, what the ranks report, what comes out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from benches.harness.elements import ELEMENT_TYPES, ElementType, Inputs, Scratch
from benches.harness.oracle import AllReduceOracle, count_wrong
from kernbench.ccl.schedule import Schedule

PLACES = ("out_of_place", "in_place")


@dataclass(frozen=True)
class Case:
    """One row of the table: an all-reduce of ``count`` elements of a type, with a reduction."""

    index: int
    count: int
    element: ElementType
    op: str

    @property
    def nbytes(self) -> int:
        """Payload of one rank, bytes."""
        return self.count * self.element.itemsize


@dataclass(frozen=True)
class Plan:
    """What a bench measures.

    Attributes:
        cases: the rows, in order.
        iterations: operations that are timed together; a row's time is their mean.
        warmup: operations before them, not timed.
        check: whether the values of each row are held against the oracle.
        seed: of the inputs.
        average: how the ranks' times become one: ``"avg"``, ``"min"``, ``"max"``, ``"rank0"``.
    """

    cases: tuple[Case, ...]
    iterations: int = 1
    warmup: int = 0
    check: bool = True
    seed: int = 0
    average: str = "avg"

    def by_element(self) -> Iterator[tuple[ElementType, list[Case]]]:
        """The cases, grouped by element type."""
        for element, cases in itertools.groupby(self.cases, key=lambda case: case.element):
            yield element, list(cases)

    @classmethod
    def of(
        cls, sizes: Sequence[int], elements: Sequence[str] = ("float",), ops: Sequence[str] = ("sum",), **rest: Any
    ) -> Plan:
        """A plan over ``sizes`` (bytes, rounded down to whole elements), each with every element type and reduction."""
        rows = [
            (nbytes // ELEMENT_TYPES[element].itemsize, ELEMENT_TYPES[element], op)
            for element in elements
            for op in ops
            for nbytes in sizes
        ]
        return cls(tuple(Case(index, *row) for index, row in enumerate(rows)), **rest)


@dataclass(frozen=True)
class Measurement:
    """One operation of a row: ``seconds`` of virtual time; ``wrong`` elements over all ranks, None if unchecked."""

    seconds: float
    wrong: int | None


@dataclass(frozen=True)
class Row:
    """A case and what was measured; None where some rank has reported nothing."""

    case: Case
    world_size: int
    out_of_place: Measurement | None
    in_place: Measurement | None

    def algbw(self, measurement: Measurement) -> float:
        """Algorithm bandwidth, bytes/s: payload by time."""
        return self.case.nbytes / measurement.seconds if measurement.seconds > 0 else 0.0

    def busbw(self, measurement: Measurement) -> float:
        """Bus bandwidth, bytes/s: what each link of an optimal ring would carry, ``2 (n - 1) / n`` of the payload.

        Source: nccl-tests, doc/PERFORMANCE.md.
        """
        return self.algbw(measurement) * 2 * (self.world_size - 1) / self.world_size

    @property
    def measurements(self) -> tuple[Measurement | None, Measurement | None]:
        return self.out_of_place, self.in_place


@dataclass(frozen=True)
class Results:
    """All rows of a bench."""

    rows: tuple[Row, ...]

    @property
    def wrong(self) -> int:
        """Wrong elements over all rows and ranks, and one for each measurement that is missing."""
        return sum(1 if m is None else m.wrong or 0 for row in self.rows for m in row.measurements)

    @property
    def ok(self) -> bool:
        """Whether every row was measured and nothing is wrong."""
        return self.wrong == 0

    @property
    def average_busbw(self) -> float:
        """Mean bus bandwidth over all measurements, bytes/s; 0 if there is none."""
        all_busbw = [row.busbw(m) for row in self.rows for m in row.measurements if m is not None]
        return sum(all_busbw) / len(all_busbw) if all_busbw else 0.0

    def __str__(self) -> str:
        from benches.harness.nccl_format import footer, row_line, table_header

        return "\n".join([*table_header(), *map(row_line, self.rows), *footer(self)])


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

    ctx: Any
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


_sessions: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()


@contextmanager
def session(ctx: Any, plan: Plan, world_size: int, on_row: Callable[[Row], None] | None = None) -> Iterator[Session]:
    """Run ``plan`` in ``ctx``: meanwhile :func:`session_of` gives its ranks this session."""
    _sessions[ctx] = Session(ctx, plan, world_size, on_row)
    try:
        yield _sessions[ctx]
    finally:
        del _sessions[ctx]


def session_of(ctx: Any) -> Session:
    """The session that runs in ``ctx``; one over ``ccl.yaml``'s ``n_elem`` if a worker is spawned without one."""
    found = _sessions.get(ctx)
    if found is None:
        found = _sessions[ctx] = Session(ctx, default_plan(ctx), ctx.distributed.get_world_size())
    return found


def default_plan(ctx: Any) -> Plan:
    """One row: a sum of ``ccl.yaml``'s ``n_elem`` floats."""
    nbytes = ctx.ccl_config.select().n_elem * ELEMENT_TYPES["float"].itemsize
    return Plan.of([nbytes], seed=ctx.seed, check=ctx.enable_data)
