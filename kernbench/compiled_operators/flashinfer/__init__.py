"""The kernels of ``flashinfer``, which it compiles when they are called: attention over pages, what is around it in a layer,
and sampling."""

from __future__ import annotations

import importlib

from kernbench.compiled_operators.flashinfer.kernels import launch, operators

for _module in ("attention", "layers", "sampling"):
    importlib.import_module(f"{__name__}.{_module}")

NAMES = {"launch": launch}

__all__ = ["NAMES", "launch", "operators"]
