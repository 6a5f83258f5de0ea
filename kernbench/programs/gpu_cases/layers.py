"""Fused attention and convolutions, both directions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import starmap
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernbench.programs.gpu_cases.inputs import (
    BF16,
    DIRECTIONS,
    FP32,
    SHORT,
    Call,
    Case,
    channels_last,
    random,
)

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
}  # fmt: skip


class Attended(NamedTuple):
    """Sizes of an attention: sequences, heads of queries, heads of keys, tokens of keys, width of a head."""

    batch: int
    heads: int
    kv: int
    length: int
    width: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.heads}/{self.kv}x{self.length}x{self.width}"


_SEQUENCES = (
    (16, 32, 32, 512, 128), (4, 32, 32, 2048, 128), (2, 32, 8, 4096, 128), (1, 32, 8, 8192, 128), (1, 32, 8, 16384, 128),
    (8, 16, 16, 1024, 64), (2, 32, 32, 4096, 64), (1, 16, 16, 8192, 64), (12, 12, 12, 1024, 64),
)  # fmt: skip
_ALSO_FULL = ((4, 2048), (1, 8192), (2, 4096))
"""Batches and lengths for which each query sees all keys, too."""

_CACHES = ((1, 32, 32, 4096, 128), (16, 32, 8, 4096, 128), (64, 32, 8, 1024, 128), (64, 32, 32, 2048, 128))


def attention() -> Iterator[Case]:
    """Lengths, heads, kernels, both directions; one query over a cache."""
    for name, kernel in KERNELS.items():
        for size in starmap(Attended, _SEQUENCES):
            for how in ("causal", *(["full"] if (size.batch, size.length) in _ALSO_FULL else [])):
                for direction in DIRECTIONS:
                    make = partial(_attention, kernel, size, how == "causal", direction)
                    yield f"attention {name} {direction}", f"{how} {size}", make
    for size in starmap(Attended, _CACHES):
        yield "attention of one query", str(size), partial(_decoding, size)


def _attention(kernel: SDPBackend, size: Attended, causal: bool, direction: str) -> Call:
    backward = direction == "backward"
    kv = size.heads if kernel is KERNELS["efficient"] else size.kv  # which has no groups
    query, key, value = (
        random(size.batch, heads, size.length, size.width, grad=backward) for heads in (size.heads, kv, kv)
    )
    gradient = random(*query.shape)

    def forward() -> Tensor:
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=kv != size.heads)

    if not backward:
        return forward
    result = forward()
    return lambda: torch.autograd.grad(result, (query, key, value), gradient, retain_graph=True)


def _decoding(size: Attended) -> Call:
    query = random(size.batch, size.heads, 1, size.width)
    key, value = (random(size.batch, size.kv, size.length, size.width) for _ in range(2))
    return lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=size.heads != size.kv)


class Convolved(NamedTuple):
    """Sizes of a convolution: channels and pixels of a side that it is given, channels that it gives, its own side, groups."""

    channels: int
    size: int
    out: int
    width: int
    stride: int
    groups: int


CONVOLUTIONS = {
    "stem": Convolved(3, 224, 64, 7, 2, 1), "1x1 64-256": Convolved(64, 56, 256, 1, 1, 1),
    "3x3 64": Convolved(64, 56, 64, 3, 1, 1), "3x3 128 /2": Convolved(128, 56, 128, 3, 2, 1),
    "3x3 256": Convolved(256, 14, 256, 3, 1, 1), "1x1 1024-256": Convolved(1024, 14, 256, 1, 1, 1),
    "3x3 512": Convolved(512, 7, 512, 3, 1, 1), "1x1 512-2048": Convolved(512, 7, 2048, 1, 1, 1),
    "depthwise 384": Convolved(384, 28, 384, 3, 1, 384), "patches 16": Convolved(3, 224, 768, 16, 16, 1),
}  # fmt: skip
"""Of a ResNet-50 and some others."""

_IMAGES = 64


def convolutions() -> Iterator[Case]:
    """Both directions, channels last in bf16, first in fp32."""
    for name, shape in CONVOLUTIONS.items():
        for dtype in (BF16, FP32):
            for direction in DIRECTIONS:
                title = f"{name} {_IMAGES}x{shape.channels}x{shape.size}"
                yield f"convolution {SHORT[dtype]} {direction}", title, partial(_convolution, shape, dtype, direction)


def _convolution(shape: Convolved, dtype: torch.dtype, direction: str) -> Call:
    backward = direction == "backward"
    x, weight = (
        random(_IMAGES, shape.channels, shape.size, shape.size, dtype=dtype),
        random(shape.out, shape.channels // shape.groups, shape.width, shape.width, dtype=dtype),
    )
    if dtype is BF16:
        x, weight = channels_last(x, grad=backward), channels_last(weight, grad=backward)
    else:
        x, weight = x.requires_grad_(backward), weight.requires_grad_(backward)
    padding = 0 if shape.width == shape.stride else shape.width // 2

    def forward() -> Tensor:
        return F.conv2d(x, weight, stride=shape.stride, padding=padding, groups=shape.groups)

    if not backward:
        return forward
    result = forward()
    gradient = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, (x, weight), gradient, retain_graph=True)
