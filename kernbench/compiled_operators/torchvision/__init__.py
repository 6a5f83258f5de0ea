"""``torchvision``'s libraries, which PyPI has for CUDA: what they compute of regions, boxes and deformable convolutions.

Gradients are operators of their own, which the package's Python gives to autograd. Those of quantized tensors and of files of
images (namespace ``image``) have no values.
"""

from __future__ import annotations

import importlib

from kernbench.compiled_operators.torchvision.schemas import images, operators

for _module in ("regions", "boxes", "convolution"):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["images", "operators"]
