"""What precompilation needs of Triton beyond its documented interface; the only file of this room that may.

``warmup`` of a jitted kernel specialises its arguments, compiles and stores exactly as a launch does, so that the cache
entry that it leaves is the one that a launch will look for, whatever version of Triton. It asks the active driver for
the target, and nothing else: that driver is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kernbench.defaults import TARGETS
from kernbench.errors import ConfigError
from kernbench.precompile.arguments import text_of, type_text

_CUDA = re.compile(r"(?:cuda:)?(?:sm_?)?(\d{2,3})")
_HIP = re.compile(r"(?:hip:)?(gfx[0-9a-f]+)")


def normalise(target: str) -> str:
    """``sm_90``, ``cuda:90`` and ``90`` as ``cuda:90``; ``gfx942`` as ``hip:gfx942``. Raises ConfigError for the rest."""
    text = str(target).strip()
    if match := _CUDA.fullmatch(text):
        return f"cuda:{int(match[1])}"
    if match := _HIP.fullmatch(text):
        return f"hip:{match[1]}"
    raise ConfigError(f"target {target!r}: expected one of {TARGETS} or another sm_NN / gfxNNN")


def gpu_target(target: str) -> object:
    """The ``triton.backends.compiler.GPUTarget`` of a target."""
    from triton.backends.compiler import GPUTarget

    backend, arch = normalise(target).split(":")
    if backend == "cuda":
        return GPUTarget("cuda", int(arch), 32)
    return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)


@contextmanager
def compiling_for(target: str) -> Iterator[None]:
    """Inside the block, Triton compiles for ``target``; nothing can be launched.

    The environment is left as it is: Triton writes some of its variables into the cache key.
    """
    from kernbench.triton_engine.driver.activation import driving

    with driving(_target_driver(normalise(target))):
        yield


@contextmanager
def compiling_values_for(target: str) -> Iterator[None]:
    """Inside the block, Triton compiles what kernbench's own engine runs: as far as TTIR, a tenth of the work."""
    from kernbench.triton_engine import activate, deactivate, get_target, set_target
    from kernbench.triton_engine.driver.pipeline import compile_for

    before = get_target()
    set_target(normalise(target))
    activate()
    try:
        with compile_for("values"):
            yield
    finally:
        deactivate()
        set_target(before)


_drivers: dict[str, object] = {}


def _target_driver(target: str) -> object:
    """One driver per target. Triton keys a kernel's binder by device index, hence one index per target too."""
    if target not in _drivers:
        from triton.backends.driver import DriverBase

        class TargetDriver(DriverBase):
            """Reports a GPU that is not there, to the compiler only."""

            index = 1000 + len(_drivers)  # beyond the indices of real devices

            @classmethod
            def is_active(cls) -> bool:
                return False

            def get_current_target(self) -> Any:
                return gpu_target(target)

            def get_current_device(self) -> int:
                return self.index

            def get_current_stream(self, device: int | None = None) -> int:
                return 0

            def get_active_torch_device(self) -> object:
                raise NotImplementedError("this driver only compiles")

            def get_benchmarker(self) -> object:
                raise NotImplementedError("this driver only compiles")

            def map_python_to_cpp_type(self, ty: str) -> str:
                return ty

        _drivers[target] = TargetDriver()
    return _drivers[target]


def jit_function(kernel: object) -> Any:
    """The jitted function inside autotuners and heuristics."""
    seen = kernel
    while not (hasattr(seen, "params") and hasattr(seen, "arg_names")):
        seen = getattr(seen, "fn", None)
        if seen is None:
            raise ConfigError(f"{kernel!r} is not a Triton kernel: expected a @triton.jit function")
    return seen


def parameters(kernel: object) -> dict[str, bool]:
    """Name of each parameter to whether it is a ``tl.constexpr``."""
    return {param.name: bool(param.is_constexpr) for param in jit_function(kernel).params}


def required(kernel: Any) -> set[str]:
    """Names of the parameters without a default, less those that autotuners and heuristics provide."""
    names = {param.name for param in jit_function(kernel).params if not param.has_default}
    layer = kernel
    while layer is not jit_function(kernel):
        names -= set(getattr(layer, "values", ()))  # heuristics
        for config in getattr(layer, "configs", ()):
            names -= set(config.kwargs)
        layer = layer.fn
    return names


def configs(kernel: object) -> list[dict[str, Any]]:
    """What each config of an autotuned kernel passes to a launch; one empty mapping for a kernel without."""
    found = getattr(kernel, "configs", None)
    return [dict(config.all_kwargs()) for config in found] if found else [{}]


def forget_compiled(kernel: object) -> None:
    """Drop what this process has compiled of the kernel, so that the cache on disk is asked the next time."""
    jit_function(kernel).device_caches.clear()


# -- what the compiler was asked for (the arguments of its listener) ----------------------------------------------------


def specialised_arguments(src: Any) -> dict[str, Any]:
    """Types and constants that a kernel was compiled with, as a spec writes them. Raises ValueError if that cannot be."""
    if any(len(path) > 1 for path in src.constants):
        raise ValueError("it takes a tuple")
    arguments = {}
    for index, (name, kind) in enumerate(src.signature.items()):
        if kind == "constexpr":
            arguments[name] = text_of(src.constants.get((index,)))
        else:
            arguments[name] = type_text(kind, ["tt.divisibility", 16] in src.attrs.get((index,), []))
    return arguments


def launch_options(metadata: Mapping[str, object]) -> dict[str, Any]:
    """The options that a kernel was compiled with, those apart that every target has by default."""
    usual = {"num_ctas": 1, "maxnreg": None, "debug": False, "launch_cooperative_grid": False}
    found = {name: metadata[name] for name in ("num_warps", "num_stages", *usual) if name in metadata}
    return {name: value for name, value in found.items() if name not in usual or value != usual[name]}


def target_name(metadata: Mapping[str, Any]) -> str:
    """The target that a kernel was compiled for, as :func:`normalise` writes it."""
    target = metadata["target"]
    return f"{target.backend}:{target.arch}"
