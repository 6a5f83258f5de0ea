"""torchao's ``Float8Linear`` trains on simulated H100s, and computes what the package's own float8 layers compute.

Runs where the package is installed (``pip install --no-deps torchao``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import kernbench
from kernbench.programs.float8 import agree_on_scales, narrowed

pytest.importorskip("torchao", reason="torchao is not installed")


def losses(theirs: bool, gather: bool, compiled: bool, **options: Any) -> tuple[list[float], float]:
    """Of three steps over two ranks; and the simulation's seconds."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp

    found: list[float] = []

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 64, bias=False)).cuda()
        if theirs:
            convert_to_float8_training(model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=gather))
        else:
            narrowed(model, lambda name: True, gather=gather)
        if compiled:
            model.compile(fullgraph=True)
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
        x = torch.randn(32, 64, device="cuda", dtype=torch.bfloat16)
        for _ in range(3):
            loss = (model(x).float() - 1).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if gather:
                (precompute_float8_dynamic_scale_for_fsdp if theirs else agree_on_scales)(model)
            if rank == 0:
                found.append(loss.item())
        dist.destroy_process_group()

    with kernbench.simulate("dgx_h100", world_size=2, seed=1, **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        return found, ctx.engine.now


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("gather", [False, True], ids=["sixteen-bits-gathered", "eight-bits-gathered"])
def test_torchao_and_the_package_compute_the_same(
    gather: bool, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    theirs, seconds = losses(True, gather, compiled)
    assert len(theirs) == 3
    assert theirs[2] < theirs[0]
    assert losses(False, gather, compiled)[0] == theirs
    assert losses(True, gather, compiled, enable_data=False)[1] == seconds
