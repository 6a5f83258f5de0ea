"""Parallel ahead-of-time compilation of Triton kernels. See ``docs/precompile.md``."""

from kernbench.callable_module import make_callable
from kernbench.precompile.events import CompileCount, CompileEvent, count_compiles
from kernbench.precompile.record import Record, record
from kernbench.precompile.run import Report, precompile
from kernbench.precompile.space import Space, Variant, read_spaces, space, variants
from kernbench.precompile.worker import Compilation

__all__ = [
    "Compilation",
    "CompileCount",
    "CompileEvent",
    "Record",
    "Report",
    "Space",
    "Variant",
    "count_compiles",
    "precompile",
    "read_spaces",
    "record",
    "space",
    "variants",
]

make_callable(__name__)
