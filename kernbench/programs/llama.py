"""Pre-training of a Llama on synthetic tokens: FSDP2, tensor and pipeline parallelism, checkpointing, ``compile``, float8.

    torchrun --nproc-per-node 8 llama.py --model 8B --batch 2 --seq 8192 --checkpointing selective

Architecture: RMSNorm, rotary embeddings, grouped-query attention, SwiGLU (Touvron et al., arXiv:2302.13971; Grattafiori et al.,
arXiv:2407.21783). The parallel layout is that of torchtitan (arXiv:2410.06511): data parallelism outermost but for pipelines,
tensor parallelism innermost, with sequence parallelism.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from kernbench.programs.float8 import agree_on_scales, narrowed


@dataclass(frozen=True)
class Shape:
    """Sizes of a model.

    Attributes:
        layers, dim, heads, kv_heads, ffn, vocab: as in the papers.
    """

    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int = 128256


SHAPES = {
    "debug": Shape(4, 256, 8, 4, 768, 2048),
    "1B": Shape(16, 2048, 32, 8, 8192),
    "8B": Shape(32, 4096, 32, 8, 14336),
    "70B": Shape(80, 8192, 64, 8, 28672),
    "405B": Shape(126, 16384, 128, 8, 53248),
}
"""Llama 3 and 3.1: arXiv:2407.21783, table 3; 1B: Llama 3.2's model card."""


