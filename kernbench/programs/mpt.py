"""Pre-training of MPT on synthetic tokens with FSDP1, as MosaicML's llm-foundry and Composer did it in 2023.

    torchrun --nproc-per-node 8 mpt.py --model 1b --microbatch 14 --accumulate 1 --seq 2048

What is as there (github.com/mosaicml/llm-foundry and /composer of October 2023): a decoder with learned positions, biases and
layer norms in 16 bits; one FSDP unit per block and one for the rest, all-gathers limited, the next unit fetched after the
backward pass of this one; a batch goes to the device as a whole, every microbatch is reduced; two metrics of the logits for
every microbatch; gradients clipped by their norm; an AdamW that goes through the parameters one by one and reads each one's
count of steps from the device.
"""

from __future__ import annotations

import argparse
import math
import os
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.attention import SDPBackend, sdpa_kernel


class MptShape(NamedTuple):
    """Sizes of a model: ``heads`` divide ``dim``, the feed-forward network is four times as wide."""

    layers: int
    dim: int
    heads: int
    vocab: int = 50368


SHAPES = {
    "debug": MptShape(2, 128, 2, 512),
    "125m": MptShape(12, 768, 12),
    "350m": MptShape(24, 1024, 16),
    "760m": MptShape(24, 1536, 12),
    "1b": MptShape(24, 2048, 16),
    "3b": MptShape(32, 2560, 20),
    "7b": MptShape(32, 4096, 32),
    "13b": MptShape(40, 5120, 40),
    "30b": MptShape(48, 7168, 56),
    "70b": MptShape(80, 8192, 64),
}
"""llm-foundry, scripts/train/yamls/pretrain/mpt-*.yaml."""


class LowPrecisionNorm(nn.LayerNorm):
    """A layer norm in autocast's 16 bits, where autocast would compute it in 32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [..., dim]``."""
        x, weight, bias = (each.to(torch.bfloat16) for each in (x, self.weight, self.bias))
        with torch.autocast("cuda", enabled=False):
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


KERNELS = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
"""Of attention. The kernels in Triton that MPT had are no part of PyTorch; the memory-efficient ones are about as fast."""


class MptAttention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: MptShape, how: str) -> None:
        super().__init__()
        self.heads, self.kernel = shape.heads, KERNELS[how]
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim)
        self.out = nn.Linear(shape.dim, shape.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, seq, dim]``."""
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1)
        )
        with sdpa_kernel(self.kernel):
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.out(found.transpose(1, 2).flatten(2))
        return result


class MptBlock(nn.Module):
    """One layer."""

    def __init__(self, shape: MptShape, attention: str) -> None:
        super().__init__()
        self.attention_norm = LowPrecisionNorm(shape.dim)
        self.attention = MptAttention(shape, attention)
        self.ffn_norm = LowPrecisionNorm(shape.dim)
        self.up = nn.Linear(shape.dim, 4 * shape.dim)
        self.down = nn.Linear(4 * shape.dim, shape.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, seq, dim]``."""
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.down(F.gelu(self.up(self.ffn_norm(x))))
        return result


