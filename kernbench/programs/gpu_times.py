"""Times of torch's kernels on one GPU, a real one or a simulated one, by the same program.

    python -m kernbench.programs.gpu_times --out real.json  # where there is a GPU
    kernbench run --no-data --system dgx_h100 -m kernbench.programs.gpu_times --out simulated.json
    python -m benches.gpu_compare real.json simulated.json

A case is a call, captured ten times in a CUDA graph that is replayed; its time is the median of the replays, a tenth of
it. So host time is not in it, what fits in the last cache is there, and the gap between kernels of a graph is. Inputs are
random. ``host`` cases are not captured: theirs is what the host takes for a call while the GPU keeps up, in the median of
loops. It needs torch alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Call = Callable[[], Any]
Case = tuple[str, str, Callable[[], Call]]
"""Group, name, and what makes the inputs and gives the call."""

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
_SHORT = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}


def _random(*shape: int, dtype: torch.dtype = BF16, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(grad)


LINEARS = {
    "qkv": (6144, 4096),
    "out": (4096, 4096),
    "up": (28672, 4096),
    "down": (4096, 14336),
    "vocab": (128256, 4096),
}
"""Rows and columns of the weights of Llama 3 8B, query, key and value in one and gate and up in one."""


def products() -> Iterator[Case]:
    """Products: tokens by weights of Llama 3 8B; gradients of both; formats; batches; groups."""
    for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        for name, (rows, columns) in LINEARS.items():
            if tokens in (2, 4, 32, 128, 512, 2048) and name in ("out", "vocab"):
                continue

            def linear(tokens: int = tokens, rows: int = rows, columns: int = columns) -> Call:
                x, weight = _random(tokens, columns), _random(rows, columns)
                return lambda: F.linear(x, weight)

            yield "linear", f"bf16 {name} {tokens}x{rows}x{columns}", linear
    for tokens in (1024, 4096, 8192):
        for name, (rows, columns) in LINEARS.items():

            def inputs(tokens: int = tokens, rows: int = rows, columns: int = columns) -> Call:
                gradient, weight = _random(tokens, rows), _random(rows, columns)
                return lambda: gradient @ weight

            def weights(tokens: int = tokens, rows: int = rows, columns: int = columns) -> Call:
                gradient, x = _random(tokens, rows), _random(tokens, columns)
                return lambda: gradient.t() @ x

            yield "gradient of inputs", f"bf16 {name} {tokens}x{rows}x{columns}", inputs
            yield "gradient of weights", f"bf16 {name} {tokens}x{rows}x{columns}", weights
    for dtype in (FP16, FP32):
        for tokens in (16, 512, 4096):
            for name in ("qkv", "down"):

                def other(
                    tokens: int = tokens, size: tuple[int, int] = LINEARS[name], dtype: torch.dtype = dtype
                ) -> Call:
                    x, weight = _random(tokens, size[1], dtype=dtype), _random(*size, dtype=dtype)
                    return lambda: F.linear(x, weight)

                yield f"linear {_SHORT[dtype]}", f"{name} {tokens}", other

    def tf32(tokens: int, size: tuple[int, int]) -> Call:
        x, weight = _random(tokens, size[1], dtype=FP32), _random(*size, dtype=FP32)

        def call() -> Tensor:
            torch.backends.cuda.matmul.allow_tf32 = True
            result = F.linear(x, weight)
            torch.backends.cuda.matmul.allow_tf32 = False
            return result

        return call

    for tokens in (512, 4096):
        for name in ("qkv", "down"):
            yield "linear tf32", f"{name} {tokens}", functools.partial(tf32, tokens, LINEARS[name])
    for tokens in (16, 64, 256, 1024, 4096, 8192):
        for name in ("qkv", "up", "down"):
            for fast in (True, False):

                def scaled(tokens: int = tokens, size: tuple[int, int] = LINEARS[name], fast: bool = fast) -> Call:
                    x, weight = _random(tokens, size[1]).to(FP8), _random(*size).to(FP8)
                    one = torch.ones((), device="cuda")
                    return lambda: torch._scaled_mm(x, weight.t(), one, one, out_dtype=BF16, use_fast_accum=fast)

                yield "fp8 by tensor", f"{name} {tokens} {'fast' if fast else 'exact'}", scaled

            def scaled_by_rows(tokens: int = tokens, size: tuple[int, int] = LINEARS[name]) -> Call:
                x, weight = _random(tokens, size[1]).to(FP8), _random(*size).to(FP8)
                left, right = torch.ones(tokens, 1, device="cuda"), torch.ones(1, size[0], device="cuda")
                return lambda: torch._scaled_mm(x, weight.t(), left, right, out_dtype=BF16, use_fast_accum=True)

            yield "fp8 by row", f"{name} {tokens}", scaled_by_rows
    for tokens in (32, 256, 4096):
        for name in ("qkv", "down"):

            def integers(tokens: int = tokens, size: tuple[int, int] = LINEARS[name]) -> Call:
                x = torch.randint(-100, 100, (tokens, size[1]), device="cuda", dtype=torch.int8)
                weight = torch.randint(-100, 100, size, device="cuda", dtype=torch.int8)
                return lambda: torch._int_mm(x, weight.t())

            yield "int8", f"{name} {tokens}", integers
    for batch, m, n, k in (
        (32, 128, 128, 64),
        (32, 1024, 1024, 64),
        (32, 1024, 64, 1024),
        (256, 512, 512, 64),
        (8, 4096, 4096, 128),
        (64, 1, 4096, 128),
        (512, 256, 64, 256),
        (4, 2048, 2048, 2048),
    ):

        def batched(batch: int = batch, m: int = m, n: int = n, k: int = k) -> Call:
            left, right = _random(batch, m, k), _random(batch, k, n)
            return lambda: left @ right

        yield "bmm", f"bf16 {batch}x{m}x{n}x{k}", batched
    for tokens, rows_, columns_ in (
        (512, 768, 768),
        (4096, 3072, 768),
        (4096, 768, 3072),
        (16384, 2304, 768),
        (16384, 50304, 768),
    ):

        def biased(tokens: int = tokens, rows: int = rows_, columns: int = columns_) -> Call:
            x, weight, bias = _random(tokens, columns), _random(rows, columns), _random(rows)
            return lambda: F.linear(x, weight, bias)

        yield "linear with bias", f"bf16 {tokens}x{rows_}x{columns_}", biased
    for experts, tokens, rows_, columns_ in (
        (8, 4096, 14336, 4096),
        (8, 16384, 14336, 4096),
        (8, 4096, 4096, 14336),
        (64, 8192, 1408, 2048),
        (64, 32768, 1408, 2048),
        (128, 16384, 768, 2048),
    ):

        def grouped(experts: int = experts, tokens: int = tokens, rows: int = rows_, columns: int = columns_) -> Call:
            x, weights = _random(tokens, columns), _random(experts, columns, rows)
            ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * (tokens // experts)
            return lambda: torch._grouped_mm(x, weights, offs=ends)

        yield "grouped", f"bf16 {experts} of {tokens // experts}x{rows_}x{columns_}", grouped
    for size in (1024, 2048, 4096, 8192, 16384):

        def square(size: int = size) -> Call:
            left, right = _random(size, size), _random(size, size)
            return lambda: left @ right

        yield "square", f"bf16 {size}", square


def attention() -> Iterator[Case]:
    """Fused attention: lengths, heads, kernels, both directions; one query over a cache."""
    kernels = {
        "flash": torch.nn.attention.SDPBackend.FLASH_ATTENTION,
        "cudnn": torch.nn.attention.SDPBackend.CUDNN_ATTENTION,
        "efficient": torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
    }
    shapes = [
        (16, 32, 32, 512, 128),
        (4, 32, 32, 2048, 128),
        (2, 32, 8, 4096, 128),
        (1, 32, 8, 8192, 128),
        (1, 32, 8, 16384, 128),
        (8, 16, 16, 1024, 64),
        (2, 32, 32, 4096, 64),
        (1, 16, 16, 8192, 64),
        (12, 12, 12, 1024, 64),
    ]
    for name, kernel in kernels.items():
        for batch, heads, kv, length, width in shapes:
            for causal in (True, False):
                if not causal and (batch, length) not in ((4, 2048), (1, 8192), (2, 4096)):
                    continue
                for backward in (False, True):

                    def fused(
                        kernel: Any = kernel,
                        batch: int = batch,
                        heads: int = heads,
                        kv: int = kv,
                        length: int = length,
                        width: int = width,
                        causal: bool = causal,
                        backward: bool = backward,
                    ) -> Call:
                        query, key, value = (
                            _random(batch, each, length, width, grad=backward) for each in (heads, kv, kv)
                        )
                        if kernel is kernels["efficient"] and heads != kv:
                            key, value = (_random(batch, heads, length, width, grad=backward) for _ in range(2))
                        gradient = _random(batch, heads, length, width)
                        gqa = key.shape[1] != heads

                        def forward() -> Tensor:
                            with torch.nn.attention.sdpa_kernel(kernel):
                                return F.scaled_dot_product_attention(
                                    query, key, value, is_causal=causal, enable_gqa=gqa
                                )

                        if not backward:
                            return forward
                        result = forward()
                        return lambda: torch.autograd.grad(result, (query, key, value), gradient, retain_graph=True)

                    how = f"{'causal' if causal else 'full'} {batch}x{heads}/{kv}x{length}x{width}"
                    yield f"attention {name} {'backward' if backward else 'forward'}", how, fused
    for batch, heads, kv, length, width in (
        (1, 32, 32, 4096, 128),
        (16, 32, 8, 4096, 128),
        (64, 32, 8, 1024, 128),
        (64, 32, 32, 2048, 128),
    ):

        def decode(
            batch: int = batch, heads: int = heads, kv: int = kv, length: int = length, width: int = width
        ) -> Call:
            query, key, value = (_random(batch, h, n, width) for h, n in ((heads, 1), (kv, length), (kv, length)))
            return lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=heads != kv)

        yield "attention of one query", f"{batch}x{heads}/{kv}x{length}x{width}", decode


def convolutions() -> Iterator[Case]:
    """Convolutions of a ResNet-50 and some others, both directions, channels last in bf16, first in fp32."""
    shapes = {
        "stem": (3, 224, 64, 7, 2, 1),
        "1x1 64-256": (64, 56, 256, 1, 1, 1),
        "3x3 64": (64, 56, 64, 3, 1, 1),
        "3x3 128 /2": (128, 56, 128, 3, 2, 1),
        "3x3 256": (256, 14, 256, 3, 1, 1),
        "1x1 1024-256": (1024, 14, 256, 1, 1, 1),
        "3x3 512": (512, 7, 512, 3, 1, 1),
        "1x1 512-2048": (512, 7, 2048, 1, 1, 1),
        "depthwise 384": (384, 28, 384, 3, 1, 384),
        "patches 16": (3, 224, 768, 16, 16, 1),
    }
    for name, (channels, size, out, width, stride, groups) in shapes.items():
        for dtype in (BF16, FP32):
            for backward in (False, True):

                def convolution(
                    channels: int = channels,
                    size: int = size,
                    out: int = out,
                    width: int = width,
                    stride: int = stride,
                    groups: int = groups,
                    dtype: torch.dtype = dtype,
                    backward: bool = backward,
                ) -> Call:
                    layout = torch.channels_last if dtype == BF16 else torch.contiguous_format
                    x = _random(64, channels, size, size, dtype=dtype).detach().to(memory_format=layout)
                    weight = (
                        _random(out, channels // groups, width, width, dtype=dtype).detach().to(memory_format=layout)
                    )
                    padding = 0 if width == stride else width // 2
                    x.requires_grad_(backward), weight.requires_grad_(backward)

                    def forward() -> Tensor:
                        return F.conv2d(x, weight, stride=stride, padding=padding, groups=groups)

                    if not backward:
                        return forward
                    result = forward()
                    gradient = torch.randn_like(result)
                    return lambda: torch.autograd.grad(result, (x, weight), gradient, retain_graph=True)

                group = f"convolution {_SHORT[dtype]} {'backward' if backward else 'forward'}"
                yield group, f"{name} 64x{channels}x{size}", convolution


def _given(call: Call) -> Call:
    return call


def _with_gradient(forward: Callable[..., Tensor], *inputs: Tensor) -> tuple[Call, Call]:
    """The call, and that of its gradient alone, which keeps the graph."""
    wanted = [each for each in inputs if each.requires_grad]
    result = forward(*inputs)
    gradient = torch.randn_like(result)
    return (
        lambda: forward(*(each.detach() for each in inputs)),
        lambda: torch.autograd.grad(result, wanted, gradient, retain_graph=True),
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

ROWS = ((65536, 128), (16384, 1024), (4096, 4096), (512, 32768), (4096, 32000), (256, 128256))


def memory_bound() -> Iterator[Case]:
    """Kernels that the memory bounds, by size and format."""
    for dtype in (BF16, FP32):
        for name, function in POINTWISE.items():
            for mib in (1, 16, 256) if dtype == BF16 else (64, 1024):
                if mib == 1024 and name not in ("add", "copy", "zero_", "gelu", "to fp32", "dropout"):
                    continue

                def pointwise(
                    function: Callable[[Tensor], Any] = function, mib: int = mib, dtype: torch.dtype = dtype
                ) -> Call:
                    x = _random((mib << 20) // dtype.itemsize, dtype=dtype)
                    return lambda: function(x)

                yield f"pointwise {_SHORT[dtype]}", f"{name} {mib} MiB", pointwise
    for name, function in ALONG.items():
        for rows, columns in ROWS:

            def along(function: Callable[[Tensor], Any] = function, rows: int = rows, columns: int = columns) -> Call:
                x = _random(rows, columns)
                return lambda: function(x)

            yield name, f"bf16 {rows}x{columns}", along
    for rows, columns in ((65536, 128), (16384, 1024), (16384, 4096), (4096, 8192), (1024, 16384)):
        for dtype in (BF16, FP32):
            for which in (0, 1):

                def norm(
                    rows: int = rows, columns: int = columns, dtype: torch.dtype = dtype, which: int = which
                ) -> Call:
                    x, weight, bias = (
                        _random(*shape, dtype=dtype, grad=True) for shape in ((rows, columns), (columns,), (columns,))
                    )
                    return _with_gradient(lambda x, w, b: F.layer_norm(x, (columns,), w, b), x, weight, bias)[which]

                def rms(
                    rows: int = rows, columns: int = columns, dtype: torch.dtype = dtype, which: int = which
                ) -> Call:
                    x, weight = (_random(*shape, dtype=dtype, grad=True) for shape in ((rows, columns), (columns,)))
                    return _with_gradient(lambda x, w: F.rms_norm(x, (columns,), w), x, weight)[which]

                def soft(rows: int = rows, columns: int = columns, dtype: torch.dtype = dtype) -> Call:
                    return _with_gradient(lambda x: x.softmax(-1), _random(rows, columns, dtype=dtype, grad=True))[1]

                direction = ("forward", "backward")[which]
                yield f"layer norm {direction}", f"{_SHORT[dtype]} {rows}x{columns}", norm
                yield f"rms norm {direction}", f"{_SHORT[dtype]} {rows}x{columns}", rms
                if which:
                    yield "softmax backward", f"{_SHORT[dtype]} {rows}x{columns}", soft
    for shape in ((64, 64, 56, 56), (64, 512, 14, 14)):
        for which in (0, 1):

            def batch_norm(shape: tuple[int, ...] = shape, which: int = which) -> Call:
                x = _random(*shape).to(memory_format=torch.channels_last).detach().requires_grad_()
                weight, bias = (_random(shape[1], dtype=FP32, grad=True) for _ in range(2))
                mean, var = torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")
                return _with_gradient(lambda x, w, b: F.batch_norm(x, mean, var, w, b, training=True), x, weight, bias)[
                    which
                ]

            def group_norm(shape: tuple[int, ...] = shape, which: int = which) -> Call:
                x, weight, bias = _random(*shape, grad=True), _random(shape[1], grad=True), _random(shape[1], grad=True)
                return _with_gradient(lambda x, w, b: F.group_norm(x, 32, w, b), x, weight, bias)[which]

            def pooled(shape: tuple[int, ...] = shape, which: int = which) -> Call:
                x = _random(*shape).to(memory_format=torch.channels_last).detach().requires_grad_()
                return _with_gradient(lambda x: F.max_pool2d(x, 3, 2, 1), x)[which]

            direction = ("forward", "backward")[which]
            for name, case in (("batch norm", batch_norm), ("group norm", group_norm), ("max pool", pooled)):
                yield f"{name} {direction}", f"bf16 {shape}", case
    for tokens, vocab, width in ((4096, 32000, 4096), (16384, 50304, 768), (8192, 128256, 4096)):

        def embedded(tokens: int = tokens, vocab: int = vocab, width: int = width) -> Call:
            table, ids = _random(vocab, width), torch.randint(0, vocab, (tokens,), device="cuda")
            return lambda: F.embedding(ids, table)

        def embedding_gradient(tokens: int = tokens, vocab: int = vocab, width: int = width) -> Call:
            table, ids = _random(vocab, width, grad=True), torch.randint(0, vocab, (tokens,), device="cuda")
            return _with_gradient(lambda table: F.embedding(ids, table), table)[1]

        yield "embedding forward", f"bf16 {tokens} of {vocab}x{width}", embedded
        yield "embedding backward", f"bf16 {tokens} of {vocab}x{width}", embedding_gradient
        for dtype in (BF16, FP32):
            for which in (0, 1):

                def loss(
                    tokens: int = tokens, vocab: int = vocab, dtype: torch.dtype = dtype, which: int = which
                ) -> Call:
                    logits = _random(min(tokens, 8192), vocab, dtype=dtype, grad=True)
                    labels = torch.randint(0, vocab, (logits.shape[0],), device="cuda")
                    return _with_gradient(lambda x: F.cross_entropy(x, labels), logits)[which]

                yield (
                    f"cross entropy {('forward', 'backward')[which]}",
                    f"{_SHORT[dtype]} {min(tokens, 8192)}x{vocab}",
                    loss,
                )

    def indexing(name: str, rows: int, width: int) -> Call:
        x, index = _random(rows, width), torch.randperm(rows, device="cuda")
        wide = torch.randint(0, rows, (rows, width), device="cuda")
        out = torch.zeros_like(x)
        calls: dict[str, Call] = {
            "index": lambda: x[index],
            "index_select": lambda: x.index_select(0, index),
            "gather": lambda: x.gather(0, wide),
            "scatter": lambda: out.scatter(0, wide, x),
            "scatter_add_": lambda: out.scatter_add_(0, wide, x),
            "index_add_": lambda: out.index_add_(0, index, x),
            "index_put_": lambda: out.index_put_((index,), x),
            "index_put_ accumulate": lambda: out.index_put_((index,), x, accumulate=True),
            "index_copy_": lambda: out.index_copy_(0, index, x),
            "sort": lambda: x.sort(-1),
            "topk": lambda: x.topk(8, -1),
            "argsort rows": lambda: index.argsort(),
            "repeat": lambda: x.repeat_interleave(2, 0),
            "multinomial": lambda: torch.multinomial(x.float().abs(), 1),
            "one_hot": lambda: F.one_hot(index % 64, 64),
            "bincount like": lambda: torch.zeros(64, device="cuda").index_add_(
                0, index % 64, torch.ones(rows, device="cuda")
            ),
        }
        return calls[name]

    for name in (
        "index",
        "index_select",
        "gather",
        "scatter",
        "scatter_add_",
        "index_add_",
        "index_put_",
        "index_put_ accumulate",
        "index_copy_",
        "sort",
        "topk",
        "argsort rows",
        "repeat",
        "multinomial",
        "one_hot",
        "bincount like",
    ):
        for rows, width in ((16384, 128), (16384, 2048)):
            yield name, f"bf16 {rows}x{width}", functools.partial(indexing, name, rows, width)


def many_tensors() -> Iterator[Case]:
    """Optimizers and norms over lists of parameters: of a GPT-2 (148 tensors), and of four layers of a Llama 3 8B."""
    gpt = [
        s
        for _ in range(12)
        for s in ((2304, 768), (2304,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,), *[(768,)] * 4)
    ]
    gpt += [(50304, 768), (1024, 768), (768,), (768,)]
    llama = [
        s
        for _ in range(4)
        for s in (
            (4096, 4096),
            (1024, 4096),
            (1024, 4096),
            (4096, 4096),
            (14336, 4096),
            (14336, 4096),
            (4096, 14336),
            (4096,),
            (4096,),
        )
    ]
    for name, shapes in (("GPT-2", gpt), ("4 layers of 8B", llama)):
        for dtype in (FP32, BF16):
            for how, options in (
                ("AdamW fused", {"fused": True}),
                ("AdamW foreach", {"foreach": True}),
                ("SGD momentum", {"momentum": 0.9}),
            ):

                def stepped(
                    shapes: Any = shapes, dtype: torch.dtype = dtype, how: str = how, options: Any = options
                ) -> Call:
                    parameters = [nn.Parameter(_random(*shape, dtype=dtype)) for shape in shapes]
                    for each in parameters:
                        each.grad = torch.randn_like(each)
                    if how.startswith("Adam"):
                        optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, capturable=True, **options)
                    else:
                        optimizer = torch.optim.SGD(parameters, lr=1e-3, **options)
                    return optimizer.step

                yield how, f"{name} {_SHORT[dtype]}", stepped

            def clipped(shapes: Any = shapes, dtype: torch.dtype = dtype) -> Call:
                gradients = [_random(*shape, dtype=dtype) for shape in shapes]

                def call() -> None:
                    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
                    torch._foreach_mul_(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0))

                return call

            def zeroed(shapes: Any = shapes, dtype: torch.dtype = dtype) -> Call:
                gradients = [_random(*shape, dtype=dtype) for shape in shapes]
                return lambda: torch._foreach_zero_(gradients)

            yield "clip gradients", f"{name} {_SHORT[dtype]}", clipped
            yield "zero gradients", f"{name} {_SHORT[dtype]}", zeroed


def floors() -> Iterator[Case]:
    """The smallest kernels: what a node of a graph takes at least."""

    def chain(count: int, elements: int) -> Call:
        x = torch.zeros(elements, device="cuda")

        def call() -> None:
            for _ in range(count):
                x.add_(1.0)

        return call

    for elements in (1, 4096, 65536, 262144):
        yield "chain of 100", f"add_ of {elements}", functools.partial(chain, 100, elements)

    def small(name: str) -> Call:
        x, vector, weight = _random(1, 4096), _random(4096), _random(4096, 4096)
        ids, table = torch.zeros(1, dtype=torch.long, device="cuda"), _random(1000, 4096)
        calls: dict[str, Call] = {
            "rms norm": lambda: F.rms_norm(x, (4096,), vector),
            "layer norm": lambda: F.layer_norm(x, (4096,), vector),
            "silu": lambda: F.silu(x),
            "mul": lambda: x * vector,
            "softmax": lambda: x.softmax(-1),
            "linear 4096": lambda: F.linear(x, weight),
            "embedding": lambda: F.embedding(ids, table),
            "argmax": lambda: x.argmax(-1),
            "cat": lambda: torch.cat([x, x], -1),
            "copy": lambda: x.clone(),
            "sum": lambda: x.sum(),
            "to fp32": lambda: x.float(),
            "cumsum": lambda: x.cumsum(-1),
            "topk": lambda: x.topk(50),
            "sort": lambda: x.sort(-1),
        }
        return calls[name]

    for name in (
        "rms norm",
        "layer norm",
        "silu",
        "mul",
        "softmax",
        "linear 4096",
        "embedding",
        "argmax",
        "cat",
        "copy",
        "sum",
        "to fp32",
        "cumsum",
        "topk",
        "sort",
    ):
        yield "one token", f"{name} of 1x4096", functools.partial(small, name)


def host() -> Iterator[Case]:
    """What a call takes of the host, kernels being shorter: plain operators, modules, gradients, steps of optimizers."""
    x, y, weight = _random(8, 64), _random(8, 64), _random(64, 64)
    linear, layer_norm = nn.Linear(64, 64, device="cuda", dtype=BF16), nn.LayerNorm(64, device="cuda", dtype=BF16)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8))).to("cuda", BF16)
    fine = _random(8, 64, grad=True)
    event, side = torch.cuda.Event(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(10):
            x.add_(0.0)
    query = _random(1, 4, 16, 64)
    parameters = [nn.Parameter(_random(16, 16)) for _ in range(100)]
    for each in parameters:
        each.grad = torch.randn_like(each)
    fused, foreach = torch.optim.AdamW(parameters, fused=True), torch.optim.AdamW(parameters, foreach=True)

    def trained() -> None:
        net(x).sum().backward()

    def on_side() -> None:
        with torch.cuda.stream(side):
            pass

    calls: dict[str, Call] = {
        "add": lambda: x + y,
        "add_": lambda: x.add_(0.0),
        "view": lambda: x.view(64, 8),
        "transpose": lambda: x.t(),
        "x[0]": lambda: x[0],
        "slice": lambda: x[:, 2:5],
        "mm": lambda: x @ weight,
        "F.linear": lambda: F.linear(x, weight),
        "nn.Linear": lambda: linear(x),
        "nn.LayerNorm": lambda: layer_norm(x),
        "F.gelu": lambda: F.gelu(x),
        "add with gradient": lambda: fine + y,
        "sum": lambda: x.sum(),
        "softmax": lambda: x.softmax(-1),
        "cat": lambda: torch.cat([x, y]),
        "to fp32": lambda: x.float(),
        "empty": lambda: torch.empty(8, 64, device="cuda"),
        "zeros": lambda: torch.zeros(8, 64, device="cuda"),
        "sdpa": lambda: F.scaled_dot_product_attention(query, query, query),
        "16 layers forward": lambda: net(x),
        "16 layers, both": trained,
        "AdamW fused of 100": fused.step,
        "AdamW foreach of 100": foreach.step,
        "graph of 10": graph.replay,
        "event record": lambda: event.record(),
        "stream context": on_side,
        "item": lambda: x.sum().item(),
        "synchronize": torch.cuda.synchronize,
        "index by tensor": lambda: table[ids],
        "copy to host": lambda: x.cpu(),
        "from host": lambda: on_host.to("cuda"),
        "from pinned": lambda: pinned.to("cuda", non_blocking=True),
        "tensor from list": lambda: torch.tensor([1, 2, 3], device="cuda"),
        "arange": lambda: torch.arange(64, device="cuda"),
        "rand": lambda: torch.rand(8, 64, device="cuda"),
    }
    table, ids = _random(100, 64), torch.arange(8, device="cuda")
    on_host = torch.ones(8, 64)
    pinned = torch.ones(8, 64).pin_memory()
    for name, call in calls.items():
        yield "host", name, functools.partial(_given, call)


def copies() -> Iterator[Case]:
    """Copies over the host's link: each timed by itself, waited for."""
    for mib in (1, 16, 256):
        for name in ("to device pinned", "to device pageable", "to host pinned", "to host pageable"):

            def copy(mib: int = mib, name: str = name) -> Call:
                there = torch.ones(mib << 20, dtype=torch.uint8, device="cuda")
                here = torch.ones(mib << 20, dtype=torch.uint8, pin_memory="pinned" in name)
                source, target = (here, there) if "to device" in name else (there, here)
                return lambda: target.copy_(source, non_blocking=True)

            yield "copy", f"{name} {mib} MiB", copy


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "products": products,
    "attention": attention,
    "convolutions": convolutions,
    "memory": memory_bound,
    "lists": many_tensors,
    "floors": floors,
    "host": host,
    "copies": copies,
}


