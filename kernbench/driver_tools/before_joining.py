"""NVML in a process that is no rank yet: packages list GPUs by it before they start the processes that use one."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

from kernbench.driver_tools import nvidia_smi


def let_load_nvml() -> None:
    """From here on this process may load it, of the GPUs that its environment names."""
    stock: Any = ctypes.CDLL.__init__

    @functools.wraps(stock)
    def load(self: object, name: object, *args: object, **kwargs: object) -> None:
        known = isinstance(name, str | bytes) and os.path.basename(os.fsdecode(name)).startswith("libnvidia-ml.so")
        if not known or nvidia_smi.VARIABLE not in os.environ:
            stock(self, name, *args, **kwargs)
            return
        from kernbench.driver_tools import nvml  # here: it has much of the simulation's code with it

        nvml.loaded(self, name)

    ctypes.CDLL.__init__ = load  # type: ignore[method-assign]
