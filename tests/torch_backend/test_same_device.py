"""Operations that mix tensors of several devices: refused as an H100 refuses them, in its words, and no others."""

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

MESSAGES: dict[str, str] = json.loads(Path(__file__).with_name("cuda_messages.json").read_text())["messages"]
"""What a GPU says to each expression; empty: it computes it."""

APART = "Expected all tensors to be on the same device"


def on_a_gpu(body: Callable[[], Any], *, data: bool = True, **spawn: Any) -> Any:
    """What ``body()`` returns in the one rank of a program."""
    found: list[Any] = []
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(lambda rank: found.append(body()), nprocs=1, **spawn)
    return found[0]


def said(call: Callable[[], Any]) -> str:
    """What a call raises, with its type; empty if it raises nothing."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_every_expression_gives_what_it_gives_on_a_gpu(data: bool) -> None:
    def body() -> dict[str, str]:
        a = torch.randn(4, 4, device="cuda")
        names = {
            "torch": torch, "F": F, "nn": nn, "a": a, "h": torch.randn(4, 4),
            "i": torch.zeros(4, dtype=torch.long, device="cuda"),
            "e": torch.randn(16, 16, device="cuda").to(torch.float8_e4m3fn),
        }  # fmt: skip
        return {text: said(lambda text=text: eval(text, names)) for text in MESSAGES}  # type: ignore[misc]

    assert on_a_gpu(body, data=data) == MESSAGES


def test_two_gpus_of_a_process_are_two_devices() -> None:
    def body() -> list[str]:
        a, b = (torch.ones(3, 3, device=f"cuda:{index}") for index in (0, 1))
        return [said(lambda: a + b), said(lambda: a @ b), said(lambda: a + b.to(a.device))]

    assert on_a_gpu(body) == [
        f"RuntimeError: {APART}, but found at least two devices, cuda:0 and cuda:1!",
        f"RuntimeError: {APART}, but got mat2 is on cuda:1, different from other tensors on cuda:0 (when checking argument in "
        "method wrapper_CUDA_mm)",
        "",
    ]


def test_what_cpp_makes_for_itself_is_where_its_operands_are() -> None:
    def body() -> list[tuple[str, bool]]:
        a, i = torch.rand(4, 4, device="cuda"), torch.ones(4, dtype=torch.long, device="cuda")
        words = nn.utils.rnn.pack_padded_sequence(a.view(2, 2, 4), torch.tensor([2, 1]))
        made = {
            "one_hot": F.one_hot(i, 5),
            "weighted": torch.cov(a, fweights=i),
            "mapped": torch.vmap(lambda each: F.one_hot(each, 5))(i[None]),
            "forward": torch.func.hessian(lambda each: each.sin().sum())(a).reshape(16, 16) @ a.reshape(16),
            "padded": nn.utils.rnn.pad_packed_sequence(nn.LSTM(4, 4, device="cuda")(words)[0])[0],
        }
        return [*((name, each.is_cuda) for name, each in made.items()), ("steps", words.batch_sizes.is_cuda)]

    expected = [(name, True) for name in ("one_hot", "weighted", "mapped", "forward", "padded")]
    assert on_a_gpu(body) == [*expected, ("steps", False)]


def test_what_a_program_makes_in_the_same_line_is_its_own() -> None:
    def body() -> list[str]:
        i = torch.ones(4, dtype=torch.long, device="cuda")
        F.one_hot(i, 5)  # its zeros and ones have no plan that these could take
        return [
            said(lambda: torch.zeros(4, 5, dtype=torch.long).scatter_(-1, i.unsqueeze(-1), 1)),
            said(lambda: torch.arange(4) + i),
        ]

    scattered, added = on_a_gpu(body)
    assert scattered == (
        f"RuntimeError: {APART}, but got index is on cuda:0, different from other tensors on cpu (when checking argument in "
        "method wrapper_CUDA_scatter__value)"
    )
    assert APART in added


class _TimesHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(factor)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.saved_tensors[0], None


def test_an_index_of_the_host_is_moved_by_indexing_alone() -> None:
    def body() -> tuple[list[float], list[str]]:
        x, index = torch.zeros(6, device="cuda"), torch.tensor([1, 2])
        mask = torch.tensor([False, False, False, False, False, True])
        x[[0]] = 1.0
        x[index] = 2.0
        x[mask] = 3.0
        x.__setitem__([3], 4.0)
        by_name = [lambda: x.index_fill_(0, index, 1.0), lambda: x.masked_fill_(mask, 1.0)]
        return x.tolist(), [said(call) for call in by_name]

    values, refused = on_a_gpu(body)
    assert values == [1.0, 2.0, 2.0, 4.0, 0.0, 3.0]
    assert all("on the same device" in each for each in refused)


def test_a_backward_pass_is_not_checked_and_teaches_nothing() -> None:
    def body() -> list[str]:
        x, factor = torch.rand(4, 4, device="cuda", requires_grad=True), torch.rand(4, 4)
        return [said(lambda: _TimesHost.apply(x, factor).sum().backward()), said(lambda: x.detach() * factor)]

    inside, outside = on_a_gpu(body)
    assert not inside
    assert APART in outside


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_in_ranks_of_every_kind(isolation: str) -> None:
    with kernbench.simulate("dgx_h100") as ctx, pytest.raises(Exception, match=APART) as found:
        ctx.multiprocessing.spawn(_mixes, nprocs=2, isolation=isolation)
    assert "cuda:1 and cpu!" in "".join(str(each) for each in found.value.errors.values())  # type: ignore[attr-defined]


def _mixes(rank: int) -> None:
    torch.cuda.set_device(rank)
    if rank == 1:
        torch.ones(2, 2, device="cuda") + torch.ones(2, 2)  # type: ignore[unused-ignore]


def test_under_autocast_and_in_compiled_functions() -> None:
    def body() -> list[str]:
        a, h = torch.rand(4, 4, device="cuda"), torch.rand(4, 4)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            cast = said(lambda: a @ h)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [cast, said(lambda: torch.compile(lambda x, y: x + y, backend="aot_eager")(a, h))]

    cast, compiled = on_a_gpu(body)
    assert "got mat2 is on cpu" in cast
    assert "found at least two devices, cuda:0 and cpu!" in compiled


def test_a_program_without_gpus_may_do_as_it_likes() -> None:
    def body() -> tuple[str, list[str]]:
        return said(lambda: torch.ones(4, 4) @ torch.ones(4, 4)), [str((torch.ones(2) + torch.ones(2)).device)]

    assert on_a_gpu(body) == ("", ["cpu"])
