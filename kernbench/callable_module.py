"""Rooms that can be called: ``kernbench.sweep(...)`` is what ``kernbench.sweep.sweep(...)`` is.

A package and its chief function share a name, and once the package is imported its name in ``kernbench`` is the package.
Python lets a module's class be replaced for such cases (language reference, "Customizing module attribute access").
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def make_callable(name: str) -> None:
    """Calling the module ``name`` calls its function of the same last name."""
    function = name.rpartition(".")[2]

    class CallableModule(ModuleType):
        def __call__(self, *args: object, **kwargs: object) -> Any:
            return getattr(self, function)(*args, **kwargs)

    sys.modules[name].__class__ = CallableModule
