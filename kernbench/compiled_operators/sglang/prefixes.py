"""SGLang's tree of prefixes, which has two implementations: one in Rust, and one in Python that decides the same.

The one in Rust asks torch's C++ where a tensor is, and that answers with this machine. So the one in Python is taken, as SGLang
itself does where Rust's cannot be used.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any


def prefer_python(module: ModuleType) -> None:
    """Have SGLang take its implementation in Python: ``sglang.srt.mem_cache.unified_cache.tree_core_registry``."""
    name = "_rust_fallback_reason"
    reason: Any = getattr(module, name, None)
    if not callable(reason):
        return

    @functools.wraps(reason)
    def fallback_reason(*args: object, **kwargs: object) -> str | None:
        found: str | None = reason(*args, **kwargs)
        return found or "Rust does not see the simulated device of a tensor"

    setattr(module, name, fallback_reason)
