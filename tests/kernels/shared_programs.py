"""Programs on whose results Triton's interpreter and the engine must agree: imported here and in its process.

``EXACT`` results are integers, random numbers and moved data: equal bit for bit. ``ROUNDED`` results are float sums.
Run as a script (``TRITON_INTERPRET=1 python shared_programs.py OUT``) it writes every result to the file ``OUT``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from kernbench.benches.kernels.dropout import dropout, random_streams
from kernbench.benches.kernels.flash_attention import attention
from kernbench.benches.kernels.grouped_gemm import grouped_gemm
from kernbench.benches.kernels.layer_norm import layer_norm
from kernbench.benches.kernels.matmul import matmul
from kernbench.benches.kernels.persistent_matmul import persistent_matmul
from kernbench.benches.kernels.softmax import softmax
from kernbench.benches.kernels.vector_add import add


@triton.jit
def mix_kernel(x_ptr, y_ptr, out_ptr, n, N: tl.constexpr):
    """Integer arithmetic, shifts, selections and comparisons in one chain."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n, other=1)
    y = tl.load(y_ptr + i, mask=i < n, other=7)
    a = (x * y) ^ (x << 3)
    b = tl.where(y != 0, a // tl.where(y != 0, y, 1), a) + (a % 17)
    c = tl.maximum(b, x) - tl.minimum(a >> 5, y)
    tl.store(out_ptr + i, c & ~(x | 3), mask=i < n)


@triton.jit
def tile_kernel(x_ptr, sorted_ptr, scanned_ptr, histogram_ptr, turned_ptr, M: tl.constexpr, N: tl.constexpr):
    offsets = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offsets)
    tl.store(sorted_ptr + offsets, tl.sort(x))
    tl.store(scanned_ptr + offsets, tl.cumsum(x, 0) + tl.cumsum(x, 1, reverse=True))
    tl.store(histogram_ptr + tl.arange(0, 16), tl.histogram(tl.ravel(x) & 15, 16))
    tl.store(turned_ptr + tl.arange(0, M * N), tl.ravel(tl.trans(x)))


@triton.jit
def nearest_kernel(x_ptr, centre_ptr, out_ptr, n, N: tl.constexpr, CENTRES: tl.constexpr):
    """Index of the nearest of a few centres, in a loop with two carried tiles."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n)
    best = tl.full([N], float("inf"), tl.float32)
    index = tl.zeros([N], tl.int32)
    for k in range(CENTRES):
        distance = tl.abs(x - tl.load(centre_ptr + k))
        index = tl.where(distance < best, k, index)
        best = tl.minimum(distance, best)
    tl.store(out_ptr + i, index, mask=i < n)


def _mix(dtype: torch.dtype) -> list[torch.Tensor]:
    x, y = (torch.randint(-(2**20), 2**20, (300,), generator=_generator(s)).to(dtype) for s in (1, 2))
    out = torch.zeros_like(x)
    mix_kernel[(5,)](x, y, out, 300, N=64)
    return [out]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=_generator(seed))


def _tile() -> list[torch.Tensor]:
    x = torch.randint(-1000, 1000, (8, 32), generator=_generator(3), dtype=torch.int32)
    outs = [torch.zeros_like(x), torch.zeros_like(x), torch.zeros(16, dtype=torch.int32), torch.zeros_like(x)]
    tile_kernel[(1,)](x, *outs, M=8, N=32)
    return outs


def _nearest() -> list[torch.Tensor]:
    out = torch.zeros(200, dtype=torch.int32)
    nearest_kernel[(4,)](_randn(200), _randn(9, seed=1), out, 200, N=64, CENTRES=9)
    return [out]


def _layer_norm_forward() -> list[torch.Tensor]:
    return [layer_norm(_randn(10, 200), _randn(200, seed=1), _randn(200, seed=2))]


def _attention(causal: bool) -> list[torch.Tensor]:
    q, k, v = (_randn(1, 2, 100, 32, seed=s).requires_grad_() for s in range(3))
    out = attention(q, k, v, causal=causal, tile=(32, 32))
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), _randn(1, 2, 100, 32, seed=9))]


EXACT: dict[str, Callable[[], list[torch.Tensor]]] = {
    "add": lambda: [add(_randn(1000), _randn(1000, seed=1), 256)],
    "mix int32": lambda: _mix(torch.int32),
    "mix int64": lambda: _mix(torch.int64),
    "mix int16": lambda: _mix(torch.int16),
    "random": lambda: [random_streams(300, 77)[k] for k in (0, 2, 3)],
    "dropout": lambda: [dropout(_randn(500), 0.25, 3)],
    "tile": _tile,
    "nearest": _nearest,
}

ROUNDED: dict[str, Callable[[], list[torch.Tensor]]] = {
    "softmax": lambda: [softmax(_randn(9, 100)), softmax(_randn(9, 100), programs=4)],
    "matmul": lambda: [matmul(_randn(70, 50), _randn(50, 90, seed=1), tile=(32, 32, 16), activation="leaky_relu")],
    "matmul fp16": lambda: [matmul(_randn(70, 50).half(), _randn(50, 90, seed=1).half(), tile=(32, 32, 16))],
    "layer norm": _layer_norm_forward,
    "attention": lambda: _attention(False),
    "attention causal": lambda: _attention(True),
    "grouped gemm": lambda: grouped_gemm([(_randn(64, 32).half(), _randn(32, 64).half()) for _ in range(2)]),
    "persistent matmul": lambda: [persistent_matmul(_randn(40, 48).half(), _randn(24, 48, seed=1).half())],
}

if __name__ == "__main__":
    torch.save({name: program() for name, program in (EXACT | ROUNDED).items()}, sys.argv[1])
