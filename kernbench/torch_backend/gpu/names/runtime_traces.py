"""``torch.cuda._gpu_trace``: what C++ calls in a torch for CUDA when events, streams and memory come and go, for torch's CUDA
sanitizer, which would miss races without it, or find some that are none. There are no such calls here."""

from __future__ import annotations

from typing import Any

import torch.cuda._gpu_trace
import torch.cuda._sanitizer

from kernbench.errors import KernbenchError
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_trace: Any = torch.cuda._gpu_trace
_Sanitizer: Any = torch.cuda._sanitizer.CUDASanitizer
_REGISTERS = tuple(name for name in vars(_trace) if name.startswith("register_callback_for_"))

RELIES_ON = (
    Reliance("torch.cuda._gpu_trace", "what is to be called is registered by these", has=(
        "register_callback_for_event_record", "register_callback_for_memory_allocation",
    )),
    Reliance("torch.cuda._sanitizer.CUDASanitizer", "it has registered its own at import, and begins by it", has=("enable",)),
)  # fmt: skip


def _refuse(*args: object) -> None:
    raise KernbenchError(
        "callbacks of torch.cuda._gpu_trace are not called on simulated GPUs, and torch's CUDA sanitizer wants them: "
        "`kernbench run --races`, or simulate(races=True), looks for races between streams"
    )


def install(patches: Patches) -> None:
    """Refuse what would never be called."""
    patches.set(_Sanitizer, "enable", _refuse)
    for name in _REGISTERS:
        patches.set(_trace, name, _refuse)
