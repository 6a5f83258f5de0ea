"""The rows of a collective bench in the manner of nccl-tests: what is measured, and what was."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernbench.benches.harness.elements import ELEMENT_TYPES, ElementType


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
