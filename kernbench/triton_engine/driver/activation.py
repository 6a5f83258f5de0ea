"""Switching the driver on and off, and the target it reports.

While the driver is active, the compilers registered with Triton for the real targets are replaced by subclasses that
stop after TTIR when only values are wanted. Nothing stays behind after :func:`deactivate`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from kernbench.errors import ConfigError, KernbenchError

_target: Any = None
_fp_fusion: str | None = None
_indices: dict[Any, int] = {}
_before: list[tuple[Any, dict[str, Any]]] = []


def _triton() -> Any:
    try:
        import triton
    except ImportError as error:
        raise KernbenchError(
            "Triton is not installed (it exists for Linux only): kernels cannot run here; "
            "everything else of kernbench works. Install triton>=3.6,<3.10."
        ) from error
    return triton


@lru_cache(maxsize=16)
def parse_target(text: str) -> Any:
    """``cuda:90`` or ``hip:gfx942`` as a ``GPUTarget``.

    Raises:
        ConfigError: anything else.
    """
    _triton()
    from triton.backends.compiler import GPUTarget

    if match := re.fullmatch(r"cuda:(?:sm_?)?(\d+)", text):
        return GPUTarget("cuda", int(match[1]), 32)
    if match := re.fullmatch(r"hip:(gfx\w+)", text):
        return GPUTarget("hip", match[1], 64)
    raise ConfigError(f"not a Triton target: {text!r}; expected cuda:80, cuda:90, cuda:100 or hip:gfx942")


def set_target(target: Any) -> None:
    """The GPU that kernels are compiled for: a ``GPUTarget``, a string such as ``cuda:90``, or None for the default."""
    global _target
    _target = parse_target(target) if isinstance(target, str) else target


def get_target() -> Any:
    """The current target; default ``KERNBENCH_TRITON_TARGET``, else ``cuda:90``."""
    if _target is not None:
        return _target
    return parse_target(os.environ.get("KERNBENCH_TRITON_TARGET", "cuda:90"))


def device_index() -> int:
    """Triton caches a kernel's binder and binaries by device index: one index per target."""
    target = get_target()
    index = _indices.get(target)
    if index is None:
        index = _indices[target] = len(_indices)
    return index


def active() -> bool:
    """True while kernels launched through Triton run here."""
    if not _before and os.environ.get("KERNBENCH_TRITON") != "1":
        return False
    from .driver import KernbenchDriver

    return isinstance(_triton().runtime.driver.active, KernbenchDriver)


def activate() -> None:
    """Make this driver Triton's active one, until :func:`deactivate`. Calls nest."""
    triton = _triton()
    global _fp_fusion
    if not _before:
        _fp_fusion = os.environ.get("TRITON_DEFAULT_FP_FUSION")
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    from .driver import KernbenchDriver

    config = triton.runtime.driver
    saved = (config._active, dict(_backends()))
    config.set_active(KernbenchDriver())
    _before.append(saved)


def deactivate() -> None:
    """Undo the last :func:`activate`."""
    if not _before:
        return
    driver, compilers = _before.pop()
    from . import assembly

    _triton().runtime.driver._active = driver
    table = _backends()
    table.clear()
    table.update(compilers)
    if not _before:
        assembly.uninstall()
        if _fp_fusion is None:
            os.environ.pop("TRITON_DEFAULT_FP_FUSION", None)


@contextmanager
def driving(driver: Any) -> Iterator[None]:
    """In a block, ``driver`` is Triton's active one; its compilers stay as they are."""
    config = _triton().runtime.driver
    before = config._active
    config.set_active(driver)
    try:
        yield
    finally:
        config._active = before


def _backends() -> dict[str, Any]:
    from triton.backends import backends

    return backends


def install_compilers() -> None:
    """Replace Triton's compilers by ones that can stop after TTIR."""
    from dataclasses import replace

    from . import assembly
    from .pipeline import values_only

    assembly.install()
    table = _backends()
    for name, backend in list(table.items()):
        if name in ("nvidia", "amd") and not hasattr(backend.compiler, "kernbench"):
            table[name] = replace(backend, compiler=values_only(backend.compiler))
    if "cpu" not in table:  # torch.compile asks for a driver by this name before it launches on CPU tensors
        from .compiler import KernbenchBackend
        from .driver import KernbenchDriver

        table["cpu"] = replace(table["nvidia"], compiler=KernbenchBackend, driver=KernbenchDriver)
