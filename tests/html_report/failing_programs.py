"""Programs that fail, each in a way of which a report has a picture."""

from __future__ import annotations

import torch
import torch.distributed as dist


def shapes_differ(rank: int) -> None:
    """Rank 0 reduces a tensor more than the others."""
    dist.init_process_group("nccl")
    weights, loss = torch.ones(1024, device="cuda"), torch.ones(1, device="cuda")
    dist.broadcast(weights, src=0)
    if rank == 0:
        dist.all_reduce(loss)
    dist.all_reduce(weights)


def sizes_of_messages_differ(rank: int) -> None:
    """Rank 1 receives less than rank 0 sends."""
    dist.init_process_group("nccl")
    if rank == 0:
        dist.send(torch.ones(8, device="cuda"), 1)
    else:
        dist.recv(torch.ones(4, device="cuda"), 0)


def streams_race(rank: int) -> None:
    """The second product is used on a stream that has waited for the first."""
    x = torch.ones(64, 64, device="cuda")
    first = x @ x
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    second = first @ x
    with torch.cuda.stream(side):
        first.add(1)
        second.add(1)


def reads_what_nobody_wrote(rank: int) -> None:
    """A look at memory as it was allocated."""
    torch.empty(16, device="cuda").sum().item()


def needs_too_much(rank: int) -> None:
    """Layers of 4 MiB, until there is no room. The allocator takes 20 MiB at a time, so of 30 MiB five fit."""
    layers = torch.nn.Sequential()
    for _ in range(100):
        layers.append(torch.nn.Linear(1024, 1024, bias=False, device="cuda"))
