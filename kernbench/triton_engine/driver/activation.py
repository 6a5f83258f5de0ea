"""Switching the driver on and off.

While the driver is active, the compilers registered with Triton for the real targets are replaced by subclasses that
stop after TTIR when only values are wanted. Nothing stays behind after :func:`deactivate`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernbench.environment_variables import is_on

from . import compilers
from .target import import_triton

_fp_fusion: str | None = None
_before: list[tuple[object, dict[str, Any]]] = []


def active() -> bool:
    """True while kernels launched through Triton run here."""
    if not _before and not is_on("KERNBENCH_TRITON"):
        return False
    from .driver import KernbenchDriver

    return isinstance(import_triton().runtime.driver.active, KernbenchDriver)


def activate() -> None:
    """Make this driver Triton's active one, until :func:`deactivate`. Calls nest."""
    triton = import_triton()
    global _fp_fusion
    if not _before:
        _fp_fusion = os.environ.get("TRITON_DEFAULT_FP_FUSION")
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    from .driver import KernbenchDriver

    config = triton.runtime.driver
    saved = (config._active, dict(compilers.registered()))
    config.set_active(KernbenchDriver())
    _before.append(saved)


def deactivate() -> None:
    """Undo the last :func:`activate`."""
    if not _before:
        return
    driver, registered = _before.pop()
    import_triton().runtime.driver._active = driver
    compilers.restore(registered)
    if not _before and _fp_fusion is None:
        os.environ.pop("TRITON_DEFAULT_FP_FUSION", None)


@contextmanager
def driving(driver: object) -> Iterator[None]:
    """In a block, ``driver`` is Triton's active one; its compilers stay as they are."""
    config = import_triton().runtime.driver
    before = config._active
    config.set_active(driver)
    try:
        yield
    finally:
        config._active = before
