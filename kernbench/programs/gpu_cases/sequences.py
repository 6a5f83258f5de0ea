"""What torch has one operator for and a GPU several kernels: recurrent layers and cells, bags of embeddings, the encoder's
fast path, decompositions, transforms; and attention in fp32, small products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernbench.programs.gpu_cases.inputs import BF16, DIRECTIONS, FP16, FP32, SHORT, Call, Case, gradients, random

_LAYERS = (
    ("LSTM", FP32, 35, 20, 650, 650, 2), ("LSTM", FP32, 128, 64, 256, 512, 1), ("LSTM", BF16, 128, 64, 512, 512, 1),
    ("GRU", FP32, 50, 64, 256, 512, 1), ("GRU", BF16, 50, 64, 256, 512, 1), ("LSTM", FP32, 20, 512, 1024, 1024, 1),
    ("RNN", FP32, 50, 64, 256, 512, 1), ("LSTM", FP32, 256, 1, 128, 128, 1),
)  # fmt: skip
_SEEN = ((8, 12, 1024, 64), (4, 16, 2048, 64), (8, 12, 128, 64), (2, 16, 2048, 128), (32, 8, 256, 32))


def sequences() -> Iterator[Case]:
    """All of them."""
    for name in ("GRUCell", "LSTMCell", "RNNCell"):
        for dtype in (FP32, BF16):
            for batch, given, made in ((64, 256, 512), (2048, 512, 512)):
                for direction in DIRECTIONS:
                    title = f"{SHORT[dtype]} {batch}x{given}-{made}"
                    yield f"{name} {direction}", title, partial(_cell, name, dtype, batch, given, made, direction)
    for name, dtype, length, batch, given, made, layers in _LAYERS:
        for direction in DIRECTIONS:
            title = f"{SHORT[dtype]} {length}x{batch}x{given}-{made} of {layers}"
            make = partial(_recurrent, name, dtype, (length, batch, given), made, layers, direction)
            yield f"{name} {direction}", title, make
    for rows, batch, each, width in ((200000, 8192, 4, 64), (200000, 8192, 32, 64), (10000, 2048, 16, 512)):
        for mode in ("sum", "mean", "max"):
            for direction in DIRECTIONS:
                title = f"{mode} {batch}x{each} of {rows}x{width}"
                yield f"bag {direction}", title, partial(_bag, rows, batch, each, width, mode, direction)
    for rows, count, width in ((10000, 700, 650), (50304, 16384, 768), (200000, 32768, 64)):
        for direction in DIRECTIONS:
            title = f"fp32 {count} of {rows}x{width}"
            yield f"rows {direction}", title, partial(_rows, rows, count, width, direction)
    for shape in _SEEN:
        for dtype in (FP32, BF16):
            for how in ("full", "causal", "masked"):
                if how == "masked" and shape != _SEEN[0]:
                    continue
                for direction in DIRECTIONS:
                    title = f"{SHORT[dtype]} {how} {'x'.join(map(str, shape))}"
                    yield f"efficient {direction}", title, partial(_attended, shape, dtype, how, direction)
    for dtype in (FP32, BF16):
        for batch, m, n, k in (
            (8192, 17, 17, 64), (8192, 17, 64, 17), (8192, 64, 17, 17), (4096, 32, 32, 32), (1024, 64, 64, 64),
            (16384, 8, 8, 16), (96, 128, 128, 64), (96, 128, 64, 128),
        ):  # fmt: skip
            yield "small bmm", f"{SHORT[dtype]} {batch}x{m}x{n}x{k}", partial(_multiplied, dtype, batch, m, n, k)
    for dtype in (FP32, FP16, BF16):
        for batch, length, width in ((8, 128, 768), (32, 512, 1024)):
            for masked in (False, True):
                title = f"{SHORT[dtype]} {batch}x{length}x{width}{' padded' if masked else ''}"
                yield "encoder layer", title, partial(_encoder, dtype, batch, length, width, masked)
            yield (
                "multi-head attention",
                f"{SHORT[dtype]} {batch}x{length}x{width}",
                partial(_heads, dtype, batch, length, width),
            )
    for name, call in _ALONE.items():
        yield "alone", name, call


def _cell(name: str, dtype: torch.dtype, batch: int, given: int, made: int, direction: str) -> Call:
    cell: Any = getattr(nn, name)(given, made, device="cuda", dtype=dtype)
    x, state = random(batch, given, dtype=dtype), random(batch, made, dtype=dtype)
    states = (state, torch.zeros_like(state)) if name == "LSTMCell" else state

    def call() -> Tensor:
        found = cell(x, states)
        return found[0] if isinstance(found, tuple) else found

    return gradients(call, {"input": x, "state": state, **dict(cell.named_parameters())}, direction)


def _recurrent(name: str, dtype: torch.dtype, shape: tuple[int, ...], made: int, layers: int, direction: str) -> Call:
    layer: Any = getattr(nn, name)(shape[-1], made, layers, device="cuda", dtype=dtype)
    x = random(*shape, dtype=dtype)
    return gradients(lambda: layer(x)[0], {"input": x, **dict(layer.named_parameters())}, direction)


def _bag(rows: int, batch: int, each: int, width: int, mode: str, direction: str) -> Call:
    table, chosen = random(rows, width, dtype=FP32), torch.randint(rows, (batch, each), device="cuda")
    return gradients(lambda: F.embedding_bag(chosen, table, mode=mode), {"table": table}, direction)


def _rows(rows: int, count: int, width: int, direction: str) -> Call:
    table, chosen = random(rows, width, dtype=FP32), torch.randint(rows, (count,), device="cuda")
    return gradients(lambda: F.embedding(chosen, table), {"table": table}, direction)


def _attended(shape: tuple[int, ...], dtype: torch.dtype, how: str, direction: str) -> Call:
    query, key, value = (random(*shape, dtype=dtype) for _ in range(3))
    mask = random(*shape[:3], shape[2], dtype=dtype) if how == "masked" else None

    def call() -> Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=how == "causal")

    return gradients(call, {"query": query, "key": key, "value": value}, direction)


def _multiplied(dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> Call:
    left, right = random(batch, m, k, dtype=dtype), random(batch, k, n, dtype=dtype)
    return lambda: left @ right


def _encoder(dtype: torch.dtype, batch: int, length: int, width: int, masked: bool) -> Call:
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, device="cuda", dtype=dtype)
    layer.eval()
    x = random(batch, length, width, dtype=dtype)
    padding = torch.zeros(batch, length, dtype=torch.bool, device="cuda") if masked else None
    return torch.no_grad()(lambda: layer(x, src_key_padding_mask=padding))


def _heads(dtype: torch.dtype, batch: int, length: int, width: int) -> Call:
    layer = nn.MultiheadAttention(width, width // 64, batch_first=True, device="cuda", dtype=dtype)
    layer.eval()
    x = random(batch, length, width, dtype=dtype)
    return torch.no_grad()(lambda: layer(x, x, x, need_weights=False))


def _on(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return random(*shape, dtype=dtype)


def _definite(*shape: int) -> Tensor:
    x = random(*shape, dtype=FP32)
    return x @ x.mT + shape[-1] * torch.eye(shape[-1], device="cuda")


def _ctc(direction: str) -> Call:
    scores = random(200, 32, 64, dtype=FP32).log_softmax(-1).detach()
    targets = torch.randint(1, 64, (32, 40), device="cuda")
    lengths, targets_of = torch.full((32,), 200, device="cuda"), torch.full((32,), 40, device="cuda")
    return gradients(lambda: F.ctc_loss(scores, targets, lengths, targets_of), {"scores": scores}, direction)


def _with(*inputs: Tensor, function: Callable[..., object]) -> Call:
    return lambda: function(*inputs)


_ALONE: dict[str, Callable[[], Call]] = {
    "rfft 1024x4096": lambda: _with(_on(1024, 4096), function=torch.fft.rfft),
    "rfft 256x1000": lambda: _with(_on(256, 1000), function=torch.fft.rfft),
    "fft2 64x512x512": lambda: _with(_on(64, 512, 512), function=torch.fft.fft2),
    "fft 16 of 1048576": lambda: _with(_on(16, 1 << 20), function=torch.fft.fft),
    "stft": lambda: _with(
        _on(16, 160000), torch.hann_window(400, device="cuda"),
        function=lambda x, w: torch.stft(x, 400, 160, window=w, return_complex=True),
    ),
    "cholesky 1024": lambda: _with(_definite(1024, 1024), function=lambda x: torch.linalg.cholesky_ex(x)[0]),
    "cholesky 512x32": lambda: _with(_definite(512, 32, 32), function=lambda x: torch.linalg.cholesky_ex(x)[0]),
    "solve 1024": lambda: _with(_on(1024, 1024), _on(1024, 64), function=lambda a, b: torch.linalg.solve_ex(a, b)[0]),
    "triangular 1024": lambda: _with(
        _on(1024, 1024), _on(1024, 64), function=lambda a, b: torch.linalg.solve_triangular(a, b, upper=True)
    ),
    "ctc forward": lambda: _ctc("forward"),
    "ctc backward": lambda: _ctc("backward"),
    "cdist 2048x128": lambda: _with(_on(2048, 128), _on(2048, 128), function=torch.cdist),
    "cdist 2048x128 p 1": lambda: _with(_on(2048, 128), _on(2048, 128), function=lambda a, b: torch.cdist(a, b, p=1.0)),
    "histc": lambda: _with(_on(1 << 22), function=lambda x: torch.histc(x, 64, -4, 4)),
    "searchsorted": lambda: _with(
        _on(1 << 16).sort().values, _on(1 << 20), function=torch.searchsorted
    ),
    "weight norm": lambda: _with(_on(4096, 4096), _on(4096, 1), function=lambda v, g: torch._weight_norm(v, g, 0)),
    "trilinear": lambda: _with(_on(512, 128), _on(64, 128, 96), _on(512, 96), function=lambda x, w, y: F.bilinear(x, y, w)),
    "cross": lambda: _with(_on(1 << 20, 3), _on(1 << 20, 3), function=lambda a, b: torch.linalg.cross(a, b)),
    "kthvalue": lambda: _with(_on(4096, 4096), function=lambda x: x.kthvalue(100).values),
    "median": lambda: _with(_on(4096, 4096), function=lambda x: x.median(-1).values),
    "mode": lambda: _with(torch.randint(16, (1024, 1024), device="cuda"), function=lambda x: x.mode(-1).values),
    "cosine": lambda: _with(_on(8192, 1024), _on(8192, 1024), function=F.cosine_similarity),
    "pdist": lambda: _with(_on(1024, 128), function=torch.pdist),
    "local response": lambda: _with(_on(32, 64, 56, 56), function=lambda x: F.local_response_norm(x, 5)),
    "rrelu": lambda: _with(_on(1 << 22), function=lambda x: F.rrelu(x, training=True)),
    "renorm": lambda: _with(_on(4096, 1024), function=lambda x: x.renorm(2, 0, 1.0)),
    "matrix power": lambda: _with(_on(512, 512), function=lambda x: torch.linalg.matrix_power(x, 3)),
    "exponential of matrices": lambda: _with(_on(64, 64, 64) / 64, function=torch.linalg.matrix_exp),
}  # fmt: skip
"""Operators that are met seldom."""

_EVENTS: dict[str, Callable[[], Call]] = {
    "qr 512": lambda: _with(_on(512, 512), function=torch.linalg.qr),
    "qr 64x64x64": lambda: _with(_on(64, 64, 64), function=torch.linalg.qr),
    "eigh 512": lambda: _with(_definite(512, 512), function=torch.linalg.eigh),
    "eigh 64x32x32": lambda: _with(_definite(64, 32, 32), function=torch.linalg.eigh),
    "svd 256": lambda: _with(_on(256, 256), function=lambda x: torch.linalg.svd(x, full_matrices=False)),
    "inv 1024": lambda: _with(_on(1024, 1024), function=torch.linalg.inv),
    "lu 1024": lambda: _with(_on(1024, 1024), function=torch.linalg.lu_factor),
    "lu 256x64x64": lambda: _with(_on(256, 64, 64), function=torch.linalg.lu_factor),
    "lstsq 1024x256": lambda: _with(_on(1024, 256), _on(1024, 8), function=torch.linalg.lstsq),
    "cholesky 1024 checked": lambda: _with(_definite(1024, 1024), function=torch.linalg.cholesky),
    "unique 1048576": lambda: _with(torch.randint(1000, (1 << 20,), device="cuda"), function=torch.unique),
    "nonzero 4194304": lambda: _with(_on(1 << 22).relu(), function=torch.nonzero),
    "masked select": lambda: _with(_on(1 << 22), function=lambda x: x[x > 0]),
    "bincount": lambda: _with(torch.randint(1000, (1 << 20,), device="cuda"), function=torch.bincount),
}
"""Those that a graph cannot capture: their host waits for the device."""


def awaited() -> Iterator[Case]:
    """What a graph cannot capture."""
    for name, make in _EVENTS.items():
        yield "awaited", name, make
