"""``kernel.asm`` of a kernel that was compiled for values: its later stages are compiled when they are read."""

from __future__ import annotations

from typing import Any

from .pipeline import full_kernel

_KEPT = "_kernbench_init"


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
    """Give every kernel that is compiled for values an ``asm`` of this kind."""
    from triton.compiler.compiler import CompiledKernel

    if hasattr(CompiledKernel, _KEPT):
        return
    original = CompiledKernel.__init__

    def __init__(self: Any, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if hasattr(self.metadata, "kernbench_ttir"):
            self.asm = LaterStages(self)

    setattr(CompiledKernel, _KEPT, original)
    CompiledKernel.__init__ = __init__


def uninstall() -> None:
    """Undo :func:`install`."""
    from triton.compiler.compiler import CompiledKernel

    if hasattr(CompiledKernel, _KEPT):
        CompiledKernel.__init__ = getattr(CompiledKernel, _KEPT)
        delattr(CompiledKernel, _KEPT)
