"""Kernels that the memory bounds, by size and format: pointwise ones, those along rows, norms, pools, tables and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kernbench.programs.gpu_cases.inputs import (
    BF16,
    DIRECTIONS,
    FP32,
    SHORT,
    Call,
    Case,
    channels_last,
    in_direction,
    indices,
    random,
)

POINTWISE: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + x,
    "mul scalar": lambda x: x * 3.0,
    "add_": lambda x: x.add_(1.0),
    "gelu": F.gelu,
    "silu": F.silu,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": F.relu,
    "sqrt": torch.sqrt,
    "pow 2": lambda x: x**2,
    "rsqrt": torch.rsqrt,
    "copy": torch.clone,
    "to fp32": lambda x: x.to(FP32) if x.dtype != FP32 else x.to(BF16),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "clamp": lambda x: x.clamp(-1, 1),
    "dropout": lambda x: F.dropout(x, 0.1),
    "zero_": lambda x: x.zero_(),
    "fill": torch.zeros_like,
    "isnan": torch.isnan,
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "lerp": lambda x: torch.lerp(x, x, 0.1),
    "cos": torch.cos,
    "normal_": lambda x: x.normal_(),
    "uniform_": lambda x: x.uniform_(),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "abs": torch.abs,
    "log": torch.log,
    "div": lambda x: x / x,
    "maximum": lambda x: torch.maximum(x, x),
    "eq": lambda x: x == x,
}
"""Of one tensor, each element by itself."""

ALONG: dict[str, Callable[[Tensor], Any]] = {
    "sum last": lambda x: x.sum(-1),
    "sum first": lambda x: x.sum(0),
    "sum all": lambda x: x.sum(),
    "mean last": lambda x: x.mean(-1),
    "amax last": lambda x: x.amax(-1),
    "max last": lambda x: x.max(-1),
    "argmax last": lambda x: x.argmax(-1),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "var last": lambda x: x.var(-1),
    "norm last": lambda x: x.norm(dim=-1),
    "cumsum last": lambda x: x.cumsum(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "transpose": lambda x: x.t().contiguous(),
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(1, -1),
    "cat": lambda x: torch.cat([x, x], -1),
    "stack": lambda x: torch.stack([x, x]),
    "triu": lambda x: x.triu(),
    "any": lambda x: (x > 3).any(),
    "norm all": lambda x: x.norm(),
    "sum fp32": lambda x: x.sum(-1, dtype=FP32),
    "bias": lambda x: x + x[0],
    "scale of rows": lambda x: x * x[:, :1],
    "half of columns": lambda x: x[:, : x.shape[1] // 2].contiguous(),
    "split": lambda x: [each.contiguous() for each in x.chunk(4, -1)],
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "prod": lambda x: x.prod(-1),
    "std_mean": lambda x: torch.std_mean(x, -1),
    "expand": lambda x: x[:1].expand_as(x).contiguous(),
}
"""Of a matrix, along its rows or columns."""

_LARGE = ("add", "copy", "zero_", "gelu", "to fp32", "dropout")
"""Those of :data:`POINTWISE` that are timed with 1 GiB, too."""

_MATRICES = ((65536, 128), (16384, 1024), (4096, 4096), (512, 32768), (4096, 32000), (256, 128256))
_NORMED = ((65536, 128), (16384, 1024), (16384, 4096), (4096, 8192), (1024, 16384))
_IMAGES = ((64, 64, 56, 56), (64, 512, 14, 14))
_TABLES = ((4096, 32000, 4096), (16384, 50304, 768), (8192, 128256, 4096))
"""Tokens, vocabulary, width."""

_MOST_LOGITS = 8192  # tokens of a loss


def memory_bound() -> Iterator[Case]:
    """All of them."""
    for dtype, sizes in ((BF16, (1, 16, 256)), (FP32, (64, 1024))):
        for name, function in POINTWISE.items():
            for mib in sizes:
                if mib < 1024 or name in _LARGE:
                    shape = ((mib << 20) // dtype.itemsize,)
                    yield f"pointwise {SHORT[dtype]}", f"{name} {mib} MiB", partial(_of_one, function, shape, dtype)
    for name, function in ALONG.items():
        for rows, columns in _MATRICES:
            yield name, f"bf16 {rows}x{columns}", partial(_of_one, function, (rows, columns), BF16)
    for rows, columns in _NORMED:
        for dtype in (BF16, FP32):
            title = f"{SHORT[dtype]} {rows}x{columns}"
            for direction in DIRECTIONS:
                yield f"layer norm {direction}", title, partial(_layer_norm, rows, columns, dtype, direction)
                yield f"rms norm {direction}", title, partial(_rms_norm, rows, columns, dtype, direction)
            yield "softmax backward", title, partial(_softmax_gradient, rows, columns, dtype)
    for image in _IMAGES:
        for direction in DIRECTIONS:
            for name, make in (("batch norm", _batch_norm), ("group norm", _group_norm), ("max pool", _max_pool)):
                yield f"{name} {direction}", f"bf16 {image}", partial(make, image, direction)
    for tokens, vocab, width in _TABLES:
        for direction in DIRECTIONS:
            make_rows = partial(_embedding, tokens, vocab, width, direction)
            yield f"embedding {direction}", f"bf16 {tokens} of {vocab}x{width}", make_rows
        rows = min(tokens, _MOST_LOGITS)
        for dtype in (BF16, FP32):
            for direction in DIRECTIONS:
                make_loss = partial(_cross_entropy, rows, vocab, dtype, direction)
                yield f"cross entropy {direction}", f"{SHORT[dtype]} {rows}x{vocab}", make_loss


def _of_one(function: Callable[[Tensor], object], shape: tuple[int, ...], dtype: torch.dtype) -> Call:
    x = random(*shape, dtype=dtype)
    return lambda: function(x)


def _layer_norm(rows: int, columns: int, dtype: torch.dtype, direction: str) -> Call:
    inputs = (random(*shape, dtype=dtype, grad=True) for shape in ((rows, columns), (columns,), (columns,)))
    return in_direction(direction, lambda x, w, b: F.layer_norm(x, (columns,), w, b), *inputs)


def _rms_norm(rows: int, columns: int, dtype: torch.dtype, direction: str) -> Call:
    inputs = (random(*shape, dtype=dtype, grad=True) for shape in ((rows, columns), (columns,)))
    return in_direction(direction, lambda x, w: F.rms_norm(x, (columns,), w), *inputs)


def _softmax_gradient(rows: int, columns: int, dtype: torch.dtype) -> Call:
    return in_direction("backward", lambda x: x.softmax(-1), random(rows, columns, dtype=dtype, grad=True))


def _batch_norm(shape: tuple[int, ...], direction: str) -> Call:
    weight, bias = (random(shape[1], dtype=FP32, grad=True) for _ in range(2))
    mean, var = torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")

    def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.batch_norm(x, mean, var, w, b, training=True)

    return in_direction(direction, normed, channels_last(random(*shape), grad=True), weight, bias)


def _group_norm(shape: tuple[int, ...], direction: str) -> Call:
    inputs = (random(*each, grad=True) for each in (shape, shape[1:2], shape[1:2]))
    return in_direction(direction, lambda x, w, b: F.group_norm(x, 32, w, b), *inputs)


def _max_pool(shape: tuple[int, ...], direction: str) -> Call:
    return in_direction(direction, lambda x: F.max_pool2d(x, 3, 2, 1), channels_last(random(*shape), grad=True))


def _embedding(tokens: int, vocab: int, width: int, direction: str) -> Call:
    ids = indices(vocab, tokens)
    return in_direction(direction, lambda table: F.embedding(ids, table), random(vocab, width, grad=True))


def _cross_entropy(rows: int, vocab: int, dtype: torch.dtype, direction: str) -> Call:
    labels = indices(vocab, rows)
    logits = random(rows, vocab, dtype=dtype, grad=True)
    return in_direction(direction, lambda x: F.cross_entropy(x, labels), logits)
