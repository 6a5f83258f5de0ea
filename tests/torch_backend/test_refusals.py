"""What CUDA refuses and a CPU does not: formats, ordinals, kernels that are not deterministic, values that a kernel asserts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import kernbench

FACTS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("cuda_refusals.json").read_text())
"""What a GPU says to expressions, by subject (``source`` says where that was read); empty: it computes them."""


def ones(*shape: int, dt: torch.dtype = torch.float32, g: bool = False) -> torch.Tensor:
    return torch.ones(*shape, device="cuda").to(dt).requires_grad_(g)


NAMES: dict[str, Any] = {
    "torch": torch, "F": F, "nn": nn, "c": ones, "i": lambda *values: torch.tensor(values, device="cuda"),
    "B": lambda x: x.sum().backward(), "h": torch.float16, "b": torch.bfloat16, "l": torch.int64,
}  # fmt: skip


def said(call: Callable[[], Any]) -> str:
    """The first line of what a call raises, with its type; empty if it raises nothing."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return ""


def answers(expressions: Any, *, data: bool = True, system: str = "dgx_h100", before: Any = None) -> dict[str, str]:
    """What one rank's GPU says to expressions."""
    found: dict[str, str] = {}

    def body(rank: int) -> None:
        if before is not None:
            before()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.update({text: said(lambda text=text: eval(text, NAMES)) for text in expressions})  # type: ignore[misc]

    with kernbench.simulate(system, enable_data=data) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    return found


BOTH = pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])


@BOTH
def test_formats_that_cuda_has_no_kernel_for(data: bool) -> None:
    facts = FACTS["types"]
    found = answers(facts, data=data)
    if (
        not data
    ):  # what a kernel finds out by its values, or by formats that a CPU has no kernel for either, is not looked at
        found = {text: what for text, what in found.items() if what or not facts[text]}
    assert found == {text: facts[text] for text in found}
    assert len(found) > len(facts) * 3 // 4


@BOTH
def test_kernels_that_are_not_deterministic(data: bool) -> None:
    facts = FACTS["deterministic"]
    found = answers(facts, data=data, before=lambda: torch.use_deterministic_algorithms(True))
    torch.use_deterministic_algorithms(False)
    assert {text: what.partition(" does not")[0] for text, what in found.items()} == facts


def test_a_program_may_be_warned_of_them_and_change_its_mind() -> None:
    seen: list[Any] = []

    def body(rank: int) -> None:
        whole, weights = torch.tensor([1, 1], device="cuda"), torch.ones(2, device="cuda")
        count = lambda: torch.bincount(whole, weights)  # noqa: E731
        pool = lambda: F.avg_pool3d(torch.ones(1, 1, 4, 4, 4, device="cuda", requires_grad=True), 2).sum().backward()  # noqa: E731
        for _ in range(3):  # the third time its plan is known
            count(), pool()
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="^_bincount_cuda does not have a deterministic implementation"):
            count()
        torch.use_deterministic_algorithms(True)
        for call in (count, pool):
            with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
                call()
        torch.use_deterministic_algorithms(False)
        seen.extend((count().tolist(), pool()))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    assert seen == [[0.0, 2.0], None]


def test_ordinals_that_there_are_not() -> None:
    facts = FACTS["ordinals"]
    assert answers(facts) == facts


def test_an_error_of_the_runtime_has_its_number_and_says_how_many_there_are() -> None:
    def body(rank: int) -> None:
        with pytest.raises(torch.AcceleratorError) as found:
            torch.ones(2, device="cuda:8")
        assert found.value.error_code == 101  # type: ignore[attr-defined]
        assert str(found.value).endswith("cuda:8: the simulated system has 8 devices")

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)


def test_what_a_kernel_asserts_is_no_index_error() -> None:
    found = answers(FACTS["asserts"])
    assert set(found.values()) == {"DeviceAssertError: CUDA error: device-side assert triggered"}
    assert set(FACTS["asserts"].values()) == {"AcceleratorError: CUDA error: device-side assert triggered"}
    assert answers(FACTS["by_value"]) == FACTS["by_value"]  # these look at the values, and raise at the call


def _looks_up(rank: int) -> None:
    torch.cuda.set_device(rank)
    F.embedding(torch.tensor([1, 9 if rank else 2], device="cuda"), torch.ones(3, 4, device="cuda"))


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_an_assert_says_what_hardware_does_not(isolation: str) -> None:
    with kernbench.simulate("dgx_h100") as ctx, pytest.raises(Exception, match="assert triggered") as found:
        ctx.multiprocessing.spawn(_looks_up, nprocs=2, isolation=isolation)
    errors = found.value.errors  # type: ignore[attr-defined]
    assert list(errors) == [1]
    assert isinstance(errors[1], torch.AcceleratorError)
    assert isinstance(errors[1], kernbench.KernbenchError)
    assert not isinstance(errors[1], IndexError)
    words = str(errors[1])
    assert "embedding of [3, 4] float32, [2] int64" in words
    assert "test_refusals.py:" in words
    assert ": 9, of 3" in words
    assert "On hardware this call returns" in words


def test_the_host_and_what_is_no_gpu_of_nvidias_have_rules_of_their_own() -> None:
    on_host = {"torch.arange(4).view(2,2)@torch.arange(4).view(2,2)": "", "F.one_hot(torch.tensor([1]),3)": ""}
    assert answers(on_host) == on_host
    assert answers(["F.embedding(torch.tensor([9]),torch.ones(3,3))"]).popitem()[1].startswith("IndexError")
    whole = "i(1,2)[None]@i(1,2)[:,None]"
    assert answers([whole], system="mi300x") == {whole: ""}


def test_one_hot_looks_at_nothing_where_it_is_told_how_many() -> None:
    def body(rank: int) -> None:
        chosen = torch.tensor([[1, 0], [2, 2]], device="cuda")
        expected = torch.eye(4, dtype=torch.int64)[chosen.cpu()]
        torch.cuda.set_sync_debug_mode("error")
        made = F.one_hot(chosen, 4)
        with pytest.raises(RuntimeError, match="synchronizing"):
            F.one_hot(chosen)
        torch.cuda.set_sync_debug_mode("default")
        assert made.cpu().equal(expected)
        assert F.one_hot(chosen).cpu().equal(expected[..., :3])
        assert F.one_hot(chosen[:0], 4).shape == (0, 2, 4)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)


def test_parameters_of_16_bits_in_a_norm_of_32() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))

    def gradients(norm: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        x = x.clone().requires_grad_()
        (norm(x) * torch.arange(4.0, device=x.device)).sum().backward()
        return [each.grad.double().cpu() for each in (x, *norm.parameters()) if each.grad is not None]

    expected = gradients(nn.BatchNorm1d(4), x)

    def body(rank: int) -> None:
        norm = nn.BatchNorm1d(4).cuda()
        for each in norm.parameters():
            each.data = each.data.half()
        found = gradients(norm, x.cuda())
        assert norm.weight.grad.dtype is torch.float16  # type: ignore[union-attr]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)


def test_torchs_sanitizer_is_refused() -> None:
    from torch.cuda import _gpu_trace, _sanitizer

    with kernbench.simulated_gpu("dgx_h100"):
        with pytest.raises(kernbench.KernbenchError, match="--races"):
            _sanitizer.enable_cuda_sanitizer()
        with pytest.raises(kernbench.KernbenchError, match="--races"):
            _gpu_trace.register_callback_for_event_record(print)
    assert not _sanitizer.cuda_sanitizer.enabled
