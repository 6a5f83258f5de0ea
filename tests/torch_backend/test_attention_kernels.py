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


@pytest.mark.parametrize("data", [True, False])
def test_cudnn_alone_is_its_kernel_with_grouped_queries(data: bool) -> None:
    """Of sequences whose tokens are first, as Transformer Engine has them; the result is laid out as the queries are."""
    found: dict[str, list[torch.Tensor]] = {}
    strides: list[tuple[int, ...]] = []

    def body(rank: int) -> None:
        for name, kernel in (("math", SDPBackend.MATH), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            torch.manual_seed(0)
            given = [torch.randn(16, 2, heads, 8, device="cuda", dtype=torch.bfloat16) for heads in (4, 2, 2)]
            parts = [each.permute(1, 2, 0, 3).requires_grad_() for each in given]
            with sdpa_kernel(kernel):
                result = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
            gradients = torch.autograd.grad(result.float().square().sum(), parts)
            found[name] = [each.detach().cpu() for each in (result, *gradients)]
        strides.extend((result.stride(), parts[0].stride()))

    with kernbench.simulate("dgx_b200", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        names = [op.name for op in ctx.engine.op_log.operations if op.kind == "attention"]
    assert [name.removeprefix("_scaled_dot_product_") for name in names] == [
        "cudnn_attention.default", "cudnn_attention_backward.default",
    ]  # fmt: skip
    assert strides[0] == strides[1]
    if data:
        torch.testing.assert_close(found["cudnn"], found["math"], atol=0.1, rtol=0.05)
