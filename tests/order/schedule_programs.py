"""Programs for schedules: some are right under all of them, some only under the default one.

A program is given its rank and prints lines into a list.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from kernbench.benches.order_cost import PROGRAMS, CostPlan
from tests.order.kernel_programs import meet, reduce_by_kernel


def trains(what: str, rank: int, printed: list[str]) -> None:
    """A step of one of the programs of the bench."""
    plan = CostPlan(width=32, layers=2, world=2)
    torch.manual_seed(0)
    model = PROGRAMS[what](plan)
    batch = torch.full((4, plan.width), 1.0 + rank, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    printed.append(str(loss.item()))


def reduces(rank: int, printed: list[str], exit: bool = True) -> None:
    """A one-shot all-reduce by a kernel; without its ``exit`` barrier, a peer may read what is written after it."""
    buffer, handle = meet()
    out = torch.empty_like(buffer)
    reduce_by_kernel(handle, out, exit=exit)
    buffer.fill_(2)
    printed.append(str(out.unique().tolist()))


def hands_over(rank: int, printed: list[str], ordered: bool = True) -> None:
    """Rank 0 writes data and a flag, rank 1 looks at the flag and reads the data: of two things, the wrong one first."""
    words = symm_mem.empty(2, dtype=torch.int64, device="cuda")
    handle = symm_mem.rendezvous(words, dist.group.WORLD)  # type: ignore[arg-type]
    words.zero_()
    handle.barrier()
    theirs = handle.get_buffer(0, (2,), torch.int64)
    if rank == 0:
        for place in (1, 0) if ordered else (0, 1):
            words[place].fill_(7)
    elif theirs[0].item():
        printed.append(str(theirs[1].item()))


def leads(rank: int, printed: list[str], atomic: bool = True) -> None:
    """The first to come leads: if no other comes between the look and the claim."""
    store = dist.TCPStore("localhost", 29501, is_master=rank == 0)
    if atomic:
        leader = int(store.compare_set("leader", "", str(rank)))
    elif store.check(["leader"]):
        leader = int(store.get("leader"))
    else:
        leader = rank
        store.set("leader", str(rank))
    dist.broadcast(torch.full((4,), 7.0, device="cuda"), src=leader)


def gathers(rank: int, printed: list[str], named: bool = True) -> None:
    """Rank 0 adds what it gets from others, from anybody who is there first unless they are ``named``: by gloo, as NCCL has
    no such receive."""
    group = None if named else dist.new_group(backend="gloo")
    x = torch.full((1,), 0.1 * rank, device="cuda" if named else "cpu")
    if rank:
        dist.send(x, 0, group)
        return
    total = torch.ones(1, device="cuda")
    for peer in range(1, dist.get_world_size()):
        dist.recv(x, peer if named else None, group)
        total = total * 2 + x.cuda()
    dist.broadcast(total, 0, group=dist.new_group([0], use_local_synchronization=True))
    printed.append(str(total.item()))
