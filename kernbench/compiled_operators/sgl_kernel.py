"""The operators of SGLang's compiled libraries (``sglang-kernel``, which is imported as ``sgl_kernel``), by their schemas.

They have shapes, and no values: they are for runs without data. Costs are counted by bytes, and the summary names what was
called. What SGLang compiles itself while it runs (its own CUDA sources, by ``nvcc``) is not here; with
``SGLANG_FORCE_FUSED_OP_BACKEND=torch`` it does without.
"""

from __future__ import annotations

from kernbench.compiled_operators.operators import Operators

common, flash, flash_mla, spatial = (Operators("sgl_kernel") for _ in range(4))
