"""Kernels that are registered in the place of torch's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any


def replace_kernels(library: Any, kernels: Mapping[str, Callable[..., Any]]) -> None:
    """Give operators, by name, other kernels for the key of ``library`` than torch's, without its warning of that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*other operators may also be overridden")
        for name, kernel in kernels.items():
            library.impl(name, kernel, allow_override=True)