def replayed(make: Callable[[], Call], times: int, replays: int) -> float:
    """Seconds of the call that ``make`` gives, from a graph of ``times`` of it.

    All is on one stream: a gradient is computed on the stream of what it is the gradient of, which a capture must know.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call = make()
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(times):
            call()
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    for mark in marks[:-1]:
        mark.record()
        graph.replay()
    marks[-1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) * 1e-3 / times


def host_seconds(call: Call, times: int, rounds: int) -> float:
    """Seconds of the host for a call, in the median of rounds that begin with an idle device."""
    for _ in range(3):
        call()
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            call()
        taken.append((time.perf_counter() - began) / times)
    return statistics.median(taken)


def waited(call: Call, rounds: int) -> float:
    """Seconds from before a call until the device is idle, in the median."""
    call()
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def sustained(seconds: float, out: list[dict[str, Any]]) -> None:
    """One large product after the other: its rate as the board warms up."""
    left, right = _random(8192, 8192), _random(8192, 8192)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(50):
            left @ right
        last.record()
        torch.cuda.synchronize()
        each = first.elapsed_time(last) * 1e-3 / 50
        out.append({"group": "sustained", "name": f"bf16 8192 at {time.perf_counter() - began:.2f} s", "seconds": each})


def main() -> None:
    """Time the cases of groups, and write JSON: ``device``, ``torch``, ``cases`` with ``seconds`` or ``error``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--groups", default=",".join(GROUPS), help="those of them, by commas")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds after which no further case is begun"
    )
    parser.add_argument(
        "--sustained", type=float, default=0.0, help="seconds of one large product after the other, at the end"
    )
    args = parser.parse_args()
    torch.cuda.set_device(0)
    began = time.perf_counter()
    cases: list[dict[str, Any]] = []
    for group in args.groups.split(","):
        for kind, name, make in GROUPS[group]():
            if time.perf_counter() - began > args.limit:
                break
            case: dict[str, Any] = {"set": group, "group": kind, "name": name}
            try:
                if group == "host":
                    case["seconds"] = host_seconds(make(), 200, 5)
                elif group == "copies":
                    case["seconds"] = waited(make(), 7)
                else:
                    case["seconds"] = replayed(make, 10, 5)
            except Exception as error:  # what one case meets is that case's
                case["error"] = f"{type(error).__name__}: {error}"[:400]
                with contextlib.suppress(Exception):  # a capture that has failed leaves torch's generator in it
                    torch.cuda.synchronize()
                    fresh = torch.Generator("cuda").graphsafe_get_state()
                    torch.cuda.default_generators[0].graphsafe_set_state(fresh)
            cases.append(case)
            del make
    if args.sustained:
        sustained(args.sustained, cases)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": cases}
    with open(args.out, "w") as file:
        json.dump(about, file, indent=0)
    failed = [case for case in cases if "error" in case]
    print(f"{len(cases)} cases, {len(failed)} failed, {time.perf_counter() - began:.1f} s")
    for case in failed:
        print("  ", case["group"], case["name"], case["error"][:160])


if __name__ == "__main__":
    main()
