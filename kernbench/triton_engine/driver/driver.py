"""The driver that Triton asks for the current device, target and launcher.

Imported by Triton while Triton itself is being imported: everything but the base class is imported when first used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from triton.backends.driver import DriverBase

from kernbench.environment_variables import is_on


class KernbenchDriver(DriverBase):
    """Reports a GPU that is not there, and runs what is launched on it on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        from . import compilers

        compilers.install(type(self))

    @classmethod
    def is_active(cls) -> bool:
        return is_on("KERNBENCH_TRITON")

    # What a launch asks for

    def get_current_target(self) -> Any:
        from .target import get_target

        return get_target()

    def get_current_device(self) -> int:
        """One index per target for all ranks, so that argument binders and compiled kernels are shared."""
        from .target import device_index

        return device_index()

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    @property
    def launcher_cls(self) -> object:
        from .launcher import launcher_of

        return launcher_of

    @property
    def utils(self) -> Any:
        from .resources import Utils

        return Utils

    def get_active_torch_device(self) -> object:
        import torch

        from .torch_names import torch_names

        names = torch_names()
        index = None if names is None else names.index()
        return torch.device("cpu") if index is None else torch.device("cuda", index)

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    # What benchmarking asks for

    def get_benchmarker(self) -> Callable[..., Sequence[float] | float]:
        from .benchmark import do_bench

        return do_bench

    def get_device_interface(self) -> object:
        from .benchmark import DeviceInterface
        from .torch_names import torch_names

        names = torch_names()
        return DeviceInterface if names is None else names.interface()

    def get_empty_cache_for_benchmark(self) -> object:
        return None

    def clear_cache(self, cache: object) -> None:
        from .benchmark import timeline
        from .torch_names import torch_names

        names = torch_names()
        if names is not None:
            names.clear_cache()
        else:
            timeline.clears += 1

    def get_device_properties(self, device: int = 0) -> dict[str, int]:
        return self.utils.get_device_properties(device)

    def assemble_tensormap_to_arg(self, tensormaps_info: object, args: object) -> Any:
        return args

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        arch = self.get_current_target().arch
        return (arch // 10, arch % 10) if isinstance(arch, int) else (9, 4)
