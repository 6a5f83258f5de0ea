"""``context_parallel``: ring attention equals attention over the whole sequence, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method

import kernbench
from tests.torch_backend.conftest import Ranks


@pytest.mark.parametrize("rotate", ["allgather", "alltoall"])
@pytest.mark.parametrize(("backend", "device", "world"), [("gloo", "cpu", 2), ("nccl", "cuda", 4)])
def test_it_is_attention_over_the_whole_sequence(
    ranks: Ranks, rotate: str, backend: str, device: str, world: int
) -> None:
    whole = [torch.randn(2, 4, 32, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]

    def body() -> None:
        if device == "cuda":
            torch.cuda.set_device(dist.get_rank())
        mesh = init_device_mesh(device, (world,), mesh_dim_names=("cp",))
        set_rotate_method(rotate)
        *inputs, upstream = [tensor.clone().to(device) for tensor in whole]
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        expected = F.scaled_dot_product_attention(*leaves, is_causal=True)
        expected.backward(upstream)
        with context_parallel(mesh, buffers=[*inputs, upstream], buffer_seq_dims=[2] * 4):
            for tensor in inputs:
                tensor.requires_grad_()
            out = F.scaled_dot_product_attention(*inputs, is_causal=True)
            assert out.shape[2] == 32 // world
            out.backward(upstream)
            for tensor in inputs:
                tensor.requires_grad_(False)
            grads = [tensor.grad for tensor in inputs]
            unsharded = context_parallel_unshard(mesh, [out, *grads], [2] * 4)  # type: ignore[list-item]
        for found, wanted in zip(unsharded, [expected, *(leaf.grad for leaf in leaves)], strict=True):
            assert wanted is not None
            torch.testing.assert_close(found.cpu(), wanted.cpu(), rtol=1e-5, atol=1e-5)
        with (
            context_parallel(mesh, buffers=inputs, buffer_seq_dims=[2] * 3),
            pytest.raises(kernbench.KernbenchError, match="neither attn_mask"),
        ):
            F.scaled_dot_product_attention(*inputs, dropout_p=0.5, is_causal=True)
        assert torch.equal(F.scaled_dot_product_attention(*inputs, is_causal=True), expected)

    ranks(body, world, backend=backend)
    set_rotate_method("allgather")
