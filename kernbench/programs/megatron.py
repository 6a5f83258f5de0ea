"""Training as Megatron-Core does it, on synthetic tokens, in plain ``torch.distributed``: TP, SP, PP, CP, EP, DP and ZeRO-1.

    torchrun --nproc-per-node 8 megatron.py --model llama3-70b --layers 12 --tp 4 --global-batch 16

Tensor parallelism splits the sequence between products; pipelines are 1F1B, with ``--parts`` interleaved; context parallelism
is by all-to-all between heads and tokens; tokens reach their experts by all-to-all; gradients are summed in 32 bits by the
products that make them, reduced and scattered over replicas; each replica has its part of the optimizer. Tensor parallelism's
communication runs beside the product next to it in backward, and beside nothing in forward (``tp_comm_overlap`` off).
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

import torch
import torch.distributed as dist

from kernbench.programs.megatron_model import SHAPES, DecoderShape, Layout, MegatronPart
from kernbench.programs.megatron_optimizer import MegatronOptimizer
from kernbench.programs.megatron_parallel import Mesh
from kernbench.programs.megatron_pipeline import Neighbours, interleaved, one_after_the_other, one_forward_one_backward


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(SHAPES), default="llama3-8b")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--seq", type=int, default=4096, help="tokens of a sequence")
    parser.add_argument("--micro-batch", type=int, default=1, help="sequences of one forward pass")
    parser.add_argument("--global-batch", type=int, default=8, help="sequences of a step")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--tp", type=int, default=1, help="degree of tensor parallelism")
    parser.add_argument("--cp", type=int, default=1, help="degree of context parallelism")
    parser.add_argument("--ep", type=int, default=1, help="degree of expert parallelism")
    parser.add_argument("--pp", type=int, default=1, help="stages of the pipeline")
    parser.add_argument("--parts", type=int, default=1, help="parts of the model per stage; more than one: interleaved")
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--overlap-grad-reduce", action="store_true", help="with the last backward pass")
    parser.add_argument("--overlap-param-gather", action="store_true", help="with the next forward pass")
    parser.add_argument("--bucket", type=int, default=40_000_000, help="elements of a bucket, with overlap")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of weights and activations"
    )
    parser.add_argument(
        "--gradients", choices=("float32", "bfloat16"), default="float32", help="in which they are summed and reduced"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def tokens_of(args: argparse.Namespace, shape: DecoderShape, step: int, sequence: int) -> torch.Tensor:
    """One of a step's sequences and the token after it, ``[seq + 1]``: the same for every layout."""
    drawn = torch.Generator().manual_seed((args.seed * 1000 + step) * 100_000 + sequence)
    return torch.randint(0, shape.vocab, (args.seq + 1,), generator=drawn)


def parts_of(args: argparse.Namespace, shape: DecoderShape, layout: Layout) -> list[MegatronPart]:
    """This rank's parts of the model."""
    count = args.pp * args.parts
    bounds = [shape.layers * number // count for number in range(count + 1)]
    own = range(layout.mesh.place("pp"), count, args.pp)
    return [MegatronPart(shape, layout, bounds[number], bounds[number + 1]) for number in own]


def train(args: argparse.Namespace) -> None:
    """Train."""
    shape = SHAPES[args.model]
    if args.layers:
        shape = replace(shape, layers=args.layers)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = Mesh(args.tp, args.cp, args.ep, args.pp)
    dtype = getattr(torch, args.dtype)
    layout = Layout(mesh, args.seq, args.recompute, args.seed, dtype)
    parts = parts_of(args, shape, layout)
    optimizer = MegatronOptimizer(
        parts, mesh, gradients=getattr(torch, args.gradients),
        overlap_reduce=args.overlap_grad_reduce, overlap_gather=args.overlap_param_gather,
        bucket=max(args.bucket, 1_000_000 * mesh.size("dp_cp")), learning_rate=1e-2 if dtype is torch.float32 else 3e-4,
    )  # fmt: skip
    microbatches = args.global_batch // (args.micro_batch * mesh.data_parallel)
    if microbatches * args.micro_batch * mesh.data_parallel != args.global_batch:
        raise SystemExit(
            f"--global-batch {args.global_batch} is no multiple of {args.micro_batch} x {mesh.data_parallel}"
        )
    positions = torch.tensor(layout.positions)
    split = args.seq // (args.cp * args.tp)
    near = None
    if args.pp > 1:
        near = Neighbours(mesh, (split, args.micro_batch, shape.hidden), dtype, overlap=args.parts > 1)

    for step in range(args.steps):
        begin = mesh.place("dp") * microbatches * args.micro_batch

        def forward(
            part: int, microbatch: int, came: torch.Tensor | None, begin: int = begin, step: int = step
        ) -> torch.Tensor:
            of = parts[part]
            labels = None
            if of.embedding is not None or of.output is not None:
                first = begin + microbatch * args.micro_batch
                rows = [tokens_of(args, shape, step, first + each) for each in range(args.micro_batch)]
                batch = torch.stack(rows, 1)
                if of.output is not None:
                    labels = batch[1:][positions].to(device)
                if of.embedding is not None:
                    came = batch[:-1][positions].to(device)
            assert came is not None
            return of(came, labels)

        optimizer.begin()
        optimizer.last_microbatch = False

        def last_one() -> None:
            optimizer.last_microbatch = True

        how = forward, microbatches, 1 / microbatches, last_one
        if near is None:
            losses = one_after_the_other(*how)
        elif args.parts == 1:
            losses = one_forward_one_backward(*how, near)
        else:
            losses = interleaved(*how, near, args.parts)
        norm = optimizer.step()
        if losses:
            loss = torch.stack(losses).mean()
            if mesh.size("dp_cp") > 1:
                dist.all_reduce(loss, dist.ReduceOp.AVG, group=mesh.group("dp_cp"))
            if mesh.place("dp_cp") == mesh.place("tp") == 0:
                print(
                    f"step {step}: loss {loss.item():.6f}, gradient {norm:.6f}, {torch.cuda.max_memory_allocated()} bytes"
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    train(arguments())
