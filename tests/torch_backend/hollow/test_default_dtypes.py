"""What torch gives of the default dtype, it gives of the one that is set now: with data and without, whatever ran before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kernbench

SHAPE = (64, 4096)
GIVES: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(SHAPE, device="cuda"),
    "empty_strided": lambda: torch.empty_strided(SHAPE, (4096, 1), device="cuda"),
    "ones": lambda: torch.ones(SHAPE, device="cuda"),
    "ones that are known": lambda: torch.ones(3, device="cuda"),
    "randn": lambda: torch.randn(SHAPE, device="cuda"),
    "full": lambda: torch.full(SHAPE, 1.5, device="cuda"),
    "arange": lambda: torch.arange(0.0, 262144.0, device="cuda"),
    "whole numbers divided": lambda: torch.ones(SHAPE, device="cuda", dtype=torch.int64) / 2,
    "whole numbers and a float": lambda: torch.ones(SHAPE, device="cuda", dtype=torch.int64) * 1.5,
    "roots of whole numbers": lambda: torch.ones(SHAPE, device="cuda", dtype=torch.int64).sqrt(),
}


@pytest.mark.parametrize("data", [True, False], ids=["data", "no data"])
def test_results_have_the_default_dtype_of_their_time(data: bool) -> None:
    found: dict[tuple[str, torch.dtype], list[tuple[torch.dtype, int]]] = {}

    def body(rank: int) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            for name, give in GIVES.items():
                for _ in range(3):  # the first on the whole path, then by its plan
                    before = torch.cuda.memory_allocated()
                    given = give()
                    taken = torch.cuda.memory_allocated() - before
                    assert taken >= given.nbytes
                    found.setdefault((name, dtype), []).append((given.dtype, taken))
                    del given

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    assert len(found) == 3 * len(GIVES)
    for (name, dtype), seen in found.items():
        assert {each for each, _ in seen} == {dtype}, name
        assert len({taken for _, taken in seen}) == 1, name
