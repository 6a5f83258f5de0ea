"""Compilation: Triton's front end and its machine-independent passes; the rest only on request.

Values need TTIR alone, which takes a tenth of a full compilation. A full one happens for ``warmup`` (whose callers
look at registers and shared memory), for a direct ``triton.compile``, and for :func:`..resources.resources`.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from kernbench.environment_variables import one_of
from kernbench.errors import KernbenchError

from .target import get_target

#: Part of the compile cache key of kernels compiled for values; change it when the passes below change.
_PIPELINE = "kernbench-values-2"

_BELOW_TTIR = (
    "{} cannot run here: it says what single threads, warps and shared memory do, and kernbench runs TTIR, in which they do "
    "not appear yet. Use the kernel's version in triton.language (@triton.jit)."
)

_forced: list[str] = []


@contextmanager
def compile_for(mode: str) -> Any:
    """Force ``"values"`` or ``"full"`` inside the ``with`` block."""
    _forced.append(mode)
    try:
        yield
    finally:
        _forced.pop()


def _mode() -> str:
    """Values for launches; full for ``warmup`` and for direct callers of the compiler."""
    if _forced:
        return _forced[-1]
    if one_of("KERNBENCH_TRITON_COMPILE", "values", "full") == "full":
        return "full"
    frame = sys._getframe(3)
    for _ in range(8):
        if frame is None:
            break
        if frame.f_code.co_name == "_do_compile":
            return "full" if frame.f_locals.get("warmup") else "values"
        frame = frame.f_back  # type: ignore[assignment]
    return "full"


def make_ttir(module: Any, metadata: dict[str, Any]) -> Any:
    """Inline, simplify and hoist, but keep tensor descriptors: they run faster as such."""
    from triton._C.libtriton import ir, passes

    pm = ir.pass_manager(module.context)
    pm.enable_debug()
    passes.common.add_inliner(pm)
    if hasattr(passes.ttir, "add_rewrite_tensor_pointer"):  # block pointers, gone after Triton 3.7
        passes.ttir.add_rewrite_tensor_pointer(pm)
    passes.common.add_canonicalizer(pm)
    passes.ttir.add_combine(pm)
    passes.ttir.add_reorder_broadcast(pm)
    passes.common.add_cse(pm)
    passes.ttir.add_triton_licm(pm)
    passes.common.add_symbol_dce(pm)
    passes.ttir.add_loop_unroll(pm)
    try:
        pm.run(module, "kernbench_ttir")
    except TypeError:
        pm.run(module)
    metadata["kernbench_ttir"] = str(module)
    return module


def _finish(module: Any, metadata: dict[str, Any]) -> bytes:
    metadata["name"] = module.get_entry_func_name()
    metadata.setdefault("shared", 0)
    return b""


@lru_cache(maxsize=8)
def values_only(base: Any) -> type:
    """A subclass of one of Triton's compilers that stops after TTIR when only values are wanted."""

    class Compiler(base):
        kernbench = True

        def __init__(self, target: Any) -> None:
            #: ``torch.compile`` names the device of our tensors, and looks at no resources: values, as for the current GPU.
            self.for_cpu = target.backend == "cpu"
            super().__init__(get_target() if self.for_cpu else target)

        @staticmethod
        def supports_target(target: Any) -> bool:
            return bool(base.supports_target(get_target() if target.backend == "cpu" else target))

        def _full(self) -> bool:
            return not self.for_cpu and _mode() == "full"

        def hash(self) -> str:
            return str(super().hash()) if self._full() else f"{_PIPELINE}-{self.target}"

        def add_stages(self, stages: dict[str, Any], options: object, language: object = None) -> None:
            if self._full():
                super().add_stages(stages, options, language)
                return
            if getattr(language, "name", "") == "GLUON":
                raise KernbenchError(_BELOW_TTIR.format("A Gluon kernel"))
            stages["ttir"] = make_ttir
            stages[self.binary_ext] = _finish

    Compiler.__name__ = base.__name__
    Compiler.__qualname__ = base.__qualname__
    return Compiler


def options_of(metadata: object) -> dict[str, Any]:
    """The options that a kernel was compiled with, as ``triton.compile`` takes them."""
    names = ("num_warps", "num_stages", "num_ctas", "debug", "sanitize_overflow", "maxnreg")
    return {n: getattr(metadata, n) for n in names if getattr(metadata, n, None) is not None}


def values_kernel(src: Any, metadata: Any) -> Any:
    """The same source compiled for values, for a kernel that was compiled in full."""
    from triton.compiler import compile as compile_

    if src.ext != "ttir":
        raise KernbenchError(_BELOW_TTIR.format(f"Kernel {metadata.name}, which begins as {src.ext.upper()},"))
    with compile_for("values"):
        return compile_(src, target=metadata.target, options=options_of(metadata))


def full_kernel(kernel: Any) -> Any:
    """The same kernel compiled down to machine code: 0.1-0.8 s the first time, then from Triton's cache."""
    from triton.compiler import compile as compile_

    with compile_for("full"):
        return compile_(kernel.src, target=kernel.metadata.target, options=options_of(kernel.metadata))
