"""Dynamo traces attention as torch's own, although the function is replaced on simulated GPUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import kernbench


def test_attention_is_compiled_without_a_graph_break():
    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True) * 2

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            torch.compile(attend, backend="aot_eager", fullgraph=True)(torch.ones(1, 2, 64, 32, device="cuda"))

        ctx.multiprocessing.spawn(worker, nprocs=1)
        assert any("attention" in op.name for op in ctx.engine.op_log.operations)
