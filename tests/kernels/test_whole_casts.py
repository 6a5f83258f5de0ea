"""Floats cast to whole numbers: a GPU saturates, and what it makes of NaN depends on the widths (PTX ISA, "cvt")."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import kernbench

INF, NAN = float("inf"), float("nan")
GIVEN = [INF, -INF, NAN, -1.5]
LEAST = {bits: -(1 << (bits - 1)) for bits in (32, 64)}
MOST = {bits: (1 << (bits - 1)) - 1 for bits in (32, 64)}
EXPECTED = {
    (torch.float32, torch.int32): [MOST[32], LEAST[32], 0, -1],
    (torch.float16, torch.int32): [MOST[32], LEAST[32], 0, -1],
    (torch.bfloat16, torch.int64): [MOST[64], LEAST[64], LEAST[64], -1],
    (torch.float32, torch.int64): [MOST[64], LEAST[64], LEAST[64], -1],
    (torch.float64, torch.int32): [MOST[32], LEAST[32], LEAST[32], -1],
    (torch.float64, torch.int64): [MOST[64], LEAST[64], LEAST[64], -1],
}
UNSIGNED = {
    (torch.float32, torch.uint32): [2**32 - 1, 0, 0, 0],
    (torch.float64, torch.uint32): [2**32 - 1, 0, 2**31, 0],
    (torch.float32, torch.uint64): [2**64 - 1, 0, 2**63, 0],
}


@triton.jit
def _cast(source, into, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(into + i, tl.load(source + i).to(into.dtype.element_ty))


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize(("types", "expected"), list({**EXPECTED, **UNSIGNED}.items()), ids=str)
def test_a_kernel_of_triton(
    types: tuple[torch.dtype, torch.dtype], expected: list[int], native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_NATIVE", native)
    with kernbench.simulated_gpu("dgx_h100"):
        source = torch.tensor(GIVEN, dtype=types[0], device="cuda")
        into = torch.empty(4, dtype=types[1], device="cuda")
        _cast[(1,)](source, into, 4)
        assert into.tolist() == expected


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize(("types", "expected"), list(EXPECTED.items()), ids=str)
def test_a_cast_of_torch(types: tuple[torch.dtype, torch.dtype], expected: list[int], data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        source = torch.tensor(GIVEN, dtype=types[0], device="cuda")
        assert source.to(types[1]).tolist() == expected
        assert source.to("cpu", types[1]).tolist() == expected  # where its source is
        into = torch.zeros(2, 4, dtype=types[1], device="cuda")
        into.copy_(source)
        assert into.tolist() == [expected, expected]
        assert source.cpu().to(types[1]).tolist()[0] == LEAST[32 if types[1] is torch.int32 else 64]  # as a CPU does


def test_a_finite_number_that_is_too_large() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        source = torch.tensor([3e9, -3e9, 2147483520.0], device="cuda")
        assert source.int().tolist() == [MOST[32], LEAST[32], 2147483520]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_a_number_is_copied_into_whole_numbers(device: str, data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        into = torch.zeros(2, dtype=torch.int64, device=device)
        assert [into.copy_(number).tolist() for number in (3, 4.5, True)] == [[3, 3], [4, 4], [1, 1]]
