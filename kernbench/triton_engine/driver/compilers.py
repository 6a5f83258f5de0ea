"""Triton's compilers, replaced by ones that can stop after TTIR."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import assembly
from .pipeline import values_only


def registered() -> dict[str, Any]:
    """Triton's own table of compilers and drivers, by name."""
    from triton.backends import backends

    return backends


def install(driver: type) -> None:
    """Replace the compilers of the real targets; ``driver``: what ``torch.compile`` is to find for CPU tensors."""
    assembly.install()
    table = registered()
    for name, backend in list(table.items()):
        if name in ("nvidia", "amd") and not hasattr(backend.compiler, "kernbench"):
            table[name] = replace(backend, compiler=values_only(backend.compiler))
    if "cpu" not in table:  # torch.compile asks for a driver by this name before it launches on CPU tensors
        from .compiler import KernbenchBackend

        table["cpu"] = replace(table["nvidia"], compiler=KernbenchBackend, driver=driver)


def restore(compilers: dict[str, Any]) -> None:
    """Put back what was registered before; with none of ours left, ``kernel.asm`` too is Triton's again."""
    table = registered()
    table.clear()
    table.update(compilers)
    if not any(hasattr(backend.compiler, "kernbench") for backend in table.values()):
        assembly.uninstall()
