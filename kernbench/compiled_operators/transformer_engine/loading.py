"""How the package's own Python loads without its compiled libraries.

``transformer_engine.common`` looks for CUDA's libraries and loads its own when it is imported, unless the package is
being built; and ``load_framework_extension`` executes a compiled module from its file. Both are in that one module:
while it is executed the package is taken to be being built, and then the function imports the extension by its name.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from kernbench.environment_variables import variables_set

_BUILDING, _RELEASE = "NVTE_PROJECT_BUILDING", "NVTE_RELEASE_BUILD"


@contextmanager
def without_libraries(module: ModuleType) -> Iterator[None]:
    """Around the execution of ``transformer_engine.common``."""
    with variables_set({_BUILDING: "1", _RELEASE: None}):
        yield
    module.load_framework_extension = load_framework_extension  # type: ignore[attr-defined]


def load_framework_extension(framework: str) -> None:
    """Import the extension for a framework: there is one for torch. Raises ImportError for another."""
    if framework != "torch":
        raise ImportError(
            f"The stand-in for transformer_engine has no extension for {framework}: use the one for torch."
        )
    importlib.import_module("transformer_engine_torch")