class Mpt(nn.Module):
    """The model: tokens to logits, with the embedding's weights used twice."""

    def __init__(self, shape: MptShape, seq: int, attention: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.dim)
        self.positions = nn.Embedding(seq, shape.dim)
        self.blocks = nn.ModuleList(MptBlock(shape, attention) for _ in range(shape.layers))
        self.norm = LowPrecisionNorm(shape.dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``tokens [batch, seq]``."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))[None]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class DecoupledAdamW(torch.optim.Optimizer):
    """AdamW whose decay does not depend on the learning rate, a parameter after the other (Composer's, from its formula)."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            changed = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in changed:
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), device=parameter.device)
                    state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["step"] += 1
            for parameter in changed:
                self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2), grad = self.state[parameter], group["betas"], parameter.grad
        assert grad is not None
        count = float(state["step"].item())  # waits for the device
        state["first"].mul_(beta1).add_(grad, alpha=1 - beta1)
        state["second"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        below = (state["second"].sqrt() / math.sqrt(1 - beta2**count)).add_(group["eps"])
        parameter.addcdiv_(state["first"], below, value=-group["lr"] / (1 - beta1**count))


def sharded(model: Mpt, args: argparse.Namespace, device: torch.device) -> FullyShardedDataParallel:
    """``model``, which is on ``meta``, on the GPUs, each of which has its part of every unit."""
    reduced = torch.float32 if args.reduce == "float32" else torch.bfloat16
    found = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({MptBlock}),
        mixed_precision=MixedPrecision(torch.bfloat16, reduced, torch.bfloat16),
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,
        limit_all_gathers=True,
        use_orig_params=args.use_orig_params,
        device_id=device,
        param_init_fn=_materialise,
    )
    if args.checkpointing == "full":
        wrap = partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
        apply_activation_checkpointing(
            found, checkpoint_wrapper_fn=wrap, check_fn=lambda module: isinstance(module, MptBlock)
        )
    return found


def _materialise(module: nn.Module) -> None:
    module.to_empty(device="cuda", recurse=False)
    with torch.no_grad():
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(parameter, std=0.02)


# -- cross entropy in one kernel each way, of logits in 16 bits (there: flash-attention's xentropy) -----------------------


@triton.jit
def _losses(logits, labels, losses, sums, vocab, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The loss of one token, and the logarithm of the sum of its exponentials."""
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    label = tl.load(labels + row)
    most, total, own = tl.full((), float("-inf"), tl.float32), 0.0, 0.0
    for first in range(0, vocab, BLOCK):
        here = offsets + first
        x = tl.load(logits + row * vocab + here, mask=here < vocab, other=float("-inf")).to(tl.float32)
        new = tl.maximum(most, tl.max(x))
        total = total * tl.exp(most - new) + tl.sum(tl.exp(x - new))
        most = new
        own += tl.sum(tl.where(here == label, x, 0.0))
    found = most + tl.log(total)
    tl.store(sums + row, found)
    tl.store(losses + row, found - own)


@triton.jit
def _gradients(logits, labels, sums, scale, gradients, vocab, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient of the loss of one token by a block of its logits."""
    row = tl.program_id(0).to(tl.int64)
    here = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * vocab + here, mask=here < vocab, other=float("-inf")).to(tl.float32)
    share = tl.exp(x - tl.load(sums + row)) - tl.where(here == tl.load(labels + row), 1.0, 0.0)
    tl.store(gradients + row * vocab + here, share * tl.load(scale), mask=here < vocab)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows, vocab = logits.shape
        losses, sums = (torch.empty(rows, device=logits.device) for _ in range(2))
        _losses[(rows,)](logits, labels, losses, sums, vocab, BLOCK=4096)
        ctx.save_for_backward(logits, labels, sums)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        logits, labels, sums = ctx.saved_tensors
        rows, vocab = logits.shape
        found = torch.empty_like(logits)
        block = 4096
        _gradients[(rows, triton.cdiv(vocab, block))](logits, labels, sums, gradient / rows, found, vocab, BLOCK=block)
        return found, None


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of ``logits [batch, seq, vocab]``."""
    loss: torch.Tensor = _CrossEntropy.apply(logits.flatten(0, 1), labels.flatten())
    return loss


# -- the program ---------------------------------------------------------------------------------------------------------


def train(model: nn.Module, args: argparse.Namespace, batch: torch.Tensor, totals: list[torch.Tensor]) -> torch.Tensor:
    """Forward and backward passes of all microbatches; the mean loss. Metrics are added to ``totals``."""
    losses = []
    for microbatch in batch.split(args.microbatch):
        inputs, labels = microbatch[:, :-1], microbatch[:, 1:]
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(inputs)
            loss = loss_of(logits, labels)
        share = microbatch.shape[0] / batch.shape[0]
        (loss * share).backward()
        losses.append(loss.detach() * share)
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):  # in which cross entropy is computed in 32 bits
            for total in totals:
                total += F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return torch.stack(losses).sum()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="125m")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--microbatch", type=int, default=1, help="sequences per GPU in a forward pass")
    parser.add_argument("--accumulate", type=int, default=1, help="microbatches per step")
    parser.add_argument("--seq", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--checkpointing", choices=("none", "full"), default="none")
    parser.add_argument("--reduce", choices=("float32", "bfloat16"), default="float32", help="format of reductions; "
                        "Composer's mixed precision DEFAULT and PURE")  # fmt: skip
    parser.add_argument("--attention", choices=sorted(KERNELS), default="efficient", help="kernels of attention")
    parser.add_argument("--use-orig-params", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def main() -> None:
    """Train."""
    args = arguments()
    shape = SHAPES[args.model]
    if args.layers:
        shape = shape._replace(layers=args.layers)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    with torch.device("meta"):
        whole = Mpt(shape, args.seq, args.attention)
    model = sharded(whole, args, device)
    optimizer = DecoupledAdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), eps=1e-8)
    for step in range(args.steps):
        batch = torch.randint(0, shape.vocab, (args.microbatch * args.accumulate, args.seq + 1)).to(device)
        totals = [torch.zeros((), device=device) for _ in range(2)]
        loss = train(model, args, batch, totals)
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(
                f"step {step}: loss {loss.item():.4f}, {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB at the peak"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
