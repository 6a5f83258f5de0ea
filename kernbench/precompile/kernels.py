"""Kernels and programs by reference: ``package.module:name`` or ``path/to/file.py:name``, so that worker processes find them.

The module is executed as ``kernbench run`` executes a program: ``sys.path`` begins with the file's folder (of a module: with
the working directory), ``sys.argv`` is the file's name alone, and what surrounds the execution (:func:`importing_within`) gives
it the GPUs of a simulation. It differs in its name, which is not ``__main__``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

from kernbench.errors import ConfigError
from kernbench.input_files import expanded, resolved
from kernbench.program_files import compiled_program, find_module, read_program

Surroundings = Callable[[], AbstractContextManager[object]]
"""Opens what a program is executed in; a function at the top of a module, or a partial of one, so that workers find it."""

_surroundings: list[Surroundings] = [nullcontext]


@contextmanager
def importing_within(surroundings: Surroundings) -> Iterator[None]:
    """For the length of a block, modules that :func:`load_module` executes are executed within what this opens."""
    _surroundings.append(surroundings)
    try:
        yield
    finally:
        _surroundings.pop()


def import_within(surroundings: Surroundings) -> None:
    """The same until this process ends: a worker's."""
    _surroundings.append(surroundings)


def surroundings_now() -> Surroundings:
    """What modules are executed within, for processes that do the same."""
    return _surroundings[-1]


def load_module(reference: str) -> ModuleType:
    """A module by its dotted name or by the path of its file.

    A file is loaded once, under a name of its own. Triton's cache key is made of a kernel's text and line, not of its
    module's name, so a script that is run as ``__main__`` finds what was compiled here.

    Raises:
        ConfigError: there is no such module, or it is no Python. What it raises itself is raised as it is.
    """
    if reference.endswith(".py") or "/" in reference:
        return _load_file(reference)
    if (loaded := sys.modules.get(reference)) is not None:
        return loaded
    spec = find_module(reference)
    if spec is None:
        raise ConfigError(f"no module named {reference}")
    if spec.origin is not None and spec.origin.endswith(".py"):
        compiled_program(read_program(spec.origin), spec.origin)
    with _started(spec.origin or reference, os.getcwd()):
        return importlib.import_module(reference)


def _load_file(reference: str) -> ModuleType:
    path = resolved(expanded(reference))
    name = f"_kernbench_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    code = compiled_program(read_program(path), str(path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _started(reference, str(path.parent)):
            exec(code, vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _started(argument: str, folder: str) -> Iterator[None]:
    """As Python starts ``argument``. What lies in ``folder`` can be imported later, too: by the functions of the program."""
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    argv, sys.argv = sys.argv, [argument]
    try:
        with surroundings_now()():
            yield
    finally:
        sys.argv = argv


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
