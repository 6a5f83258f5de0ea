"""Attention takes what a GPU's kernel takes: no scores of the square of the length, with data and without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kernbench

LENGTH = 160


def _mask(kind: str) -> torch.Tensor:
    if kind == "bool":
        return torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return torch.linspace(-1, 1, LENGTH * LENGTH).view(1, 1, LENGTH, LENGTH)


def attend(case: dict[str, Any], device: str) -> list[Any]:
    """The sum of an attention's output, its gradients, and (GPU) by how much memory grew meanwhile."""
    options = dict(case)
    mask, width, heads = options.pop("mask", None), options.pop("width", 32), options.pop("heads", 4)
    generator = torch.Generator().manual_seed(1)
    parts = [
        torch.randn(2, count, LENGTH, size, generator=generator).to(device).requires_grad_()
        for count, size in ((4, 32), (heads, 32), (heads, width))
    ]
    if mask is not None:
        options["attn_mask"] = _mask(mask).to(device).requires_grad_(mask == "learned")
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    out = F.scaled_dot_product_attention(*parts, **options)
    grown = torch.cuda.max_memory_allocated() - before if device == "cuda" else 0
    out.square().sum().backward()
    inputs = [*parts, *([options["attn_mask"]] if mask == "learned" else [])]
    return [out.detach().cpu(), *(each.grad.cpu() for each in inputs), grown]


def run(case: dict[str, Any], *, data: bool) -> tuple[list[Any], list[tuple[Any, ...]]]:
    found: list[Any] = []
    with kernbench.simulate("dgx_h100", enable_data=data, log_limit=None) as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            found.extend(attend(case, "cuda"))

        ctx.multiprocessing.spawn(worker, nprocs=1)
        return found, [(op.name, op.nbytes, op.start, op.end) for op in ctx.engine.op_log.operations]


CASES: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "all": {},
    "grouped queries": {"is_causal": True, "enable_gqa": True, "heads": 2},
    "mask": {"mask": "bool"},
    "learned bias": {"mask": "learned"},
    "wide values": {"width": 64},
    "narrow values, causal, scaled": {"width": 16, "is_causal": True, "scale": 0.3},
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_cpu_and_memory_is_that_of_a_kernel(name):
    found, log = run(CASES[name], data=True)
    for mine, stock in zip(found[:-1], attend(CASES[name], "cpu")[:-1], strict=True):
        assert torch.allclose(mine, stock, rtol=1e-4, atol=1e-5)
    assert any("scaled_dot_product" in op[0] and "attention" in op[0] for op in log)
    assert not any(op[0].startswith(("bmm", "_safe_softmax")) for op in log)
    if "mask" not in CASES[name]:
        assert found[-1] < 2 * 4 * LENGTH * LENGTH * 4, "the scores alone would take as much"


@pytest.mark.parametrize("name", [*CASES, "dropout"])
def test_operations_memory_and_times_are_the_same_without_data(name):
    case = CASES.get(name, {"dropout_p": 0.25, "is_causal": True})
    real, hollow = run(case, data=True), run(case, data=False)
    assert real[1] == hollow[1]
    assert real[0][-1] == hollow[0][-1]


def test_dropout_keeps_what_it_should_and_its_gradient_knows_what():
    """With values of one, each output is the sum of what is kept, of which the gradient of the values is the share."""
    found: list[torch.Tensor] = []
    with kernbench.simulate("dgx_h100") as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            torch.manual_seed(0)
            q, k = (torch.zeros(1, 2, LENGTH, 8, device="cuda") for _ in range(2))
            v = torch.ones(1, 2, LENGTH, 8, device="cuda", requires_grad=True)
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
            out.sum().backward()
            found.extend((out.detach().cpu(), v.grad.cpu()))

        ctx.multiprocessing.spawn(worker, nprocs=1)
    out, grad = found
    assert out.mean().item() == pytest.approx(1.0, rel=0.02)
    assert out.std() > 0.01
    assert grad.sum().item() == pytest.approx(out.sum().item(), rel=1e-4)


def test_the_math_backend_is_in_steps_if_the_program_says_so():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            x = torch.ones(2, 4, LENGTH, 32, device="cuda")
            with sdpa_kernel([SDPBackend.MATH]):
                F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)

        ctx.multiprocessing.spawn(worker, nprocs=1)
        assert any(op.name.startswith("bmm") for op in ctx.engine.op_log.operations)
