"""Settings of CUDA's libraries that programs make and read again: TunableOp's, cuDNN's, cuFFT's plans, cuBLAS's workspaces.

Each rank has its own. Workspaces are those that the memory of the rank's GPUs has; nothing else depends on what is set, and
products that a program wants tuned are remarked.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import torch

from kernbench.input_files import whole_number
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance, fit

_FFT_PLANS = 4096
"""Plans that cuFFT keeps by default."""

_NOT_TUNED = (
    "TunableOp is on: products are as quick here as they are without it, none is tuned, and no results are written"
)

_of_rank: weakref.WeakKeyDictionary[RankDevice, dict[str, Any]] = weakref.WeakKeyDictionary()


def _defaults() -> dict[str, Any]:
    """As torch and a rank's environment have them."""

    def number(name: str, default: int) -> int:
        stated = whole_number(os.environ.get(f"PYTORCH_TUNABLEOP_{name}", ""))
        return default if stated is None else stated

    return {
        "enabled": os.environ.get("PYTORCH_TUNABLEOP_ENABLED") == "1",
        "tuning": os.environ.get("PYTORCH_TUNABLEOP_TUNING") != "0",
        "untuned": os.environ.get("PYTORCH_TUNABLEOP_RECORD_UNTUNED") == "1",
        "duration": number("MAX_TUNING_DURATION_MS", 30),
        "iterations": number("MAX_TUNING_ITERATIONS", 100),
        "rotating": number("ROTATING_BUFFER_SIZE", -1),
        "filename": _numbered(os.environ.get("PYTORCH_TUNABLEOP_FILENAME", "tunableop_results.csv")),
        "benchmark_limit": 10,
        "empty_cache": False,
    }


def _numbered(filename: str) -> str:
    """The file of the current GPU: its number is where ``%d`` is, or before the ending."""
    index = str(torch.cuda.current_device())
    stem, ending = os.path.splitext(filename)
    return filename.replace("%d", index) if "%d" in filename else f"{stem}{index}{ending}"


def _settings() -> dict[str, Any]:
    mine = bound_devices().mine()
    found = _of_rank.get(mine)
    if found is None:
        found = _of_rank[mine] = _defaults()
        _remark(found["enabled"])
    return found


def _remark(enabled: bool) -> None:
    if enabled:
        bound_devices().simulation.remarks.setdefault(_NOT_TUNED)


def _reader(key: str) -> Callable[[], Any]:
    return lambda: _settings()[key]


def _writer(key: str, kind: type) -> Callable[[Any], None]:
    def write(value: Any) -> None:
        _settings()[key] = kind(value)

    return write


def enable_tuned_products(enabled: bool) -> None:
    """``torch.cuda.tunable.enable``."""
    _settings()["enabled"] = bool(enabled)
    _remark(enabled)


def set_results_file(filename: str, insert_device_ordinal: bool = False) -> None:
    """``torch.cuda.tunable.set_filename``."""
    _settings()["filename"] = _numbered(filename) if insert_device_ordinal else filename


def read_results(filename: str) -> bool:
    """``torch.cuda.tunable.read_file``: whether there is one; what is in it is not used."""
    return os.path.isfile(filename)


def validators() -> tuple[tuple[str, str], ...]:
    """``torch.cuda.tunable.get_validators``: what results are good for."""
    return (("PT_VERSION", torch.__version__.partition("+")[0]),)


def set_tolerances(enable: bool, atol: float, rtol: float) -> None:
    """``torch.cuda.tunable.set_numerical_check_tolerances``: without effect."""


# -- cuFFT's plans -----------------------------------------------------------------------------------------------------


def plans_kept(device: int) -> int:
    """``torch.backends.cuda.cufft_plan_cache.size``: plans are not simulated, so there is none."""
    return 0


def most_plans(device: int) -> int:
    """``torch.backends.cuda.cufft_plan_cache.max_size``."""
    found: int = _settings().get(f"plans{device}", _FFT_PLANS)
    return found


def set_most_plans(device: int, size: int) -> None:
    """Raises RuntimeError, as torch does, for a negative size."""
    if size < 0:
        raise RuntimeError(f"cuFFT plan cache size must be non-negative, got {size}")
    _settings()[f"plans{device}"] = int(size)


def clear_plans(device: int) -> None:
    """``torch.backends.cuda.cufft_plan_cache.clear``."""


