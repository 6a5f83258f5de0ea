"""``kernbench.benches`` by its short name, in a checkout: ``python -m benches.NAME``, ``from benches import NAME``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any


class _Named(MetaPathFinder, Loader):
    """Finds and loads modules by the short name: each is the one of ``kernbench.benches``, not another of its file."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`."""
        real = find_spec(f"kernbench.{name}") if name.startswith(f"{__name__}.") else None
        if real is None:
            return None
        is_package = real.submodule_search_locations is not None
        spec = ModuleSpec(name, self, origin=real.origin, is_package=is_package)
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See :class:`importlib.abc.Loader`."""
        module = import_module(f"kernbench.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """See :class:`importlib.abc.Loader`. It has been executed; that it has a second name, it does not say."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, name: str) -> CodeType | None:
        """See :class:`importlib.abc.InspectLoader`: for ``python -m``."""
        real = find_spec(f"kernbench.{name}")
        loader: Any = real.loader if real else None
        return loader.get_code(f"kernbench.{name}") if loader else None


sys.meta_path.insert(0, _Named())
