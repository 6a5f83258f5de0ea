"""The one table of TTIR operations, and the decorator that fills it.

What a module of the engine must know of an operation by its name is a field of the operation's row here; the modules of this
package register rows, one dialect or family each. Adding an operation touches one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.triton_engine.frontend.types import Ty

Implementation = Callable[..., Any]
#: From what is known of one operation of a program (:class:`..frontend.program.OpInfo`) to what computes it.
Builder = Callable[..., Implementation]
#: Floating-point operations, and their data type and unit.
Work = tuple[int, tuple[str, str]]


@dataclass(frozen=True)
class OpDef:
    """One row of the table: how an operation is built, and all that the rest of the engine must know of it."""

    build: Builder

    # What it does to memory
    #: No effect on memory and no dependence on it: may be evaluated once per launch.
    pure: bool = True
    reads: bool = False
    writes: bool = False
    #: Element by element, in order, whatever the tile: its traffic is counted both ways.
    atomic: bool = False
    #: Operand that holds the tile which it stores.
    stores: int | None = None
    #: May wait for memory inside of itself.
    waits: bool = False
    #: Means nothing here, where the lanes of a batch move in step: it is left out.
    no_effect: bool = False
    #: Fails unless its operand holds wherever it is executed.
    asserts: bool = False
    #: Of one operation's attributes, whether the threads of a program wait for one another there.
    meets: Callable[[dict[str, Any]], bool] | None = None
    #: The threads of a program give one another values there, for which compiled code makes them wait.
    exchanges: bool = False
    #: Of what is known of one operation, whether its scalars, or its effect, are those of single threads.
    tells_threads: Callable[..., bool] | None = None

    # What its result is
    #: The result may share memory with an operand (a view).
    alias: bool = False
    #: May write its result over a dying operand of the same shape and type.
    inplace: bool = False
    #: Builds ``into(out, *operands)``, which computes the same bits straight into memory, or returns False if it cannot.
    into: Builder | None = None
    #: The result has the elements of the operand, in another shape, order or type.
    recasts: bool = False
    #: Appends the lines of LLVM IR that compute one element to the same bits (:mod:`..native.forms`).
    native: Callable[..., str | None] | None = None
    #: It cannot fail, and of tensors is not computed by native code: what is may be computed before or after it.
    passed: bool = False
    #: Its dimensions are the operand's in another order.
    turns: bool = False
    #: All elements of the result are the operand.
    repeats: bool = False
    #: Of a tensor the result is a view, of which this tells the sizes of the tile (1 where it does not vary).
    reshapes: Callable[..., tuple[int, ...]] | None = None
    #: Of a list of operands, the position of the one that the result is, where a boolean among them says so.
    picks: Callable[[list[Any]], int | None] | None = None
    #: Whether one integer is less than, equal to or greater than another: what a waiting loop looks at.
    compares: bool = False
    #: The result's type, where it is printed as the operands' types alone and is not that of the first.
    result_type: Callable[[list[Ty]], Ty] | None = None

    # Addresses
    #: Of affine tiles, the result is affine (or a box): tiles are worth evaluating once per launch.
    symbolic: bool = False
    #: Its integer, pointer and mask operands make that worth it.
    addressing: bool = False
    #: Turns scalars of a program into addresses: lanes are laid out so that these scalars are affine.
    frontier: bool = False
    #: Of pointers, the result depends on where they point, so it holds for one launch only: the next has other tensors.
    tells_addresses: bool = False

    # Work
    #: Floating-point operations per element of the result, on ``unit``: ``vector`` or ``special``.
    flops: int = 0
    unit: str = ""
    #: Work that is not that (:meth:`work_of`).
    work: Callable[..., Work] | None = None
    #: A matrix product: lanes share its rows and columns, and its operands wait in shared memory.
    product: bool = False
    #: One of tiles as they are, without scales.
    plain_product: bool = False

    @property
    def loads(self) -> bool:
        """It reads memory and leaves it as it is."""
        return self.reads and not self.writes

    def work_of(self, info: Any) -> Work:
        """Floating-point operations of one execution by one program."""
        if self.work is not None:
            return self.work(info)
        return (self.flops * info.ty.numel, (info.ty.elem, self.unit)) if self.flops else (0, ("", ""))


TABLE: dict[str, OpDef] = {}

_MODULES = (
    "arith_int",
    "arith_float",
    "compare",
    "select",
    "casts",
    "shape",
    "dot",
    "reduce",
    "region_loops",
    "memory",
    "atomics",
    "descriptors",
    "extern",
    "inline_asm",
    "debug",
)


class UnsupportedOpError(KernbenchError, NotImplementedError):
    """A kernel uses an operation that the engine does not implement. The message names it and the source line."""


def op(*names: str, **properties: Any) -> Callable[[Builder], Builder]:
    """Register a builder for the operations ``names``."""

    def register(build: Builder) -> Builder:
        for name in names:
            TABLE[name] = OpDef(build, **properties)
        return build

    return register


_loaded = False


def lookup(name: str) -> OpDef | None:
    """The definition of an operation, or None."""
    global _loaded
    if not _loaded:
        for module in _MODULES:
            import_module(f"kernbench.triton_engine.ops.{module}")
        _loaded = True
    return TABLE.get(name)
