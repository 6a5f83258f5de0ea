"""What a CUDA graph's capture permits, and what it does not: what a GPU says to each call, and no other."""

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
from kernbench.version import numbers

_FACTS: dict[str, str] = json.loads(Path(__file__).with_name("cuda_refusals.json").read_text())["captured"]
FACTS = {call: said for call, said in _FACTS.items() if "scaled_dot_product" not in call}
"""By call, and what is called before: what a GPU says; empty: it captures it. Attention in steps is one kernel here."""


def names() -> dict[str, Any]:
    """What calls speak of, on the GPU."""
    parameter = nn.Parameter(torch.ones(3, device="cuda"))
    parameter.grad = torch.ones(3, device="cuda")
    return {
        "torch": torch, "F": F, "nn": nn, "X": torch.ones(1, 1, 4, 4, device="cuda"),
        "W": torch.ones(1, 1, 3, 3, device="cuda"), "Q": torch.eye(3, device="cuda"),
        "I3": torch.tensor([0, 1, 2], device="cuda"), "R": torch.cuda.get_rng_state(),
        "PW": parameter, "GEN": torch.Generator("cuda"),
    }  # fmt: skip


def captured(call: Callable[[], Any], before: Callable[[], Any] | None = None) -> tuple[str, str]:
    """What a call in a capture raises, and what the end of the capture does: first lines, with the types; empty: nothing."""
    if before is not None:
        before()
    torch.cuda.synchronize()
    said = ["", ""]
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            try:
                call()
            except Exception as error:
                said[0] = f"{type(error).__name__} {str(error).partition(chr(10))[0]}"
                raise
        graph.replay()
    except Exception as error:
        said[1] = f"{type(error).__name__} {str(error).partition(chr(10))[0]}"
    torch.cuda.synchronize()  # which is possible again
    return said[0], said[1]


def on_a_gpu(body: Callable[[], Any], *, data: bool = True, **spawn: Any) -> Any:
    """What ``body()`` returns in the one rank of a program that has called no library yet."""
    found: list[Any] = []

    def worker(rank: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(body())

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1, **spawn)
    return found[0]


ASKS_FOR_VALUES = ("isfinite", "tolist")
"""Calls that without data are answered by assumption, or refused."""


FILLED = ("lambda:Q.__setitem__(I3,1.)",)
"""What torch fills since 2.15, where it copied a number of the host before."""


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize("call", FACTS)
def test_a_capture_permits_what_it_does_on_a_gpu(call: str, data: bool) -> None:
    if not data and any(name in call for name in ASKS_FOR_VALUES):
        pytest.skip("a value is looked at")
    said = on_a_gpu(lambda: captured(*_both(call)), data=data)
    wanted = "" if call in FILLED and numbers(torch.__version__) >= (2, 15) else FACTS[call]
    if not wanted:
        assert said == ("", "")
    elif said[0]:
        assert said[0].startswith(wanted.partition(". ")[0].rstrip("."))
        lost = "AcceleratorError CUDA error: operation failed due to a previous error during capture"
        by_cuda = "CUDA error" in wanted or "cusolver" in wanted or "cuFFT" in wanted
        assert said[1] == (lost if by_cuda else said[0])  # what torch says of itself leaves the capture whole
    else:
        assert said[1].startswith(wanted.replace(": ", " ", 1))


def _both(call: str) -> Any:
    return eval(f"({call},)", names())


def test_a_gradient_is_on_the_stream_of_what_it_is_the_gradient_of() -> None:
    def body() -> list[str]:
        x = torch.ones(4, device="cuda", requires_grad=True)
        outside = (x * 2).sum()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            beside = (x * 3).sum()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            grad = torch.autograd.grad(beside, x)[0]
        graph.replay()
        return [
            captured(lambda: torch.autograd.grad(outside, x, retain_graph=True))[0],
            captured(lambda: torch.autograd.grad((x * 2).sum(), x))[0],
            str(grad.tolist()),
        ]

    refused, inside, grad = on_a_gpu(body)
    assert refused.startswith("AcceleratorError CUDA error: operation would make the legacy stream depend")
    assert (inside, grad) == ("", "[3.0, 3.0, 3.0, 3.0]")


def test_libraries_are_called_before_a_capture() -> None:
    def body() -> list[tuple[str, str]]:
        of = names()
        calls: list[Callable[[], Any]] = [
            lambda: of["Q"] @ of["Q"], lambda: F.conv2d(of["X"], of["W"]), lambda: torch.linalg.qr(of["Q"]),
            lambda: torch.fft.fft(of["Q"]),
        ]  # fmt: skip
        return [captured(call, before) for call in calls for before in (None, call, None)]

    found = on_a_gpu(body)
    assert [bool(said) for said, _ in found] == [True, False, False] * 4
    assert "call it once before" in found[0][0]


def test_a_copy_to_the_host_that_does_not_wait_is_replayed() -> None:
    def body() -> list[list[float]]:
        x = torch.ones(3, device="cuda")
        kept = torch.zeros(3).pin_memory()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = (x * 2).to("cpu", non_blocking=True)
            kept.copy_(x * 3, non_blocking=True)
        x.fill_(5)
        graph.replay()
        torch.cuda.synchronize()
        return [made.tolist(), kept.tolist()]

    assert on_a_gpu(body) == [[10.0] * 3, [15.0] * 3]


def test_seeds_and_generators_of_a_capture() -> None:
    def body() -> list[str]:
        torch.cuda.manual_seed(3)
        return [
            captured(lambda: torch.cuda.manual_seed(3))[0],
            captured(lambda: torch.cuda.manual_seed(4))[0],
            captured(lambda: torch.Generator("cuda"))[0],
        ]

    same, other, new = on_a_gpu(body)
    assert same == ""
    assert other.startswith(
        "RuntimeError CUDAGeneratorImpl::set_current_seed can be called during stream capture only if"
    )
    assert new.startswith("RuntimeError Cannot construct a new CUDAGeneratorImpl during CUDA graph capture.")


def test_the_factor_of_clipped_gradients_stays_on_the_gpu() -> None:
    """C++ groups tensors by the device that it takes them to be on."""

    def body() -> tuple[str, float, list[Any]]:
        parameters = [nn.Parameter(torch.full((2,), value, device="cuda")) for value in (3.0, 4.0)]
        for each in parameters:
            each.grad = each.detach().clone()
        torch.cuda.set_sync_debug_mode("error")
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        torch.cuda.set_sync_debug_mode("default")
        groups = torch.utils._foreach_utils._group_tensors_by_device_and_dtype(
            [[*parameters, torch.ones(1)], [torch.ones(())] * 3], True
        )
        return str(norm.device), float(norm), [(str(device), places) for (device, _), (_, places) in groups.items()]

    where, norm, groups = on_a_gpu(body)
    assert where == "cuda:0"
    assert norm == pytest.approx(50**0.5)
    assert groups == [("cuda:0", [0, 1]), ("cpu", [2])]


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_a_list_of_numbers_is_copied_from_the_host_by_every_name(data: bool) -> None:
    def body() -> list[str]:
        x = torch.ones(3, device="cuda")
        calls: list[Callable[[], Any]] = [
            lambda: x.new([1.0]), lambda: x.new(data=(1.0,)), lambda: x.new_tensor([1.0]), lambda: x.new(3),
            lambda: x.new(x.shape),
        ]  # fmt: skip
        return [captured(call)[0].partition(" unless")[0] for call in calls]

    copied = "RuntimeError Cannot copy between CPU and CUDA tensors during CUDA graph capture"
    assert on_a_gpu(body, data=data) == [copied] * 3 + [""] * 2
