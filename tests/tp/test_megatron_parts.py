"""Parts of Megatron-Core beside its GPT model, nothing patched, on simulated GPUs: experts, random states, checkpoints.

Opt-in: ``pip install --no-deps megatron-core`` (0.16.1 and 0.19.2 were used; it needs ``packaging`` and ``einops``).
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from tests.tp.ranks import SEED, fixed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it speaks of accelerator packages that are not installed
    megatron = pytest.importorskip(
        "megatron.core", reason="parity needs Megatron-Core: pip install --no-deps megatron-core", exc_type=ImportError
    )
    pytest.importorskip("einops", reason="Megatron-Core's layers need einops: pip install einops")
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, model_parallel_cuda_manual_seed
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

EXPERTS, HIDDEN, TOKENS = 4, 16, 8


def on_ranks(world: int, body: Callable[[], Any], **sizes: int) -> list[Any]:
    """``body()`` on each rank of groups of these sizes."""
    results: list[Any] = [None] * world

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(**sizes)
        model_parallel_cuda_manual_seed(SEED)
        results[rank] = body()

    with kernbench.simulate() as ctx, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ctx.multiprocessing.spawn(worker, nprocs=world, per_rank_modules=["megatron"])
    return results


def experts(dispatcher: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and input gradient of a layer of experts for this rank's tokens."""
    size, rank = parallel_state.get_expert_model_parallel_world_size(), parallel_state.get_expert_model_parallel_rank()
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=4, ffn_hidden_size=32, num_moe_experts=EXPERTS,
        moe_router_topk=2, moe_router_load_balancing_type="none", moe_token_dispatcher_type=dispatcher,
        expert_model_parallel_size=size, add_bias_linear=False, gradient_accumulation_fusion=False,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False).submodules.mlp
    layer = spec(config=config) if not hasattr(spec, "module") else build_module(spec, config=config)
    assert isinstance(layer, MoELayer)
    layer = layer.cuda()
    for name, parameter in layer.named_parameters():
        parts = name.split(".")
        if "local_experts" in parts:
            at = parts.index("local_experts") + 1
            parts[at] = str(int(parts[at]) + rank * EXPERTS // size)
        with torch.no_grad():
            parameter.copy_(fixed(*parameter.shape, seed=zlib.crc32(".".join(parts).encode()), scale=0.3))
    share = TOKENS // dist.get_world_size()
    mine = slice(share * dist.get_rank(), share * (dist.get_rank() + 1))
    x = fixed(TOKENS, 2, HIDDEN)[mine].cuda().requires_grad_()
    output = layer(x)[0]
    output.backward(fixed(TOKENS, 2, HIDDEN, seed=1)[mine].cuda())
    assert x.grad is not None
    assert output.device == x.grad.device == torch.device("cuda", dist.get_rank())
    return output.detach().cpu(), x.grad.cpu()


@pytest.mark.skipif(
    not hasattr(moe_utils, "te_general_gemm"), reason="this Megatron-Core's router needs Transformer Engine"
)
@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall"])
@pytest.mark.parametrize("size", [2, 4])
def test_experts_on_several_ranks_are_those_of_one(size: int, dispatcher: str) -> None:
    expected = on_ranks(1, lambda: experts(dispatcher))[0]
    found = on_ranks(size, lambda: experts(dispatcher), expert_model_parallel_size=size)
    for of_ranks, whole in zip(zip(*found, strict=True), expected, strict=True):
        torch.testing.assert_close(torch.cat(of_ranks), whole, rtol=1e-5, atol=1e-6)


def test_a_trackers_stream_is_apart_from_the_host_and_from_other_ranks() -> None:
    def body() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        host, device = torch.get_rng_state(), torch.cuda.get_rng_state()
        with get_cuda_rng_tracker().fork():
            own = torch.randn(4, device="cuda").cpu()
        assert torch.equal(torch.get_rng_state(), host)
        assert torch.equal(torch.cuda.get_rng_state(), device)
        return own, torch.randn(4), torch.randn(4, device="cuda").cpu()

    (first, *shared), (second, *also) = on_ranks(2, body, tensor_model_parallel_size=2)
    assert not torch.equal(first, second)
    assert all(torch.equal(mine, other) for mine, other in zip(shared, also, strict=True))


def test_a_checkpoint_is_loaded_by_other_sizes(tmp_path: Path) -> None:
    def model() -> Any:
        config = TransformerConfig(
            num_layers=2, hidden_size=HIDDEN, num_attention_heads=4, gradient_accumulation_fusion=False,
            pipeline_dtype=torch.float32,
            tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
            pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        )  # fmt: skip
        stage, stages = (
            parallel_state.get_pipeline_model_parallel_rank(),
            parallel_state.get_pipeline_model_parallel_world_size(),
        )
        return GPTModel(
            config, get_gpt_layer_local_spec(), 32, 8, pre_process=stage == 0, post_process=stage == stages - 1
        ).cuda()

    def save(directory: Path, module: Any) -> None:
        if dist.get_rank() == 0:
            directory.mkdir()
        dist.barrier()
        dist_checkpointing.save(module.sharded_state_dict(), str(directory))

    def reload() -> None:
        module = model()
        module.load_state_dict(dist_checkpointing.load(module.sharded_state_dict(), str(tmp_path / "first")))
        save(tmp_path / "second", module)

    on_ranks(2, lambda: save(tmp_path / "first", model()), tensor_model_parallel_size=2)
    on_ranks(4, reload, tensor_model_parallel_size=2, pipeline_model_parallel_size=2)

    def same() -> None:
        first, second = (dist_checkpointing.load_plain_tensors(str(tmp_path / name)) for name in ("first", "second"))
        assert first.keys() == second.keys()
        tensors = [name for name, value in first.items() if isinstance(value, torch.Tensor)]
        assert tensors
        assert all(torch.equal(first[name], second[name]) for name in tensors)

    on_ranks(1, same)
