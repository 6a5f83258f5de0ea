"""Pairs of programs: each reads unwritten memory, and not when it is ``fixed``.

The lines of the look and of the allocation are marked ``# look`` and ``# made``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl

N = 64


@triton.jit
def _total(x, out, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + offsets)))


@triton.jit
def _count(words):
    tl.atomic_add(words, 1, sem="release", scope="sys")


def _fresh(fixed: bool, count: int = N) -> torch.Tensor:
    make = torch.zeros if fixed else torch.empty
    return make(count, device="cuda")  # made


def _shared() -> tuple[torch.Tensor, Any]:
    buffer = symm_mem.empty(N, device="cuda")  # made
    return buffer, symm_mem.rendezvous(buffer, dist.group.WORLD)  # type: ignore[arg-type]


def accumulated_in_place(fixed: bool) -> None:
    total = _fresh(fixed)
    total.add_(torch.ones(N, device="cuda"))
    total.sum().item()  # look


def accumulated_by_a_kernel(fixed: bool) -> None:
    out = _fresh(fixed, 1)
    _total[(4,)](torch.ones(N, device="cuda"), out, N // 4)  # by the kernel
    out.item()


def reduced_over_ranks(fixed: bool) -> None:
    x = _fresh(fixed)
    dist.all_reduce(x)
    x.cpu().tolist()  # look


def weights_that_nobody_loads(fixed: bool) -> None:
    weight = _fresh(fixed).view(8, 8)
    (torch.ones(2, 8, device="cuda") @ weight).relu().mean().item()  # look


def tail_of_a_buffer(fixed: bool) -> None:
    x = torch.empty(N, device="cuda")  # made
    x[: N // 2].fill_(1)
    x[: N // 2 if fixed else N].tolist()  # look


def branch_on_a_flag_of_the_host(fixed: bool) -> None:
    flag = torch.zeros(1) if fixed else torch.empty(1)  # made
    if flag:  # look
        flag.zero_()


def buffer_of_a_peer(fixed: bool) -> None:
    """The barrier is there, and what was to be shared is not."""
    buffer, handle = _shared()
    if fixed:
        buffer.fill_(1)
    handle.barrier()
    handle.get_buffer(1 - handle.rank, (N,), torch.float32).sum().item()  # look


def buffer_of_a_peer_in_a_kernel(fixed: bool) -> None:
    buffer, handle = _shared()
    out = torch.zeros(1, device="cuda")
    if fixed:
        buffer.fill_(1)
    handle.barrier()
    _total[(4,)](handle.get_buffer(1 - handle.rank, (N,), torch.float32), out, N // 4)


PAIRS = (
    accumulated_in_place,
    accumulated_by_a_kernel,
    reduced_over_ranks,
    weights_that_nobody_loads,
    tail_of_a_buffer,
    branch_on_a_flag_of_the_host,
    buffer_of_a_peer,
    buffer_of_a_peer_in_a_kernel,
)


def all_that_is_right() -> None:
    """Buffers that are written before they are looked at, piece by piece, by others, or where it does not matter."""
    x = torch.empty(N, device="cuda")
    x[: N // 2].fill_(1)
    x[N // 2 :].uniform_()
    torch.add(x, 1, out=torch.empty_like(x)).tolist()
    padded = torch.empty(N, device="cuda")
    padded[:10] = 3
    padded.mul_(2)  # the padding, too
    gathered = torch.empty(2 * N, device="cuda")
    dist.all_gather_into_tensor(gathered, padded)
    gathered[:10].tolist()
    theirs = torch.empty(N, device="cuda")
    (dist.send if dist.get_rank() else dist.recv)(theirs, 1 - dist.get_rank())
    out = torch.empty(1, device="cuda").zero_()
    _total[(4,)](x, out, N // 4)
    out.item()
    flags = symm_mem.empty(4, dtype=torch.int32, device="cuda")  # which are zeros, on this backend
    handle = symm_mem.rendezvous(flags, dist.group.WORLD)  # type: ignore[arg-type]
    _count[(1,)](handle.get_buffer(1 - handle.rank, (4,), torch.int32))
    handle.barrier()
    flags[:1].item()
    flags.fill_(3)
    flags.tolist()
    host = torch.empty(4)
    host.numpy()[:] = 1
    host.tolist()
    torch.nn.Linear(4, 4, device="cuda")(torch.ones(2, 4, device="cuda")).sum().item()
    torch.zeros_like(torch.empty(4, device="cuda")).tolist()
    torch.empty(4, device="cuda").copy_(torch.ones(4)).tolist()
