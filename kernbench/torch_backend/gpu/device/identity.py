"""How programs tell GPUs apart: compute capability, PCI bus."""

from __future__ import annotations

_FIRST_BUS = 0x1B


def bus_of(index: int) -> int:
    """The PCI bus of a GPU by its number on its node."""
    return _FIRST_BUS + index


def capability_of(arch: int | str) -> tuple[int, int]:
    """Compute capability of an architecture; AMD's report one that programs know."""
    major, minor = divmod(arch, 10) if isinstance(arch, int) else (9, 4)
    return major, minor
