"""Modules of torch that a rank is the first to import see stock torch.

They keep what they find (``class CudaInterface: Event = torch.cuda.Event``), and would keep a stand-in beyond the simulation.
So while one of them is executed, the patches are lifted. Nobody else runs meanwhile: an import does not switch ranks.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from kernbench.torch_backend.patches import Patches

PREFIXES = ("torch.", "torchvision.", "triton.", "numpy.", "sympy.")


class StockImports:
    """An entry of ``sys.meta_path``."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches

    def open(self) -> None:
        """Be asked first."""
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def close(self) -> None:
        """Be asked no more. Idempotent."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if not name.startswith(PREFIXES):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _StockLoader(spec.loader.name, spec.loader.path)
            spec.loader.patches = self._patches
        return spec


class _StockLoader(importlib.machinery.SourceFileLoader):
    """Executes a module with the patches lifted."""

    patches: Patches

    def exec_module(self, module: ModuleType) -> None:
        with self.patches.lifted():
            super().exec_module(module)
