"""The table of the kernels."""

from __future__ import annotations

from kernbench.compiled_operators.kernel_table import KernelTable

TABLE = KernelTable("flashinfer")
operators, launch = TABLE.operators, TABLE.launch
