"""Found by every Python that a command or program under ``kernbench run`` starts: its folder is put first on ``PYTHONPATH``.

It lets the process import its program's stand-ins. Else it imports nothing but the standard library's smallest, and
does nothing until a command's process imports torch: then :mod:`kernbench.runtime_api.joining` decides whether the process is
a rank. The ``sitecustomize`` that it hides is run.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # typing's own would import typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


class _AtImport:
    """A finder that gives some modules a loader which does something when the module is there."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`."""
        if name not in _THEN:
            return None
        spec: Any = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderThen(spec.loader, name)
        return spec


class _LoaderThen:
    def __init__(self, loader: Any, name: str) -> None:
        self._loader = loader
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Execute it, and then do what is to be done."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        then = _THEN.pop(
            self._name, None
        )  # here: many libraries only look whether there is a torch, and import it later
        if then is not None:
            then(module)


_generators: dict[str, tuple[Callable[[], Any], object]] = {}
"""Of a module: how to read the state of its generator, and what that was to begin with."""


def _note_random(module: ModuleType) -> None:
    _generators["random"] = module.getstate, module.getstate()


def _note_numpy(module: ModuleType) -> None:
    def read() -> Any:
        state = module.get_state()
        return state[1].tobytes(), state[2]

    _generators["numpy.random"] = read, read()


def _of_kernbench(name: str) -> Any:
    """A module of the kernbench that has made the process's environment, wherever this Python would find another."""
    from importlib import import_module

    sys.path.insert(0, _ROOT)
    try:
        return import_module(f"kernbench.{name}")
    finally:
        sys.path.remove(_ROOT)


def _join(torch: ModuleType) -> None:
    """Let kernbench look at the process. One of its own command has simulations of its own, and so has what that starts."""
    if "kernbench.cli" in sys.modules:
        for name in ("KERNBENCH_JOIN", "KERNBENCH_ALONE", "KERNBENCH_RANK"):
            os.environ.pop(name, None)
        return
    _of_kernbench("runtime_api.joining").at_import_of_torch(_generators)


def _accompany(module: ModuleType) -> None:
    """It talks to other processes: it lives in virtual time, with those of a command."""
    if os.environ.get("KERNBENCH_JOIN"):
        _of_kernbench("processes.companion_waits").begin(module)


_TALKS = ("zmq", "aiohttp", "uvicorn", "uvloop")
"""Packages by which processes talk to others, as a server's do."""

_THEN: dict[str, Callable[[ModuleType], None]] = {
    "random": _note_random, "numpy.random": _note_numpy, "torch": _join, **dict.fromkeys(_TALKS, _accompany),
}  # fmt: skip
"""What is done when a module has been imported."""


def _run_hidden() -> None:
    others = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(sys.modules[__name__])


if os.environ.get("KERNBENCH_JOIN") or os.environ.get("KERNBENCH_ALONE"):
    sys.meta_path.insert(0, _AtImport)
if _stand_ins := os.environ.get("KERNBENCH_STAND_INS"):
    _of_kernbench("stand_ins").stand_in_as_told(_stand_ins)
_run_hidden()
