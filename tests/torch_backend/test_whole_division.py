"""Whole numbers divided by zero: a GPU raises nothing, a CPU does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernbench

SIGNED, UNSIGNED = (torch.int8, torch.int32), torch.uint8
ONES = 2**32 - 1  # of an int64 that is divided as a number of 32 bits
CALLS: list[tuple[Callable[[Any, Any], Any], list[int]]] = [
    (lambda a, b: a // b, [-1, -2, -1, -4]),
    (lambda a, b: torch.div(a, b, rounding_mode="floor"), [-1, -2, -1, -4]),
    (lambda a, b: torch.div(a, b, rounding_mode="trunc"), [-1, -1, -1, -3]),
    (lambda a, b: a % b, [-1, -1, -1, 1]),
    (torch.fmod, [-1, -1, -1, -1]),
    (lambda a, b: a.clone().floor_divide_(b), [-1, -2, -1, -4]),
    (lambda a, b: a.clone().remainder_(b), [-1, -1, -1, 1]),
    (lambda a, b: torch.remainder(a, b, out=torch.empty_like(a)), [-1, -1, -1, 1]),
    (lambda a, b: a[:3] // 0, [-1, -2, -1]),
    (lambda a, b: a[:3] % 0, [-1, -1, -1]),
    (lambda a, b: 7 % b[2:], [-1, 1]),
    (lambda a, b: 7 // b[2:], [-1, 3]),
    (lambda a, b: (a[:, None] // b[None, 2:])[:2], [[-1, 3], [-2, -4]]),
]


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_all_ones_on_a_gpu(data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        for dtype in SIGNED:
            a = torch.tensor([7, -7, 0, -7], dtype=dtype, device="cuda")
            b = torch.tensor([0, 0, 0, 2], dtype=dtype, device="cuda")
            assert [call(a, b).tolist() for call, _ in CALLS] == [expected for _, expected in CALLS]
        a, b = torch.tensor([7, -7, 1 << 40, -7], device="cuda"), torch.tensor([0, 0, 0, 2], device="cuda")
        assert [(a // b).tolist(), (a % b).tolist()] == [[ONES, -2, -1, -4], [ONES, -1, -1, 1]]
        assert [(a.int() // b).tolist(), a.clone().remainder_(b).tolist()] == [[ONES, -2, ONES, -4], [ONES, -1, -1, 1]]
        assert [(7 // b).tolist(), (a[:2] % 0).tolist()] == [[ONES, ONES, ONES, 3], [ONES, -1]]
        a, b = (torch.tensor(each, dtype=UNSIGNED, device="cuda") for each in ([7, 0, 7], [0, 0, 2]))
        assert [(a // b).tolist(), (a % b).tolist()] == [[255, 255, 3], [255, 255, 1]]
        assert (a / b).tolist()[::2] == [float("inf"), 3.5]


def test_a_cpu_raises() -> None:
    with kernbench.simulated_gpu("dgx_h100"), pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.tensor([7]) // torch.tensor([0])
