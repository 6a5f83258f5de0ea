"""Which kernel of attention a program gets on a simulated GPU is what it asked torch for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernbench


@pytest.mark.parametrize("data", [True, False])
def test_flash_switched_off_is_the_memory_efficient_kernel(data: bool) -> None:
    found: list[torch.Tensor] = []

    def body(rank: int) -> None:
        torch.manual_seed(0)
        given = [torch.randn(1, 2, 16, 8, device="cuda", requires_grad=True) for _ in range(3)]
        stock = F.scaled_dot_product_attention(*given, is_causal=True)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            efficient = F.scaled_dot_product_attention(*given, is_causal=True)
        efficient.sum().backward()
        assert given[0].grad is not None
        found.extend((stock.detach().cpu(), efficient.detach().cpu()))

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        names = [op.name for op in ctx.engine.op_log.operations if op.kind == "attention"]
    assert [name.removeprefix("_scaled_dot_product_") for name in names] == [
        "flash_attention_for_cpu.default", "efficient_attention.default", "efficient_attention_backward.default",
    ]  # fmt: skip
    if data:
        torch.testing.assert_close(*found)
