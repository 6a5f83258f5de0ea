"""Which kernel of attention a program gets on a simulated GPU is what it asked torch for."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

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


FACTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("cuda_refusals.json").read_text())["attention"]
"""By attention that is restricted to one kernel: what a GPU says, and what it warns of; empty: the kernel takes it."""


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_a_kernel_that_the_program_insists_on_may_not_take_it(data: bool) -> None:
    kinds = {"FLASH": SDPBackend.FLASH_ATTENTION, "EFFICIENT": SDPBackend.EFFICIENT_ATTENTION,
             "CUDNN": SDPBackend.CUDNN_ATTENTION}  # fmt: skip

    def attend(kind: str, query: torch.Tensor, **how: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as seen, sdpa_kernel(kinds[kind]):
            warnings.simplefilter("always")
            try:
                assert F.scaled_dot_product_attention(query, query, query, **how).shape == query.shape
            except RuntimeError as error:
                return [f"RuntimeError: {error}", *(str(each.message) for each in seen)]
        return [""]

    found: dict[str, list[str]] = {}

    def body(rank: int) -> None:
        names = {
            "S": attend, "torch": torch, "h": torch.float16,
            "c": lambda *shape, dt=torch.float32: torch.ones(*shape, device="cuda").to(dt),
        }  # fmt: skip
        found.update({text: eval(text, names) for text in FACTS})

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    assert found == FACTS


def test_cudnns_kernel_takes_a_mask() -> None:
    made = torch.Generator().manual_seed(0)
    parts = [torch.randn(1, 2, 16, 64, generator=made).bfloat16() for _ in range(3)]
    mask = torch.rand(16, 16, generator=made) > 0.3

    def gradients(*parts: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        leaves = [each.clone().requires_grad_() for each in parts]
        out = F.scaled_dot_product_attention(*leaves, attn_mask=mask)
        out.float().square().sum().backward()
        return [out.detach().float().cpu(), *(each.grad.float().cpu() for each in leaves if each.grad is not None)]

    with sdpa_kernel(SDPBackend.MATH):
        wanted = gradients(*(each.double() for each in parts), mask=mask)
    found: list[torch.Tensor] = []

    def body(rank: int) -> None:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            found.extend(gradients(*(each.cuda() for each in parts), mask=mask.cuda()))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=3e-2, atol=3e-2)


FLASH, CUDNN, EFFICIENT = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
)


def kernels_of(system: str, call: Callable[[], Any], *, data: bool = False) -> list[str]:
    """Names of the attention kernels that a call launches on one GPU of a system, without what they have in common."""
    with kernbench.simulate(system, enable_data=data) as ctx:
        ctx.multiprocessing.spawn(lambda rank: call(), nprocs=1)
        names = [op.name for op in ctx.engine.op_log.operations if op.kind == "attention"]
    return [name.removeprefix("_scaled_dot_product_").split("_attention")[0] for name in names]


def attend(width: int = 64, dtype: torch.dtype = torch.bfloat16, groups: int = 4, keys: int = 32, **how: Any) -> Any:
    query = torch.randn(2, 4, 32, width, device="cuda", dtype=dtype)
    key, value = (torch.randn(2, groups, keys, width, device="cuda", dtype=dtype) for _ in range(2))
    return F.scaled_dot_product_attention(query, key, value, **how)


@pytest.mark.parametrize(("system", "kernel"), [("dgx_h100", "cudnn"), ("dgx_b200", "cudnn"), ("dgx_a100", "flash")])
def test_the_first_choice_is_cudnn_on_hopper_and_blackwell(system: str, kernel: str) -> None:
    assert kernels_of(system, attend) == [kernel]
    assert kernels_of(system, lambda: attend(is_causal=True)) == [kernel]
    assert kernels_of(system, lambda: attend(groups=2, enable_gqa=True)) == [kernel]


def test_what_cudnn_has_no_kernel_for_is_the_next_one_s() -> None:
    for how in ({"dtype": torch.float32}, {"width": 160}, {"width": 60}, {"keys": 1}):
        assert kernels_of("dgx_h100", lambda how=how: attend(**how)) == ["flash"], how


def test_programs_switch_it_off_and_order_kernels() -> None:
    def within(*kernels: SDPBackend, ordered: bool = False) -> Callable[[], None]:
        def call() -> None:
            with sdpa_kernel(list(kernels), set_priority=ordered):
                attend()

        return call

    def switched_off() -> None:
        torch.backends.cuda.enable_cudnn_sdp(False)
        attend()

    def exact() -> None:
        torch.use_deterministic_algorithms(True)
        try:
            attend()
        finally:
            torch.use_deterministic_algorithms(False)

    assert kernels_of("dgx_h100", within(FLASH)) == ["flash"]
    assert kernels_of("dgx_h100", within(EFFICIENT)) == ["efficient"]
    assert kernels_of("dgx_h100", within(FLASH, CUDNN)) == ["cudnn"]
    assert kernels_of("dgx_h100", within(FLASH, CUDNN, ordered=True)) == ["flash"]
    assert kernels_of("dgx_a100", within(FLASH, CUDNN)) == ["flash"]
    assert kernels_of("dgx_a100", within(CUDNN, FLASH, ordered=True)) == ["cudnn"]
    assert kernels_of("dgx_a100", within(CUDNN, SDPBackend.MATH)) == []  # in steps, which comes before it there
    assert kernels_of("dgx_h100", switched_off) == ["flash"]
    assert kernels_of("dgx_h100", exact) == ["flash"]
    assert kernels_of("dgx_h100", attend) == ["cudnn"]  # and nothing is left of it


def test_the_environment_switches_the_preference_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert kernels_of("dgx_h100", attend) == ["flash"]


def test_autocast_s_format_counts() -> None:
    def call() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            assert attend(dtype=torch.float32).dtype is torch.bfloat16

    assert kernels_of("dgx_h100", call) == ["cudnn"]


@pytest.mark.long  # seconds
def test_compiled_code_has_the_same_kernel() -> None:
    def call() -> None:
        given = [torch.randn(1, 2, 32, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        torch.compile(lambda *parts: F.scaled_dot_product_attention(*parts, is_causal=True))(*given).sum().backward()

    assert kernels_of("dgx_h100", call) == ["cudnn", "cudnn"]
    assert kernels_of("dgx_a100", call) == ["flash", "flash"]


@pytest.mark.parametrize("masked", [False, True])
def test_its_values_are_those_of_a_computation_in_steps(masked: bool) -> None:
    found: dict[str, list[torch.Tensor]] = {}

    def body(rank: int) -> None:
        for name, kernel in (("math", SDPBackend.MATH), ("cudnn", CUDNN)):
            torch.manual_seed(1)
            query = torch.randn(2, 4, 24, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            key, value = (
                torch.randn(2, 2, 32, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2)
            )
            mask = torch.rand(24, 32, device="cuda") > 0.3 if masked else None
            with sdpa_kernel(kernel):
                result = F.scaled_dot_product_attention(
                    query, key, value, attn_mask=mask, is_causal=not masked, enable_gqa=True
                )
            gradients = torch.autograd.grad(result.float().square().sum(), (query, key, value))
            found[name] = [each.detach().cpu() for each in (result, *gradients)]

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    torch.testing.assert_close(found["cudnn"], found["math"], atol=0.1, rtol=0.05)


def test_it_keeps_a_logsumexp_for_each_query_where_a_gradient_is_wanted() -> None:
    kept: dict[bool, int] = {}

    def body(rank: int) -> None:
        for wanted in (False, True):
            parts = [torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
            parts[0].requires_grad_(wanted)
            before = torch.cuda.memory_allocated()
            result = F.scaled_dot_product_attention(*parts)
            kept[wanted] = torch.cuda.memory_allocated() - before - 2 * result.numel()
            del result

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    assert kept[False] == 0
    assert kept[True] == 4 * 2 * 4 * 256 + 2 * 512  # and what dropout would be drawn from: two numbers


@pytest.mark.parametrize("backend", [None, SDPBackend.EFFICIENT_ATTENTION])
def test_what_no_fused_kernel_takes_is_spread_or_refused(backend: SDPBackend | None) -> None:
    def attend(*shapes: tuple[int, ...], **how: Any) -> Any:
        parts = [torch.ones(*shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
        with sdpa_kernel([backend, SDPBackend.MATH]) if backend else nullcontext():
            return F.scaled_dot_product_attention(*parts, **how)

    one, two = (1, 2, 4, 8), (2, 2, 4, 8)
    with kernbench.simulated_gpu("dgx_h100"):
        assert attend(one, two, two).shape == two
        for mask in (
            torch.ones(4, 4, device="cuda", dtype=each) for each in (torch.float16, torch.float64, torch.int32)
        ):
            with pytest.raises(
                RuntimeError, match="Expected attn_mask dtype to be bool or float or to match query dtype"
            ):
                attend(one, one, one, attn_mask=mask)
        with pytest.raises(RuntimeError, match="dropout probability has to be between 0 and 1"):
            attend(one, one, one, dropout_p=1.5)
