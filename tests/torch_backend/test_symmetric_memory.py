"""Symmetric memory: every way into it says that it is not simulated, and what to use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import kernbench
from kernbench.torch_backend.symmetric_memory import without_kernel
from tests.torch_backend.conftest import Ranks

REFUSED = r"symmetric memory is not simulated yet \(.*\): use a collective instead \(all_gather_into_tensor"


def _group() -> Any:
    return dist.group.WORLD.group_name  # type: ignore[union-attr]


WAYS_IN: dict[str, Callable[[], Any]] = {
    "empty": lambda: symm_mem.empty(8, device="cuda"),
    "empty on the CPU": lambda: symm_mem.empty((2, 4), device="cpu"),
    "rendezvous": lambda: symm_mem.rendezvous(torch.empty(8, device="cuda"), _group()),
    "rendezvous of a group": lambda: symm_mem.rendezvous(torch.empty(8, device="cuda"), dist.group.WORLD),  # type: ignore
    "enable": lambda: symm_mem.enable_symm_mem_for_group(_group()),
    "workspace": lambda: symm_mem.get_symm_mem_workspace(_group(), min_size=64),
    "backend": lambda: symm_mem.set_backend("NCCL"),
    "allocator": lambda: symm_mem.get_mempool_allocator(torch.device("cuda")),
    "all_reduce": lambda: torch.ops.symm_mem.one_shot_all_reduce(torch.ones(8, device="cuda"), "sum", _group()),
    "all_reduce in place": lambda: torch.ops.symm_mem.two_shot_all_reduce_(torch.ones(8), "sum", _group()),
    "fused": lambda: torch.ops.symm_mem.fused_all_gather_matmul(
        torch.ones(4, 8, device="cuda"), [torch.ones(8, 4, device="cuda")], 0, _group()
    ),
}


@pytest.mark.parametrize("name", WAYS_IN)
@pytest.mark.filterwarnings("ignore:.*enable_symm_mem_for_group:FutureWarning")
def test_it_is_refused(ranks: Ranks, name: str) -> None:
    def body() -> None:
        with pytest.raises(kernbench.KernbenchError, match=REFUSED):
            WAYS_IN[name]()

    ranks(body, 2, backend="nccl")


def test_questions_are_answered(ranks: Ranks) -> None:
    def body() -> None:
        assert not symm_mem.is_symm_mem_enabled_for_group(_group())
        assert not symm_mem.is_symm_mem_tensor(torch.ones(2, device="cuda"))
        assert symm_mem.get_backend(torch.device("cuda")) is None

    ranks(body, 2, backend="nccl")


def test_nothing_is_left_behind(ranks: Ranks) -> None:
    """The operations have no kernel before, none of ours afterwards."""
    before = without_kernel()
    assert "symm_mem::one_shot_all_reduce" in before
    ranks(lambda: None, 2)
    assert without_kernel() == before
