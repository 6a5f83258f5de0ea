"""Optimizers and norms over lists of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kernbench.programs.gpu_cases.inputs import BF16, FP32, SHORT, Call, Case, random

Shapes = Sequence[tuple[int, ...]]

_GPT_LAYER: tuple[tuple[int, ...], ...] = (
    (2304, 768), (2304,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,), *[(768,)] * 4,
)  # fmt: skip
_LLAMA_LAYER: tuple[tuple[int, ...], ...] = (
    (4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336), (4096,), (4096,),
)  # fmt: skip
MODELS: dict[str, Shapes] = {
    "GPT-2": [*_GPT_LAYER * 12, (50304, 768), (1024, 768), (768,), (768,)],
    "4 layers of 8B": _LLAMA_LAYER * 4,
}

OPTIMIZERS: dict[str, Any] = {
    "AdamW fused": partial(torch.optim.AdamW, capturable=True, fused=True),
    "AdamW foreach": partial(torch.optim.AdamW, capturable=True, foreach=True),
    "SGD momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
}


def many_tensors() -> Iterator[Case]:
    """All of them, of both models."""
    for model, shapes in MODELS.items():
        for dtype in (FP32, BF16):
            title = f"{model} {SHORT[dtype]}"
            for name, optimizer in OPTIMIZERS.items():
                yield name, title, partial(_stepped, optimizer, shapes, dtype)
            yield "clip gradients", title, partial(_clipped, shapes, dtype)
            yield "zero gradients", title, partial(_zeroed, shapes, dtype)


def _tensors(shapes: Shapes, dtype: torch.dtype) -> list[Tensor]:
    return [random(*shape, dtype=dtype) for shape in shapes]


def _stepped(optimizer: object, shapes: Shapes, dtype: torch.dtype) -> Call:
    return with_gradients(optimizer, _tensors(shapes, dtype)).step


def with_gradients(optimizer: Any, tensors: Sequence[Tensor]) -> torch.optim.Optimizer:
    """An optimizer of parameters that have gradients."""
    parameters = [nn.Parameter(each) for each in tensors]
    for each in parameters:
        each.grad = torch.randn_like(each)
    made: torch.optim.Optimizer = optimizer(parameters)
    return made


def _clipped(shapes: Shapes, dtype: torch.dtype) -> Call:
    gradients = _tensors(shapes, dtype)

    def call() -> None:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0))

    return call


def _zeroed(shapes: Shapes, dtype: torch.dtype) -> Call:
    gradients = _tensors(shapes, dtype)
    return lambda: torch._foreach_zero_(gradients)
