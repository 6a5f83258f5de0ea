"""Megatron-Core's GPTModel, schedules, DDP and optimizers, nothing patched, on simulated ranks: one rank's loss and gradients.

Opt-in: ``pip install --no-deps megatron-core`` (0.16.1 was used; it needs ``packaging`` and ``einops``).
"""

from __future__ import annotations

import warnings
import zlib
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import kernbench
from tests.tp.ranks import SEED, fixed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it speaks of accelerator packages that are not installed
    megatron = pytest.importorskip(
        "megatron.core", reason="parity needs Megatron-Core: pip install --no-deps megatron-core", exc_type=ImportError
    )
    pytest.importorskip("einops", reason="Megatron-Core's GPTModel needs einops: pip install einops")
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

LAYERS, HIDDEN, HEADS, VOCABULARY, LENGTH, BATCH = 2, 32, 8, 64, 16, 4

Whole = dict[str, torch.Tensor]


class Norm(nn.LayerNorm):
    """A layer norm for Megatron's specs: its own without extensions refuses sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def whole_name(name: str, stage: int, stages: int) -> str:
    """The name of a stage's parameter in a model that has all layers."""
    name = name.replace("output_layer.weight", "embedding.word_embeddings.weight")  # tied
    parts = name.split(".")
    if "layers" in parts:
        at = parts.index("layers") + 1
        parts[at] = str(int(parts[at]) + stage * LAYERS // stages)
    return ".".join(parts)


def make_model(device: str, tensor: int, stages: int, sequence_parallel: bool) -> Any:
    """A GPT of Megatron's local spec, whose weights depend on their names only."""
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, hidden_dropout=0.0, attention_dropout=0.0,
        use_cpu_initialization=device == "cpu", gradient_accumulation_fusion=False,
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=stages, sequence_parallel=sequence_parallel,
        pipeline_dtype=torch.float32,
    )  # fmt: skip
    layer = get_gpt_layer_local_spec()
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    stage = parallel_state.get_pipeline_model_parallel_rank()
    model = GPTModel(
        config, TransformerBlockSubmodules([layer] * (LAYERS // stages), Norm), VOCABULARY, LENGTH,
        pre_process=stage == 0, post_process=stage == stages - 1, share_embeddings_and_output_weights=True,
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        dim = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
        shape = [size * tensor if at == dim else size for at, size in enumerate(parameter.shape)]
        value = fixed(*shape, seed=zlib.crc32(whole_name(name, stage, stages).encode()), scale=0.1)
        value += "norm" in name and "weight" in name
        if dim is not None:
            value = value.chunk(tensor, dim)[parallel_state.get_tensor_model_parallel_rank()]
        parameter.data.copy_(value)
    return model.to(device)


def step(
    backend: str, tensor: int, stages: int, sequence_parallel: bool, distributed_optimizer: bool
) -> dict[str, Any]:
    """One training step on four sequences in this rank's place: the loss, the gradients and the new weights, in parts."""
    device = "cuda" if backend == "nccl" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank())
    parallel_state.initialize_model_parallel(tensor, stages)
    model_parallel_cuda_manual_seed(SEED)
    module = make_model(device, tensor, stages, sequence_parallel)
    model = DistributedDataParallel(
        module.config,
        DistributedDataParallelConfig(use_distributed_optimizer=distributed_optimizer, overlap_grad_reduce=True),
        module,
    )
    module.config.finalize_model_grads_func, module.config.no_sync_func = finalize_model_grads, model.no_sync
    optimizer = get_megatron_optimizer(
        OptimizerConfig(lr=0.05, adam_eps=0.01, weight_decay=0.1, use_distributed_optimizer=distributed_optimizer),
        [model],
    )
    model.zero_grad_buffer()
    optimizer.zero_grad()

    share = BATCH // parallel_state.get_data_parallel_world_size()
    first = share * parallel_state.get_data_parallel_rank()
    tokens = torch.arange(BATCH * LENGTH).mul(7).remainder(VOCABULARY).view(BATCH, 1, LENGTH).to(device)
    positions = torch.arange(LENGTH, device=device)[None]
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1)

    def forward_step(data: Any, model: Any) -> Any:
        mine = next(data)
        output = model(mine, positions, mask, labels=mine.roll(-1, 1))

        def loss_of(losses: torch.Tensor) -> Any:
            return losses.float().mean(), {"loss": losses.detach().mean()}

        return output, loss_of

    losses = get_forward_backward_func()(
        forward_step_func=forward_step, data_iterator=iter(tokens[first : first + share]), model=[model],
        num_microbatches=share, seq_length=LENGTH, micro_batch_size=1, forward_only=False,
    )  # fmt: skip
    stage = parallel_state.get_pipeline_model_parallel_rank()
    parameters = [(whole_name(name, stage, stages), parameter) for name, parameter in module.named_parameters()]
    gradients = {name: parameter.main_grad.detach().cpu().clone() for name, parameter in parameters}
    assert optimizer.step()[0]
    return {
        "devices": {parameter.device.type for parameter in module.parameters()},
        "losses": [float(each["loss"]) for each in losses],
        "gradients": gradients,
        "weights": {name: parameter.detach().cpu().clone() for name, parameter in parameters},
        "dims": {
            name: parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
            for name, parameter in parameters
        },
    }


def train(
    world: int, tensor: int = 1, stages: int = 1, sequence_parallel: bool = False, distributed_optimizer: bool = False,
    backend: str = "nccl",
) -> tuple[float, Whole, Whole]:  # fmt: skip
    """:func:`step` on ``world`` ranks: the mean loss, whole gradients (none of a distributed optimizer), whole weights."""
    results: list[Any] = [None] * world

    def body(rank: int) -> None:
        dist.init_process_group(backend)
        results[rank] = step(backend, tensor, stages, sequence_parallel, distributed_optimizer)

    with kernbench.simulate() as ctx, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ctx.multiprocessing.spawn(body, nprocs=world, per_rank_modules=["megatron"])
    assert all(
        result["devices"] == {"cuda"} for result in results
    )  # where its DDP has its buffers, whatever the backend

    copies = world // (tensor * stages)  # ranks go over the tensor group first, then data, then stages
    losses = [loss for result in results[::tensor] for loss in result["losses"]]

    def whole(what: str) -> Whole:
        found: Whole = {}
        for stage in range(stages):
            for copy in range(copies):
                first = (stage * copies + copy) * tensor
                members = results[first : first + tensor]
                for name, dim in members[0]["dims"].items():
                    parts = [member[what][name] for member in members]
                    if dim is None:
                        assert all(torch.equal(part, parts[0]) for part in parts), name
                    value = parts[0] if dim is None else torch.cat(parts, dim)
                    assert torch.equal(found.setdefault(name, value), value), name
        return found

    return sum(losses) / len(losses), {} if distributed_optimizer else whole("gradients"), whole("weights")


@cache
def on_one_rank() -> tuple[float, Whole, Whole]:
    return train(1, backend="gloo")


@pytest.mark.parametrize(
    ("world", "how"),
    [
        (1, {}),
        (2, {"tensor": 2}),
        (4, {"tensor": 4}),
        (8, {"tensor": 8}),
        (2, {"tensor": 2, "backend": "gloo"}),
        (8, {"tensor": 8, "backend": "gloo"}),
        (2, {"tensor": 2, "sequence_parallel": True}),
        (4, {"tensor": 4, "sequence_parallel": True}),
        (8, {"tensor": 8, "sequence_parallel": True}),
        (2, {"stages": 2}),
        (2, {"stages": 2, "backend": "gloo"}),
        (4, {"tensor": 2, "stages": 2, "sequence_parallel": True}),
        (4, {}),
        (4, {"distributed_optimizer": True}),
        (4, {"distributed_optimizer": True, "backend": "gloo"}),
        (8, {"tensor": 2, "stages": 2, "sequence_parallel": True, "distributed_optimizer": True}),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value),
)
def test_a_training_step_is_one_ranks(world: int, how: dict[str, Any]) -> None:
    loss, gradients, weights = train(world, **how)
    expected_loss, expected_gradients, expected_weights = on_one_rank()
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-5, atol=1e-6, msg=name)
    assert weights.keys() == expected_weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected_weights[name], rtol=1e-5, atol=1e-6, msg=name)
