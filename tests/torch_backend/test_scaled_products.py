"""Products in eight bits that CUDA refuses, and those that it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernbench

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def said(call: Callable[[], Any], system: str, data: bool) -> str:
    """What a call on a GPU raises, as text; empty if it does not."""
    found: list[str] = []

    def worker(rank: int) -> None:
        try:
            call()
            found.append("")
        except (RuntimeError, ValueError) as error:
            found.append(str(error))

    with kernbench.simulate(system, enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    return found[0]


def product(
    a: tuple[int, int] = (32, 64), b: tuple[int, int] = (48, 64), kinds: Any = (E4M3, E4M3), *, rows: bool = False,
    device: str = "cuda", scaled: bool = True,
) -> Callable[[], Any]:  # fmt: skip
    def call() -> Any:
        left, right = (torch.ones(*shape, device=device).to(kind) for shape, kind in zip((a, b), kinds, strict=True))
        other = right.t().contiguous() if rows else right.t()
        if not scaled:
            return left @ other
        one = torch.ones((), device=device)
        return torch._scaled_mm(left, other, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return call


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize(
    ("call", "system", "words"),
    [
        (product(), "dgx_h100", ""),
        (product(kinds=(E5M2, E4M3)), "dgx_h100", ""),
        (product(), "dgx_a100", "compute capability >= 9.0 or 8.9"),
        (product(device="cpu"), "dgx_a100", ""),
        (product(rows=True), "dgx_h100", "row-major and column-major"),
        (product(kinds=(E5M2, E5M2)), "dgx_h100", "two Float8_e5m2"),
        (product((32, 24), (48, 24)), "dgx_h100", "divisible by 16 but got mat1 shape: (32x24)"),
        (product(b=(20, 64)), "dgx_h100", "mat2 shape (64x20)"),
        (product(scaled=False), "dgx_h100", "\"addmm_cuda\" not implemented for 'Float8_e4m3fn'"),
    ],
)  # fmt: skip
def test_what_cuda_refuses_is_refused(call: Callable[[], Any], system: str, words: str, data: bool) -> None:
    found = said(call, system, data)
    assert bool(found) == bool(words), found
    assert words in found
