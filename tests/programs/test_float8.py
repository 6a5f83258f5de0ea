"""Linear layers in eight bits: values against double precision, what FSDP2 gathers, and how ranks agree on scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import kernbench
from kernbench.programs.float8 import Float8Linear, agree_on_scales, narrowed
from kernbench.trace import summary

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def in_eight_bits(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` as eight bits hold it with one scale; float64."""
    scale = (torch.finfo(dtype).max / x.double().abs().max()).float()
    return (x.float() * scale).to(dtype).double() / scale.double()


def on_gpus(body: Callable[[], Any], ranks: int = 1, **options: Any) -> tuple[list[Any], Any]:
    """What ``body()`` gives in each rank of a DGX H100, and the summary."""
    results: list[Any] = [None] * ranks

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        results[rank] = body()
        dist.destroy_process_group()

    with kernbench.simulate("dgx_h100", world_size=ranks, seed=1, **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks)
        found = summary(ctx)
    return results, found


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_products_and_gradients(compiled: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))

    def body() -> Any:
        torch.manual_seed(3)
        layer = nn.Sequential(nn.Linear(64, 48, bias=False, device="cuda", dtype=torch.bfloat16))
        narrowed(layer, lambda name: name == "0", gather=False)
        assert type(layer[0]) is Float8Linear
        x = torch.randn(2, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        out = (torch.compile(layer, fullgraph=True) if compiled else layer)(x)
        gradient = torch.randn_like(out)
        out.backward(gradient)
        return [each.detach().cpu() for each in (x, layer[0].weight, gradient, out, x.grad, layer[0].weight.grad)]

    (((x, weight, gradient, *found),), _) = on_gpus(body)
    narrow, bits, given = in_eight_bits(x, E4M3), in_eight_bits(weight, E4M3), in_eight_bits(gradient, E5M2)
    expected = (narrow @ bits.t(), given @ bits, given.flatten(0, 1).t() @ narrow.flatten(0, 1))
    for have, want in zip(found, expected, strict=True):
        torch.testing.assert_close(have.double(), want, rtol=1 / 128, atol=1e-3)
    assert not torch.equal(found[0], (x.float() @ weight.float().t()).bfloat16())


def trained(agree: bool, gather: bool) -> list[float]:
    """The losses of three steps of a model that is sharded over all ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 64, bias=False)).cuda()
    narrowed(model, lambda name: True, gather=gather)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    x = torch.randn(32, 64, device="cuda", dtype=torch.bfloat16)
    losses = []
    for _ in range(3):
        loss = (model(x).float() - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if agree:
            agree_on_scales(model)
        losses.append(loss.item())
    return losses


def test_weights_are_gathered_in_eight_bits_with_scales_that_ranks_agree_on() -> None:
    wide, of_wide = on_gpus(lambda: trained(agree=False, gather=False), 2)
    narrow, of_narrow = on_gpus(lambda: trained(agree=False, gather=True), 2)
    agreed, of_agreed = on_gpus(lambda: trained(agree=True, gather=True), 2)

    assert agreed == narrow  # one all-reduce for all says what one for each says
    assert narrow[0] == narrow[1]
    assert narrow[0] == pytest.approx(wide[0], rel=0.02)
    assert narrow[0][2] < 0.9 * narrow[0][0]

    def count(found: Any, kind: str) -> tuple[int, int]:
        return next(((each.calls, each.moved) for each in found.collectives if each.name == kind), (0, 0))

    gathers, gathered = count(of_narrow, "all_gather")
    assert gathered * 2 == count(of_wide, "all_gather")[1]
    assert count(of_wide, "all_reduce")[0] == 0
    steps, weights = 3, 2
    assert count(of_narrow, "all_reduce")[0] == weights * gathers
    assert count(of_agreed, "all_reduce")[0] == weights * gathers // steps + steps


def test_large_products_take_about_half_of_those_in_sixteen_bits() -> None:
    def took(narrow: bool, name: str) -> list[float]:
        def worker(rank: int) -> None:
            layer = nn.Sequential(nn.Linear(8192, 8192, bias=False, device="cuda", dtype=torch.bfloat16))
            if narrow:
                narrowed(layer, lambda name: True, gather=False)
            x = torch.empty(16384, 8192, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            layer(x).sum().backward()
            torch.cuda.synchronize()

        with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=1)
            products = [each for each in ctx.engine.op_log.operations if each.name == name]
        return [each.duration for each in products]

    narrow, wide = took(True, "_scaled_mm.default"), took(False, "mm.default")
    assert len(narrow) == len(wide) == 3
    assert 0.45 < sum(narrow) / sum(wide) < 0.7
    forward, *backward = narrow  # backward keeps its sums in 32 bits, which Hopper's tensor cores do not by themselves
    assert all(1.1 < seconds / forward < 1.2 for seconds in backward)
