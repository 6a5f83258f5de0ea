"""Answers to the questions that packages ask about "the CUDA device" before they launch a kernel on our CPU tensors.

Only questions: nothing computes differently. Tensors stay on the CPU; a request for device ``cuda`` gives a CPU tensor.
The process that uses it holds one packages' test module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=8, total_memory=80 << 30, warp_size=32,
    max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, L2_cache_size=50 << 20, gcnArchName="",
)  # fmt: skip


class _CudaIsCpu(TorchFunctionMode):
    """Replaces device arguments that say ``cuda`` by the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        if "device" in kwargs:
            kwargs["device"] = _cpu(kwargs["device"])
        if getattr(function, "__name__", "") == "cuda":
            return args[0]
        if getattr(function, "__name__", "") == "to":
            args = tuple(_cpu(a) for a in args)
        return function(*args, **kwargs)


def _cpu(device: Any) -> Any:
    if isinstance(device, str) and device.startswith("cuda"):
        return "cpu"
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device("cpu")
    return device


class _NoContext(contextlib.nullcontext):
    idx = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


@contextlib.contextmanager
def cuda_questions_answered() -> Iterator[None]:
    """While this lasts, torch says that there is one CUDA device and that our tensors are on it."""
    stream = SimpleNamespace(
        cuda_stream=0, device=torch.device("cpu"), synchronize=lambda: None, wait_stream=lambda _: None
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: PROPERTIES.name,
        "get_device_capability": lambda *_: (PROPERTIES.major, PROPERTIES.minor),
        "get_device_properties": lambda *_: PROPERTIES,
        "current_stream": lambda *_: stream,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "set_device": lambda *_: None,
        "is_current_stream_capturing": lambda: False,
        "device": _NoContext,
        "device_of": _NoContext,
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch.object(torch.version, "cuda", "12.8"))
        stack.enter_context(mock.patch.object(torch.Tensor, "is_cuda", property(lambda _: True), create=True))
        stack.enter_context(_CudaIsCpu())
        yield
