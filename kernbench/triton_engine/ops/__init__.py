"""What each operation does: one table from TTIR operation names to implementations, one module per dialect or family.

An implementation is made once per operation of a program: ``build(info)`` looks at types and attributes and returns
``fn(batch, *operands) -> value`` (a tuple for several results). :data:`TABLE` holds the builders.
"""

from __future__ import annotations

from kernbench.triton_engine.ops.registry import TABLE, OpDef, lookup

__all__ = ["TABLE", "OpDef", "lookup"]
