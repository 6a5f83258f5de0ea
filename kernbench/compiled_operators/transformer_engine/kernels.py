"""The table of the kernels that the extension's functions launch."""

from __future__ import annotations

from kernbench.compiled_operators.kernel_table import KernelTable

_TABLE = KernelTable("transformer_engine")

operators, kernel, launch = _TABLE.operators, _TABLE.kernel, _TABLE.launch
