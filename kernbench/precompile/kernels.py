"""Kernels by reference: ``package.module:kernel`` or ``path/to/file.py:kernel``, so that worker processes find them."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.errors import ConfigError


def load_module(reference: str) -> ModuleType:
    """A module by its dotted name or by the path of its file.

    A file is loaded once, under a name of its own. Triton's cache key is made of a kernel's text and line, not of its
    module's name, so a script that is run as ``__main__`` finds what was compiled here.

    Raises:
        ConfigError: there is no such module, or importing it fails.
    """
    if reference.endswith(".py") or "/" in reference:
        path = Path(reference).expanduser().resolve()
        if not path.is_file():
            raise ConfigError(f"{reference}: no such file")
        name = f"_kernbench_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))  # what lies beside a script can be imported, as when it is run
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # as `python -m` does; console scripts do not
    try:
        return importlib.import_module(reference)
    except ImportError as error:
        raise ConfigError(f"module {reference!r} cannot be imported: {error}") from error


def load_kernel(reference: str) -> Any:
    """The kernel that ``module:name`` means. Raises ConfigError saying which part of it is wrong."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ConfigError(f"kernel {reference!r}: expected package.module:kernel or path/to/file.py:kernel")
    found: Any = load_module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"kernel {reference!r}: {getattr(found, '__name__', found)} has no {part!r}")
        found = getattr(found, part)
    return found


def reference_of(kernel: Any, module: ModuleType, place: str) -> str:
    """The reference of a kernel that a module holds in one of its names, also when a factory made it."""
    for name, value in vars(module).items():
        if value is kernel:
            return f"{place}:{name}"
    raise ConfigError(
        f"{kernel!r} is in no global name of {module.__name__}, so that a worker process cannot find it: assign it to one"
    )
