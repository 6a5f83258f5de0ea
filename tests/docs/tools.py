"""The scripts of ``docs/tools``, which are no package, as modules."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from tests.docs.pages import ROOT


def load_tool(name: str) -> ModuleType:
    """``docs/tools/NAME.py``, imported."""
    spec = spec_from_file_location(f"docs_tools_{name}", ROOT / "docs" / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
