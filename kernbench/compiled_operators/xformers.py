"""``xformers``: its attention is torch's operators (``aten::_efficient_attention_forward``, ``_flash_attention_forward`` and
their gradients); its compiled library has what is of matrices of which half is zero, without values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from kernbench.compiled_operators.operators import Operators

operators = Operators("xformers")

_OTHERS = ("flash_attn", "flash_attn_3")


@contextmanager
def by_torchs_kernels(module: ModuleType) -> Iterator[None]:
    """A module is executed as if ``flash_attn`` and ``flash_attn_3`` were not there, whose compiled modules it would call."""
    loaded: dict[str, Any] = dict(sys.modules)
    sys.modules.update(dict.fromkeys(_OTHERS))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in _OTHERS:
            del sys.modules[name]
            if name in loaded:
                sys.modules[name] = loaded[name]
