"""What ``bitsandbytes._kernels`` is: a module that defines the kernels."""

from __future__ import annotations

from kernbench.compiled_operators.bitsandbytes import kernels, optimizers

operators = kernels.operators

NAMES = {**kernels.NAMES, "update_32bit": optimizers.update_32bit, "update_8bit": optimizers.update_8bit}
"""Its functions."""