def rotary(seq: int, width: int, base: float = 500000.0) -> torch.Tensor:
    """``[seq, width / 2]`` complex64: a turn for each position and pair of numbers of a head."""
    turns = 1.0 / base ** (torch.arange(0, width, 2).float() / width)
    angles = torch.outer(torch.arange(seq).float(), turns)
    return torch.polar(torch.ones_like(angles), angles)


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """``x [batch, seq, heads, width]`` turned by its position."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, : x.shape[1], None]).flatten(3).type_as(x)


class ComposedRMSNorm(nn.RMSNorm):
    """RMSNorm as PyTorch composed it of other operators until 2.7: in 32 bits, each step a kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [..., dim]``."""
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True).add_(torch.finfo(torch.float32).eps))
        return wide.mul(scale).type_as(x).mul(self.weight)


Norm = Callable[[int], nn.Module]
NORMS: dict[str, Norm] = {"fused": nn.RMSNorm, "composed": ComposedRMSNorm}


class Attention(nn.Module):
    """Causal self-attention with fewer heads of keys and values than of queries."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.dim // shape.heads
        self.repeats = shape.heads // shape.kv_heads
        self.wq = nn.Linear(shape.dim, shape.heads * self.width, bias=False)
        self.wk = nn.Linear(shape.dim, shape.kv_heads * self.width, bias=False)
        self.wv = nn.Linear(shape.dim, shape.kv_heads * self.width, bias=False)
        self.wo = nn.Linear(shape.heads * self.width, shape.dim, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """``x [batch, seq, dim]``."""
        batch, seq, _ = x.shape
        query, key, value = (project(x).view(batch, seq, -1, self.width) for project in (self.wq, self.wk, self.wv))
        query, key = turned(query, turns), turned(key, turns)
        key, value = (each.repeat_interleave(self.repeats, dim=2) for each in (key, value))
        found = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        result: torch.Tensor = self.wo(found.transpose(1, 2).reshape(batch, seq, -1))
        return result


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.dim, shape.ffn, bias=False)
        self.w2 = nn.Linear(shape.ffn, shape.dim, bias=False)
        self.w3 = nn.Linear(shape.dim, shape.ffn, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, seq, dim]``."""
        result: torch.Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return result


class LlamaLayer(nn.Module):
    """One layer."""

    def __init__(self, shape: Shape, norm: Norm) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.feed_forward = FeedForward(shape)
        self.attention_norm = norm(shape.dim)
        self.ffn_norm = norm(shape.dim)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """``x [batch, seq, dim]``."""
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The layers ``first`` to ``last`` of a model; the first part has the embedding, the last one norm and output."""

    turns: torch.Tensor

    def __init__(self, shape: Shape, seq: int, first: int, last: int, norm: Norm = nn.RMSNorm) -> None:
        super().__init__()
        self.shape, self.seq = shape, seq
        self.embedding = nn.Embedding(shape.vocab, shape.dim) if first == 0 else None
        self.layers = nn.ModuleDict({str(number): LlamaLayer(shape, norm) for number in range(first, last)})
        ends = last == shape.layers
        self.norm = norm(shape.dim) if ends else None
        self.output = nn.Linear(shape.dim, shape.vocab, bias=False) if ends else None
        self.register_buffer("turns", rotary(seq, shape.dim // shape.heads), persistent=False)

    def initialise(self) -> None:
        """Fill parameters and buffers, which have been on ``meta``."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)
        self.turns = rotary(self.seq, self.shape.dim // self.shape.heads).to(self.turns.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, seq]`` tokens, or ``[batch, seq, dim]`` from the part before."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x, self.turns)
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x


# -- how it is spread ----------------------------------------------------------------------------------------------------


def split_tensors(model: Llama, mesh: DeviceMesh) -> None:
    """Tensor parallelism with sequence parallelism over ``mesh``."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    ends: dict[str, Any] = {}
    if model.embedding is not None:
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if model.norm is not None:
        ends["norm"] = SequenceParallel()
        ends["output"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, ends)
    for layer in model.layers.values():
        parallelize_module(layer, mesh, {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w3": ColwiseParallel(),
        })  # fmt: skip


_SAVED = frozenset(
    {
        "aten._scaled_dot_product_cudnn_attention.default",
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "_c10d_functional.reduce_scatter_tensor.default",
        "aten.max.default",
    }
)
"""What selective checkpointing keeps besides every second product: attention, what came from others, largest magnitudes."""

_PRODUCTS = frozenset({"aten.mm.default", "aten._scaled_mm.default"})


def _selective() -> Any:
    seen = {False: 0, True: 0}

    def policy(ctx: Any, func: object, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keep = str(func) in _SAVED
        if str(func) in _PRODUCTS:
            seen[ctx.is_recompute] += 1
            keep = seen[ctx.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def checkpointed(layer: nn.Module, how: str) -> None:
    """Recompute what ``layer`` computes in the backward pass: all of it (``full``), or what is cheap (``selective``)."""
    plain: Callable[..., Any] = layer.forward
    more: dict[str, Any] = {"context_fn": _selective} if how == "selective" else {}

    def forward(*args: object) -> Any:
        return checkpoint(plain, *args, use_reentrant=False, **more)

    layer.forward = forward


def prepared(model: Llama, args: argparse.Namespace, mesh: DeviceMesh) -> Llama:
    """``model``, which is on ``meta``, spread over ``mesh`` and on the GPU."""
    if args.float8 != "off":
        narrowed(model, lambda name: name != "output", gather=args.float8 == "gathered")
    if args.tp > 1:
        split_tensors(model, mesh["tp"])
    for layer in model.layers.values():
        if args.checkpointing != "none":
            checkpointed(layer, args.checkpointing)
        if args.compile:
            layer.compile(fullgraph=True)
    names = ("dp_replicate", "dp_shard") if args.dp_replicate > 1 else ("dp_shard",)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    how: dict[str, Any] = {"mesh": mesh[names], "mp_policy": policy, "reshard_after_forward": args.pp == 1}
    for layer in model.layers.values():
        fully_shard(layer, **how)
    fully_shard(model, **how)
    model.to_empty(device="cuda")
    with torch.no_grad():
        model.initialise()
    return model


# -- the program ---------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(SHAPES), default="8B")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--batch", type=int, default=1, help="sequences per data-parallel rank and step")
    parser.add_argument("--seq", type=int, default=8192, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--tp", type=int, default=1, help="degree of tensor parallelism")
    parser.add_argument("--pp", type=int, default=1, help="stages of the pipeline")
    parser.add_argument("--schedule", default="1F1B", help="of the pipeline: 1F1B or Interleaved1F1B")
    parser.add_argument("--microbatches", type=int, help="of the pipeline; default: one per sequence")
    parser.add_argument("--dp-replicate", type=int, default=1, help="replicas of the sharded model")
    parser.add_argument("--checkpointing", choices=("none", "selective", "full"), default="selective")
    parser.add_argument(
        "--norm", choices=sorted(NORMS), default="fused", help="RMSNorm in one kernel, or as before PyTorch 2.8"
    )
    parser.add_argument(
        "--attention", choices=("torch", "flash"), default="torch",
        help="the kernel that torch takes, or FlashAttention-2, which releases of 2024 take on every GPU",
    )  # fmt: skip
    parser.add_argument("--optimizer", choices=("fused", "foreach"), default="fused", help="kernels of AdamW")
    parser.add_argument("--compile", action="store_true", help="compile each layer")
    parser.add_argument(
        "--float8", choices=("off", "products", "gathered"), default="off",
        help="products of the layers in eight bits; weights are gathered so, too",
    )  # fmt: skip
    args = parser.parse_args()
    if args.float8 != "off" and args.tp > 1:
        parser.error("--float8 needs --tp 1: tensor parallelism of layers in eight bits is not part of this program")
    return args


def loss_of(logits: Any, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of ``logits [batch, seq, vocab]``."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def pipeline(args: argparse.Namespace, shape: Shape, mesh: DeviceMesh, device: torch.device) -> tuple[list[Llama], Any]:
    """This rank's parts of the model, and the schedule that runs them."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

    schedule: Any = get_schedule_class(args.schedule)
    group = mesh["pp"]
    each = 2 if issubclass(schedule, PipelineScheduleMulti) else 1
    count = group.size() * each
    bounds = [shape.layers * part // count for part in range(count + 1)]
    parts, stages = [], []
    for number in range(group.get_local_rank(), count, group.size()):
        with torch.device("meta"):
            part = Llama(shape, args.seq, bounds[number], bounds[number + 1], NORMS[args.norm])
        parts.append(prepared(part, args, mesh))
        stages.append(PipelineStage(parts[-1], number, count, device, group=group.get_group()))
    microbatches = args.microbatches or args.batch
    return parts, schedule(stages if each > 1 else stages[0], n_microbatches=microbatches, loss_fn=loss_of)


def main() -> None:
    """Train."""
    args = arguments()
    shape = SHAPES[args.model]
    if args.layers:
        shape = Shape(args.layers, *(getattr(shape, name) for name in ("dim", "heads", "kv_heads", "ffn", "vocab")))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.backends.cuda.enable_cudnn_sdp(args.attention == "torch")
    shards = dist.get_world_size() // (args.tp * args.pp * args.dp_replicate)
    sizes = {"pp": args.pp, "dp_replicate": args.dp_replicate, "dp_shard": shards, "tp": args.tp}
    kept = {name: size for name, size in sizes.items() if size > 1 or name == "dp_shard"}
    mesh = init_device_mesh("cuda", tuple(kept.values()), mesh_dim_names=tuple(kept))
    schedule = None
    if args.pp > 1:
        parts, schedule = pipeline(args, shape, mesh, device)
    else:
        with torch.device("meta"):
            whole = Llama(shape, args.seq, 0, shape.layers, NORMS[args.norm])
        parts = [prepared(whole, args, mesh)]
    parameters = [parameter for part in parts for parameter in part.parameters()]
    kernels = {args.optimizer: True}
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, **kernels)
    for step in range(args.steps):
        tokens = torch.randint(0, shape.vocab, (args.batch, args.seq + 1)).to(device)
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        loss = train(parts, schedule, mesh, args, inputs, labels)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        for part in parts:
            agree_on_scales(part)
        optimizer.zero_grad()
        if loss is not None and dist.get_rank() == 0:
            print(
                f"step {step}: loss {loss.item():.4f}, {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB at the peak"
            )
    dist.destroy_process_group()


def train(
    parts: list[Llama],
    schedule: Any,
    mesh: DeviceMesh,
    args: argparse.Namespace,
    inputs: torch.Tensor,
    labels: torch.Tensor,
) -> torch.Tensor | None:
    """Forward and backward of one step; the loss, where it is known."""
    with loss_parallel() if args.tp > 1 else contextlib.nullcontext():
        if schedule is None:
            loss = loss_of(parts[0](inputs), labels)
            loss.backward()
            return loss.detach()
        losses: list[torch.Tensor] = []
        first = [inputs] if parts[0].embedding is not None else []
        if parts[-1].output is None:
            schedule.step(*first)
            return None
        schedule.step(*first, target=labels, losses=losses)
        return torch.stack(losses).mean()


if __name__ == "__main__":
    main()
