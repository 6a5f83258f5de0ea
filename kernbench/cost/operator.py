"""An operator of torch, as far as its time depends on it: a row of the table (:mod:`kernbench.cost.operators`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kernbench.cost.operands import Operands, Shapes
from kernbench.cost.scratch import Scratch
from kernbench.memory.workspaces import LT


class Kind(Enum):
    """What the recorder does with an operator."""

    METADATA = "metadata"
    """It launches nothing, and its result is no tensor or the one that it was given."""
    VIEW = "view"
    """It launches nothing and describes memory that is there. The recorder knows these by their schema, too."""
    ALLOCATION = "allocation"
    """It takes memory and launches nothing."""
    HOST_READ = "host read"
    """Its result is a value of the host's, which waits for it."""
    TRANSFER = "transfer"
    """A copy, which may be between two devices."""
    COMPUTE = "compute"


class Model(Enum):
    """Which model says how long it takes."""

    ROWS = "rows"  # row_kernels: bytes, with a block for each row
    TRAFFIC = "traffic"  # memory_bound: bytes, at the pace of a kind of kernel
    PRODUCT = "product"  # gemm
    ATTENTION = "attention"
    BATCH_NORM = "batch norm"
    POOL = "pool"  # pools: images that become smaller or larger
    TABLE_GRADIENT = "table gradient"  # row_kernels: rows that are added up where they came from
    SORT = "sort"  # rows_in_order: rows that are brought into order
    SELECT = "select"  # rows_in_order: the largest elements of rows
    SCAN = "scan"  # rows_in_order: each element is added to those before it
    WORK = "work"  # operations at a share of the device's rate, in dependent steps


Product = tuple[int, int, int, int]
"""Batch, M, N and K."""


class Batched(NamedTuple):
    """What many matrices take that are factorised or solved for together.

    Attributes:
        column: seconds of each column, which waits for the one before, on an H100.
        rate: operations a second, of all together, on an H100.
        alone: matrices of more rows are taken one after the other, each as long as one; 0: of no size.
    """

    column: float = 0.0
    rate: float = 0.0
    alone: int = 0


@dataclass(frozen=True, slots=True)
class Operator:
    """What one operator does.

    Attributes:
        kind: for the recorder.
        model: which model is asked.
        pace: row of :data:`kernbench.cost.memory_bound.OPS` whose kernel it is like; ``"pointwise"`` is ``"unary"`` or
            ``"binary"``, by the operands.
        traffic: bytes read and written, from operands and results.
        products: the matrix products that it is made of, from shapes of operands and results.
        multiplied: positions of the operands that are multiplied: their format selects the engine.
        convolves: whether the product is a convolution's.
        flat: of what is sorted: whether all of it is one row.
        outer: of a scan: whether it is along another dimension than the last.
        recurs: whether it is recurrent layers, whose steps wait for one another.
        images: whether its time depends on how the channels of images lie.
        channels_last: of images: whether the channels of a pixel are beside each other.
        spread: of a convolution: whether its filters are dilated by more than 8.
        overlaps: of a pool: whether its windows overlap.
        evaluated: of a batch norm: whether it never takes statistics.
        adds: whether the first operand is added to the product.
        groups: whether a batch of products is one of groups, of which each has operands of its own.
        library: whose kernel it is (:mod:`kernbench.memory.workspaces`); ``""``: torch's own, or another's.
        scratch: bytes of each piece of memory that its kernels allocate while they run (:mod:`kernbench.cost.scratch`).
        flops: operations, of those that are modelled by them.
        share: of the device's peak that they reach.
        matrix: whether matrix engines do them.
        panels: whether it takes a matrix panel after panel, each waiting for the one before.
        column: seconds of each column of a matrix, which waits for the one before, on an H100.
        batched: what several matrices take, where that is not what one takes with as many operations.
        guessed: whether nothing but its bytes is known of it: it is named as such wherever it is met.
        sequence: dimension of an attention's operands that counts tokens; heads are in the other of the two.
        gradient: whether it is a gradient: of an attention five products instead of two, of a convolution one for each operand.
        variant: whose attention it is (:attr:`kernbench.cost.generations.Generation.attention`).
        launches: kernels, one after the other: a number, or from operands and results.
        lists: whether it takes lists of tensors, each of which costs the host something.
        chosen: whether a library looks for its kernel at each call, which the host pays for.
        bookkeeping: what the host does besides, in units of :attr:`kernbench.topology.system.HostSpec.unit`: a number, or from
            operands and results.
    """

    kind: Kind = Kind.COMPUTE
    model: Model = Model.TRAFFIC
    pace: str = "pointwise"
    traffic: Callable[[Operands, Operands], float] | None = None
    products: Callable[[Shapes, Shapes], list[Product]] | None = None
    multiplied: tuple[int, ...] = (0, 1)
    convolves: bool = False
    flat: bool = False
    outer: bool = False
    recurs: bool = False
    images: bool = False
    channels_last: bool = False
    spread: bool = False
    overlaps: bool = False
    evaluated: bool = False
    adds: bool = False
    groups: bool = False
    library: str = ""
    scratch: Scratch | None = None
    flops: Callable[[Shapes, Shapes], float] | None = None
    share: float = 1.0
    matrix: bool = True
    panels: bool = False
    column: float = 0.0
    batched: Batched | None = None
    guessed: bool = False
    sequence: int = 2
    gradient: bool = False
    variant: str = "flash"
    launches: int | Callable[[Operands, Operands], int] = 1
    lists: bool = False
    chosen: bool = False
    bookkeeping: float | Callable[[Operands, Operands], float] = 0.0

    def library_of(self, given: Shapes) -> str:
        """The library that multiplies operands of these shapes: a bias that is added in the kernel has it be cuBLASLt."""
        return LT if self.library and self.adds and given and len(given[0]) == 1 < len(given[1]) else self.library

    @property
    def uses_matrix_engines(self) -> bool:
        """Whether it is a product, a convolution, an attention."""
        return self.model in (Model.PRODUCT, Model.ATTENTION)

    def count_launches(self, given: Operands, made: Operands) -> int:
        """Kernels that one call launches."""
        if self.kind in (Kind.VIEW, Kind.METADATA, Kind.ALLOCATION):
            return 0
        return self.launches if isinstance(self.launches, int) else self.launches(given, made)

    def keeps_books(self, given: Operands, made: Operands) -> float:
        """:attr:`bookkeeping` of one call."""
        return self.bookkeeping if isinstance(self.bookkeeping, int | float) else self.bookkeeping(given, made)
