"""Products of matrices: tokens by weights of Llama 3 8B, gradients of both, formats, batches, groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from kernbench.programs.gpu_cases.inputs import BF16, FP8, FP16, FP32, SHORT, Call, Case, random

Weight = tuple[int, int]

LINEARS: dict[str, Weight] = {
    "qkv": (6144, 4096), "out": (4096, 4096), "up": (28672, 4096), "down": (4096, 14336), "vocab": (128256, 4096),
}  # fmt: skip
"""Rows and columns of the weights of Llama 3 8B, query, key and value in one and gate and up in one."""

_FEWER = (2, 4, 32, 128, 512, 2048)
"""Numbers of tokens for which two of the weights are left out."""

_BATCHES = (
    (32, 128, 128, 64), (32, 1024, 1024, 64), (32, 1024, 64, 1024), (256, 512, 512, 64), (8, 4096, 4096, 128),
    (64, 1, 4096, 128), (512, 256, 64, 256), (4, 2048, 2048, 2048),
)  # fmt: skip
_BIASED = ((512, 768, 768), (4096, 3072, 768), (4096, 768, 3072), (16384, 2304, 768), (16384, 50304, 768))
_GROUPS = (
    (8, 4096, 14336, 4096), (8, 16384, 14336, 4096), (8, 4096, 4096, 14336), (64, 8192, 1408, 2048),
    (64, 32768, 1408, 2048), (128, 16384, 768, 2048),
)  # fmt: skip


def products() -> Iterator[Case]:
    """All of them."""
    for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        for name, weight in LINEARS.items():
            if not (tokens in _FEWER and name in ("out", "vocab")):
                yield "linear", _named(name, tokens, weight), partial(_linear, tokens, weight, BF16)
    for tokens in (1024, 4096, 8192):
        for name, weight in LINEARS.items():
            yield "gradient of inputs", _named(name, tokens, weight), partial(_of_inputs, tokens, weight)
            yield "gradient of weights", _named(name, tokens, weight), partial(_of_weights, tokens, weight)
    for dtype in (FP16, FP32):
        for tokens in (16, 512, 4096):
            for name in ("qkv", "down"):
                yield f"linear {SHORT[dtype]}", f"{name} {tokens}", partial(_linear, tokens, LINEARS[name], dtype)
    for tokens in (512, 4096):
        for name in ("qkv", "down"):
            yield "linear tf32", f"{name} {tokens}", partial(_rounded, tokens, LINEARS[name])
    for tokens in (16, 64, 256, 1024, 4096, 8192):
        for name in ("qkv", "up", "down"):
            for fast in (True, False):
                title = f"{name} {tokens} {'fast' if fast else 'exact'}"
                yield "fp8 by tensor", title, partial(_scaled, tokens, LINEARS[name], fast)
            yield "fp8 by row", f"{name} {tokens}", partial(_scaled_by_rows, tokens, LINEARS[name])
    for tokens in (32, 256, 4096):
        for name in ("qkv", "down"):
            yield "int8", f"{name} {tokens}", partial(_integers, tokens, LINEARS[name])
    for batch, m, n, k in _BATCHES:
        yield "bmm", f"bf16 {batch}x{m}x{n}x{k}", partial(_multiplied, (batch, m, k), (batch, k, n))
    for tokens, rows, columns in _BIASED:
        yield "linear with bias", f"bf16 {tokens}x{rows}x{columns}", partial(_with_bias, tokens, rows, columns)
    for experts, tokens, rows, columns in _GROUPS:
        title = f"bf16 {experts} of {tokens // experts}x{rows}x{columns}"
        yield "grouped", title, partial(_grouped, experts, tokens, rows, columns)
    for size in (1024, 2048, 4096, 8192, 16384):
        yield "square", f"bf16 {size}", partial(_multiplied, (size, size), (size, size))


def _named(name: str, tokens: int, weight: Weight) -> str:
    return f"bf16 {name} {tokens}x{weight[0]}x{weight[1]}"


def _linear(tokens: int, weight: Weight, dtype: torch.dtype) -> Call:
    x, w = random(tokens, weight[1], dtype=dtype), random(*weight, dtype=dtype)
    return lambda: F.linear(x, w)


def _of_inputs(tokens: int, weight: Weight) -> Call:
    gradient, w = random(tokens, weight[0]), random(*weight)
    return lambda: gradient @ w


def _of_weights(tokens: int, weight: Weight) -> Call:
    gradient, x = random(tokens, weight[0]), random(tokens, weight[1])
    return lambda: gradient.t() @ x


def _rounded(tokens: int, weight: Weight) -> Call:
    linear = _linear(tokens, weight, FP32)

    def call() -> Tensor:
        torch.backends.cuda.matmul.allow_tf32 = True
        result: Tensor = linear()
        torch.backends.cuda.matmul.allow_tf32 = False
        return result

    return call


def _scaled(tokens: int, weight: Weight, fast: bool) -> Call:
    x, w = random(tokens, weight[1]).to(FP8), random(*weight).to(FP8)
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(x, w.t(), one, one, out_dtype=BF16, use_fast_accum=fast)


def _scaled_by_rows(tokens: int, weight: Weight) -> Call:
    x, w = random(tokens, weight[1]).to(FP8), random(*weight).to(FP8)
    left, right = torch.ones(tokens, 1, device="cuda"), torch.ones(1, weight[0], device="cuda")
    return lambda: torch._scaled_mm(x, w.t(), left, right, out_dtype=BF16, use_fast_accum=True)


def _integers(tokens: int, weight: Weight) -> Call:
    x, w = (torch.randint(-100, 100, shape, device="cuda", dtype=torch.int8) for shape in ((tokens, weight[1]), weight))
    return lambda: torch._int_mm(x, w.t())


def _multiplied(left: tuple[int, ...], right: tuple[int, ...]) -> Call:
    a, b = random(*left), random(*right)
    return lambda: a @ b


def _with_bias(tokens: int, rows: int, columns: int) -> Call:
    x, w, bias = random(tokens, columns), random(rows, columns), random(rows)
    return lambda: F.linear(x, w, bias)


def _grouped(experts: int, tokens: int, rows: int, columns: int) -> Call:
    x, weights = random(tokens, columns), random(experts, columns, rows)
    ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * (tokens // experts)
    return lambda: torch._grouped_mm(x, weights, offs=ends)
