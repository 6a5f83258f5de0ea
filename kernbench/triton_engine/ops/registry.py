"""The table of operations and the decorator that fills it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.triton_engine.lift.program import OpInfo

Implementation = Callable[..., Any]
Builder = Callable[[OpInfo], Implementation]


@dataclass(frozen=True)
class OpDef:
    """How an operation is built, and what the lifter must know of it."""

    build: Builder
    #: No effect on memory and no dependence on it: may be evaluated once per launch.
    pure: bool = True
    reads: bool = False
    writes: bool = False
    #: The result may share memory with an operand (a view).
    alias: bool = False
    #: Counted as floating-point work: ``flops`` per element of the result, on ``unit``.
    flops: int = 0
    unit: str = ""
    #: May write its result over a dying operand of the same shape and type.
    inplace: bool = False
    #: Builds ``into(out, *operands)``, which computes the same bits straight into memory, or returns False if it cannot.
    into: Callable[[OpInfo], Callable[..., bool]] | None = None


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
