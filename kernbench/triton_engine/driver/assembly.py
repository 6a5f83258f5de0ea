"""What a kernel that was compiled for values says of its later stages: they are compiled when they are asked about."""

from __future__ import annotations

from typing import Any

from .pipeline import full_kernel
from .resources import resources

_KEPT = "_kernbench_kept"
_COUNTS = {"n_regs": "registers", "n_spills": "spills"}


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


def _of_values(kernel: Any) -> bool:
    return hasattr(kernel.metadata, "kernbench_ttir")


def _count(name: str, of: str) -> property:
    """Registers or spilled bytes of a kernel: the compiler's, which a kernel compiled in full has brought along on NVIDIA."""

    def read(kernel: Any) -> int:
        if name not in kernel.__dict__:
            raise AttributeError(f"{type(kernel).__name__!r} object has no attribute {name!r}")
        if not _of_values(kernel) and kernel.metadata.target.backend == "cuda":
            return int(kernel.__dict__[name])
        return int(getattr(resources(kernel), of))

    def write(kernel: Any, value: int) -> None:
        kernel.__dict__[name] = value

    return property(read, write)


def _with_shared_memory(metadata: Any, kernel: Any) -> Any:
    """Metadata whose bytes of shared memory are the compiler's."""
    fields = type(metadata)
    shared = property(lambda _: resources(kernel).shared)
    return type(fields.__name__, (fields,), {"__slots__": (), "shared": shared})(*metadata)


def install() -> None:
    """Give every kernel that is compiled for values such an ``asm``, registers, and shared memory."""
    from triton.compiler.compiler import CompiledKernel

    if hasattr(CompiledKernel, _KEPT):
        return
    kept = {name: getattr(CompiledKernel, name) for name in ("__init__", "_init_handles")}
    original, handles = kept.values()

    def __init__(self: Any, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if _of_values(self):
            self.asm = LaterStages(self)

    def _init_handles(self: Any) -> None:
        if self._run is not None:  # Triton asks for a loaded module, and there is none
            return
        handles(self)
        if _of_values(self):
            self.metadata = _with_shared_memory(self.metadata, self)

    counts = {name: _count(name, of) for name, of in _COUNTS.items()}
    for name, value in {_KEPT: kept, "__init__": __init__, "_init_handles": _init_handles, **counts}.items():
        setattr(CompiledKernel, name, value)


def uninstall() -> None:
    """Undo :func:`install`."""
    from triton.compiler.compiler import CompiledKernel

    if hasattr(CompiledKernel, _KEPT):
        for name, value in getattr(CompiledKernel, _KEPT).items():
            setattr(CompiledKernel, name, value)
        for name in (_KEPT, *_COUNTS):
            delattr(CompiledKernel, name)
