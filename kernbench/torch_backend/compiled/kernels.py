"""The Triton kernels that Inductor writes for a simulated GPU: compiled as far as the engine needs, and timed by the model.

Inductor compiles kernels in processes of its own, launches cubins without Triton, and measures what it has to choose from. Here
kernels are compiled in the process that launches them, through Triton; choices are made by modelled time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

from kernbench.torch_backend.compiled.measuring import modelled_ms
from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.names.cuda_names import nothing
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance
from kernbench.triton_engine import get_target

HEURISTICS = "torch._inductor.runtime.triton_heuristics"
HELPERS = "torch._inductor.runtime.triton_helpers"
ASYNC_COMPILE = "torch._inductor.async_compile"
BENCHMARKING = "torch._inductor.runtime.benchmarking"

METRICS = "torch._dynamo.metrics_context"

NO_CLOCK = SimpleNamespace(time_ns=lambda: 0)
"""Stands for ``time`` where torch notes how long compiling took: a rank's clock is not to be read for that."""

_TUNES = ("autotune_to_one_config", "coordinate_descent_tuning")
_SETS_DRIVER = ("set_driver_to_cpu", "set_driver_to_gpu")

RELIES_ON = (
    Reliance(f"{HEURISTICS}.CachingAutotuner._precompile_config", "it compiles a kernel", parameters=("self", "cfg"),
             looked_up_by=(f"{HEURISTICS}.CachingAutotuner._precompile_worker",)),
    Reliance(f"{HEURISTICS}.CachingAutotuner.bench", "it measures one", parameters=("self", "launcher"),
             looked_up_by=(f"{HEURISTICS}.CachingAutotuner.benchmark_all_configs",)),
    Reliance(f"{HEURISTICS}.CachingAutotuner", "choices are made when a kernel is first launched", has=_TUNES),
    Reliance(f"{HEURISTICS}.GPUTarget", "it says what Triton compiles for",
             looked_up_by=(f"{HEURISTICS}.CachingAutotuner._precompile_config",)),
    Reliance(f"{HEURISTICS}.StaticTritonCompileResult.can_statically_launch", "None: Triton launches",
             looked_up_by=(f"{HEURISTICS}.CachingAutotuner._precompile_config",)),
    Reliance(f"{HEURISTICS}.time", "it notes how long compiling took", has=("time_ns",)),
    Reliance(f"{METRICS}.time", "and so does this", has=("time_ns",)),
    Reliance(HELPERS, "Triton has its driver already", has=_SETS_DRIVER),
    Reliance(f"{ASYNC_COMPILE}.get_compile_threads", "one: kernels are compiled in this process",
             looked_up_by=(f"{ASYNC_COMPILE}.AsyncCompile",)),
    Reliance(f"{BENCHMARKING}.Benchmarker", "Inductor measures with these", has=("benchmark", "benchmark_gpu")),
)  # fmt: skip


def install_heuristics(patches: Patches, module: ModuleType) -> None:
    """Compile kernels for values, on the described GPU, and measure them by their modelled time."""
    tuner = module.CachingAutotuner
    stock: Callable[..., Any] = tuner._precompile_config

    def precompile(self: Any, cfg: Any, **later: object) -> Any:
        from kernbench.triton_engine.driver.pipeline import compile_for

        with compile_for("values"):
            return stock(self, cfg, **later)

    def bench(self: Any, launcher: Any, *args: object, with_profiler: bool = False, **kwargs: object) -> float:
        return modelled_ms(lambda: launcher(*args, **kwargs, stream=0))

    for name in _TUNES:
        patches.set(tuner, name, _aside(getattr(tuner, name)))
    patches.set(tuner, "_precompile_config", precompile)
    patches.set(tuner, "bench", bench)
    patches.set(module.StaticTritonCompileResult, "can_statically_launch", staticmethod(nothing))
    patches.set(module, "time", NO_CLOCK)
    patches.set(module, "GPUTarget", lambda *args: get_target())


def _aside(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method that takes no time of a rank's."""

    def method(*args: object, **kwargs: object) -> Any:
        mine = current_device()
        with nullcontext() if mine is None else mine.host.aside():
            return stock(*args, **kwargs)

    return method


def install_metrics(patches: Patches, module: ModuleType) -> None:
    """Do not look at a rank's clock."""
    patches.set(module, "time", NO_CLOCK)


def install_helpers(patches: Patches, module: ModuleType) -> None:
    """Leave Triton the driver that it has."""
    for name in _SETS_DRIVER:
        patches.set(module, name, nothing)


def install_async_compile(patches: Patches, module: ModuleType) -> None:
    """Compile in this process."""
    patches.set(module, "get_compile_threads", lambda: 1)


def install_benchmarking(patches: Patches, module: ModuleType) -> None:
    """Measure by modelled time."""

    def benchmark(
        self: Any, fn: Callable[..., Any], fn_args: Any = None, fn_kwargs: Any = None, *args: object, **kwargs: object
    ) -> float:
        return modelled_ms(fn if fn_args is None else lambda: fn(*fn_args, **(fn_kwargs or {})))

    def benchmark_gpu(self: Any, fn: Callable[[], Any], *args: object, **kwargs: object) -> float:
        return modelled_ms(fn)

    for cls in (module.Benchmarker, *_below(module.Benchmarker)):
        for name, value in (("benchmark", benchmark), ("benchmark_gpu", benchmark_gpu)):
            if name in vars(cls):
                patches.set(cls, name, value)


def _below(cls: type) -> list[type]:
    """All classes that derive from one."""
    below: list[type] = []
    each: type
    for each in type.__subclasses__(cls):
        below += [each, *_below(each)]
    return below
