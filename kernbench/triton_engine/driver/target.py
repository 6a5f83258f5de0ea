"""The GPU that kernels are compiled for."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any

from kernbench.errors import ConfigError, KernbenchError

_target: Any = None
_indices: dict[object, int] = {}


def import_triton() -> Any:
    """Triton, or an error that says how to get it."""
    try:
        import triton
    except ImportError as error:
        raise KernbenchError(
            "Triton is not installed (it exists for Linux only): kernels cannot run here; "
            "everything else of kernbench works. Install triton>=3.6,<3.10."
        ) from error
    return triton


@lru_cache(maxsize=16)
def parse_target(text: str) -> object:
    """``cuda:90`` or ``hip:gfx942`` as a ``GPUTarget``.

    Raises:
        ConfigError: anything else.
    """
    import_triton()
    from triton.backends.compiler import GPUTarget

    if match := re.fullmatch(r"cuda:(?:sm_?)?(\d+)", text):
        return GPUTarget("cuda", int(match[1]), 32)
    if match := re.fullmatch(r"hip:(gfx\w+)", text):
        return GPUTarget("hip", match[1], 64)
    raise ConfigError(f"not a Triton target: {text!r}; expected cuda:80, cuda:90, cuda:100 or hip:gfx942")


def set_target(target: object) -> None:
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
