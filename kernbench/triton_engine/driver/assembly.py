"""``kernel.asm`` of a kernel that was compiled for values: its later stages are compiled when they are read.

Its registers and shared memory are 0 and not the compiler's (``resources(kernel)`` tells them): Inductor reads those of every
kernel that it makes, each of which would be compiled in full.
"""

from __future__ import annotations

from typing import Any

from .pipeline import full_kernel

_KEPT = "_kernbench_kept"


class LaterStages(dict[str, Any]):
    """Texts by stage, as Triton's ``asm``; those after TTIR (``ttgir``, ``ptx``, ``cubin``, ``sass``, ...) on demand."""

    def __init__(self, kernel: Any) -> None:
        super().__init__((stage, text) for stage, text in kernel.asm.items() if text != b"")
        self._kernel = kernel

    def __missing__(self, stage: str) -> Any:
        full = full_kernel(self._kernel).asm
        for name, text in full.items():
            self.setdefault(name, text)
        self[stage] = full[stage]
        return self[stage]


def install() -> None:
    """Give every kernel that is compiled for values an ``asm`` of this kind, and load each kernel once."""
    from triton.compiler.compiler import CompiledKernel

    if hasattr(CompiledKernel, _KEPT):
        return
    kept = {name: getattr(CompiledKernel, name) for name in ("__init__", "_init_handles")}
    original, handles = kept.values()

    def __init__(self: Any, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if hasattr(self.metadata, "kernbench_ttir"):
            self.asm = LaterStages(self)

    def _init_handles(self: Any) -> None:
        if self._run is None:  # Triton asks for a loaded module, and there is none
            handles(self)

    for name, value in {_KEPT: kept, "__init__": __init__, "_init_handles": _init_handles}.items():
        setattr(CompiledKernel, name, value)


def uninstall() -> None:
    """Undo :func:`install`."""
    from triton.compiler.compiler import CompiledKernel

    if hasattr(CompiledKernel, _KEPT):
        for name, value in getattr(CompiledKernel, _KEPT).items():
            setattr(CompiledKernel, name, value)
        delattr(CompiledKernel, _KEPT)
