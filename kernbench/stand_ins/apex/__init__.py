"""``apex`` on kernels by definition: fused norms, optimizers, functions over lists of tensors.

A stand-in (``kernbench run --stand-in apex``) for the parts that models take from it; ``apex.transformer`` and
``apex.amp`` are not here.
"""

from __future__ import annotations

from . import multi_tensor_apply, normalization, optimizers

__all__ = ["multi_tensor_apply", "normalization", "optimizers"]