_ONLY_READ = (
    ".size is a read-only property showing the number of plans currently in the cache. To change the cache capacity, set "
    "cufft_plan_cache.max_size."
)


def _refuse_size(cache: object, value: object) -> None:
    raise RuntimeError(_ONLY_READ)


_PLAN_CACHE = {
    "size": property(lambda cache: plans_kept(cache.device_index), _refuse_size),
    "max_size": property(
        lambda cache: most_plans(cache.device_index), lambda cache, size: set_most_plans(cache.device_index, size)
    ),
}
"""Attributes of ``torch.backends.cuda.cuFFTPlanCache``."""


# -- workspaces --------------------------------------------------------------------------------------------------------


def _workspace_reader(library: str) -> Callable[[], int]:
    def read() -> int:
        devices = bound_devices()
        sizes = devices.simulation.memories.workspace_sizes(devices.mine().host)
        return 0 if sizes is None else int(getattr(sizes, library))

    return read


def _workspace_writer(library: str) -> Callable[[int | None], None]:
    def write(size: int | None = None) -> None:
        devices = bound_devices()
        devices.simulation.memories.state_workspace(devices.mine().host, library, size)

    return write


SETTINGS: dict[str, Callable[..., Any]] = {
    "_cuda_tunableop_enable": enable_tuned_products,
    "_cuda_tunableop_is_enabled": _reader("enabled"),
    "_cuda_tunableop_tuning_enable": _writer("tuning", bool),
    "_cuda_tunableop_tuning_is_enabled": _reader("tuning"),
    "_cuda_record_untuned_enable": _writer("untuned", bool),
    "_cuda_record_untuned_is_enabled": _reader("untuned"),
    "_cuda_tunableop_set_max_tuning_duration": _writer("duration", int),
    "_cuda_tunableop_get_max_tuning_duration": _reader("duration"),
    "_cuda_tunableop_set_max_tuning_iterations": _writer("iterations", int),
    "_cuda_tunableop_get_max_tuning_iterations": _reader("iterations"),
    "_cuda_tunableop_set_rotating_buffer_size": _writer("rotating", int),
    "_cuda_tunableop_get_rotating_buffer_size": _reader("rotating"),
    "_cuda_tunableop_set_filename": set_results_file,
    "_cuda_tunableop_get_filename": _reader("filename"),
    "_cuda_tunableop_get_results": lambda: (),
    "_cuda_tunableop_get_validators": validators,
    "_cuda_tunableop_read_file": read_results,
    "_cuda_tunableop_set_numerical_check_tolerances": set_tolerances,
    "_cuda_set_cudnn_benchmark_limit": _writer("benchmark_limit", int),
    "_cuda_get_cudnn_benchmark_limit": _reader("benchmark_limit"),
    "_cudnn_set_conv_benchmark_empty_cache": _writer("empty_cache", bool),
    "_cuda_get_conv_benchmark_empty_cache": _reader("empty_cache"),
    "_cuda_getCublasWorkspaceSize": _workspace_reader("blas"),
    "_cuda_getCublasLtWorkspaceSize": _workspace_reader("lt"),
    "_cuda_setCublasWorkspaceSize": _workspace_writer("blas"),
    "_cuda_setCublasLtWorkspaceSize": _workspace_writer("lt"),
    "_cuda_resetCublasWorkspaceSize": _workspace_writer("blas"),
    "_cuda_resetCublasLtWorkspaceSize": _workspace_writer("lt"),
}
"""Attributes of ``torch._C`` that torch's own functions for these settings call."""

_PLANS = {"_cufft_clear_plan_cache": clear_plans}
"""Attributes of ``torch``."""

RELIES_ON = (
    Reliance("torch._C", "what a build for CUDA has there beside the others is added"),
    Reliance(
        "torch.backends.cuda.cuFFTPlanCache", "what asks cuFFT is answered here",
        holds=lambda cache: {*_PLAN_CACHE, "clear"} <= vars(cache).keys(),
    ),
    *(
        Reliance(name, "what it calls in C++ takes here what it gives", holds=fit(SETTINGS))
        for name in ("torch.cuda.tunable", "torch.backends.cuda", "torch.backends.cudnn")
    ),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Give torch these settings."""
    for name, value in SETTINGS.items():
        patches.add(torch._C, name, value)
    for name, value in _PLANS.items():
        patches.set(torch, name, value)
    for name, plan in _PLAN_CACHE.items():
        patches.add(torch.backends.cuda.cuFFTPlanCache, name, plan)
