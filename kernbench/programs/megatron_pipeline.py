"""Pipelines: one forward, one backward; and that with several parts of the model per rank (arXiv:2104.04473).

As Megatron-Core's ``pipeline_parallel.schedules``: without interleaving each exchange with a neighbour is one batch of
messages, after which the host waits for the device; with it they are begun as soon as there is something to send, and waited
for where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from kernbench.programs.megatron_parallel import Mesh

Tensor = torch.Tensor
Forward = Callable[[int, int, "Tensor | None"], Tensor]
"""A part's number on this rank, a microbatch and what came from the part before, to a result or a loss."""


class Pending:
    """A tensor that is on its way."""

    def __init__(self, tensor: Tensor | None, works: Sequence[Any]) -> None:
        self._tensor, self._works = tensor, works

    def wait(self) -> Tensor | None:
        """The tensor."""
        for work in self._works:
            work.wait()
        return self._tensor


class Neighbours:
    """Messages between stages: results go on, gradients back."""

    def __init__(self, mesh: Mesh, shape: tuple[int, ...], dtype: torch.dtype, overlap: bool) -> None:
        self.mesh, self.shape, self.dtype, self.overlap = mesh, shape, dtype, overlap
        self.before, self.after = mesh.peer("pp", -1), mesh.peer("pp", 1)

    def exchange(
        self,
        onward: Tensor | None = None,
        back: Tensor | None = None,
        *,
        from_before: bool = False,
        from_after: bool = False,
    ) -> tuple[Pending, Pending]:
        """Send what there is, and receive a result from before and a gradient from after, where wanted."""
        group = self.mesh.group("pp")
        ops, got = [], []
        if onward is not None:
            ops.append(dist.P2POp(dist.isend, onward, self.after, group))
        for wanted, peer in ((from_before, self.before), (from_after, self.after)):
            got.append(torch.empty(self.shape, device="cuda", dtype=self.dtype) if wanted else None)
            if got[-1] is not None:
                ops.append(dist.P2POp(dist.irecv, got[-1], peer, group))
        if back is not None:
            ops.append(dist.P2POp(dist.isend, back, self.before, group))
        works = dist.batch_isend_irecv(ops) if ops else []
        if ops and not self.overlap:
            for work in works:
                work.wait()
            torch.cuda.synchronize()
            works = []
        return Pending(got[0], works), Pending(got[1], works)


def _backward(result: Tensor, given: Tensor | None, came: Tensor | None) -> Tensor | None:
    """The gradient of what came, where anything did."""
    torch.autograd.backward(result, given)
    return None if came is None else came.grad


def _wanting(came: Tensor | None) -> Tensor | None:
    return None if came is None else came.requires_grad_()


def one_after_the_other(
    forward: Forward, microbatches: int, scale: float, last_one: Callable[[], None]
) -> list[Tensor]:
    """Without a pipeline: the losses."""
    losses = []
    for each in range(microbatches):
        if each == microbatches - 1:
            last_one()
        loss = forward(0, each, None)
        (loss * scale).backward()
        losses.append(loss.detach())
    return losses


def one_forward_one_backward(
    forward: Forward, microbatches: int, scale: float, last_one: Callable[[], None], near: Neighbours
) -> list[Tensor]:
    """1F1B: the losses, on the last stage."""
    place, stages = near.mesh.place("pp"), near.mesh.size("pp")
    first, last = place == 0, place == stages - 1
    warm = min(stages - 1 - place, microbatches)
    losses: list[Tensor] = []
    alive: list[tuple[Tensor | None, Tensor]] = []

    def run(microbatch: int, came: Tensor | None) -> Tensor:
        came = _wanting(came)
        result = forward(0, microbatch, came)
        if last:
            losses.append(result.detach())
            result = result * scale
        alive.append((came, result))
        return result.detach()

    def back(given: Tensor | None) -> Tensor | None:
        came, result = alive.pop(0)
        return _backward(result, given, came)

    for each in range(warm):
        came = near.exchange(from_before=not first)[0].wait()
        near.exchange(run(each, came))
    came = near.exchange(from_before=not first)[0].wait() if warm < microbatches else None
    for each in range(warm, microbatches):
        if each == microbatches - 1 and warm == 0:
            last_one()
        result = run(each, came)
        given = near.exchange(None if last else result, from_after=not last)[1].wait()
        of_came = back(given)
        more = each < microbatches - 1 and not first
        came = near.exchange(back=None if first else of_came, from_before=more)[0].wait()
    for each in range(warm):
        if each == warm - 1:
            last_one()
        given = near.exchange(from_after=not last)[1].wait()
        of_came = back(given)
        near.exchange(back=None if first else of_came)
    return losses


def interleaved(
    forward: Forward, microbatches: int, scale: float, last_one: Callable[[], None], near: Neighbours, parts: int
) -> list[Tensor]:
    """1F1B with ``parts`` parts of the model per rank, part ``n`` of rank ``r`` being number ``n * stages + r``."""
    place, stages = near.mesh.place("pp"), near.mesh.size("pp")
    if microbatches % stages:
        raise SystemExit(f"interleaved pipelines need microbatches in multiples of {stages} stages, not {microbatches}")
    first, last = place == 0, place == stages - 1
    total = microbatches * parts
    warm = min(total, (stages - place - 1) * 2 + (parts - 1) * stages)
    losses: list[Tensor] = []
    alive: list[list[tuple[Tensor | None, Tensor]]] = [[] for _ in range(parts)]
    came: list[list[Pending]] = [[] for _ in range(parts)]
    given: list[list[Pending]] = [[] for _ in range(parts)]

    def part_of(step: int, back: bool = False) -> int:
        found = step % (stages * parts) // stages
        return parts - 1 - found if back else found

    def run(step: int) -> Tensor | None:
        part = part_of(step)
        start = first and part == 0
        x = None if start else _wanting(came[part].pop(0).wait())
        microbatch = step // (stages * parts) * stages + step % stages
        result = forward(part, microbatch, x)
        ends = last and part == parts - 1
        if ends:
            losses.append(result.detach())
            result = result * scale
        alive[part].append((x, result))
        return None if ends else result.detach()

    def back(step: int) -> Tensor | None:
        part = part_of(step, back=True)
        x, result = alive[part].pop(0)
        if step == total - 1:
            last_one()
        ends = last and part == parts - 1
        return _backward(result, None if ends else given[part].pop(0).wait(), x)

    def next_forward(step: int) -> int | None:
        """The part whose input comes after the exchange of forward step ``step``; None: there is none."""
        if step == total - 1:
            return None
        if not first:
            return part_of(step + 1)
        arrives = step - (stages - 1)  # the last stage has just finished this one
        if arrives < 0:
            return None
        part = part_of(arrives) + 1
        return part if part < parts else None

    def next_backward(step: int) -> int | None:
        if step == total - 1:
            return None
        if not last:
            return part_of(step + 1, back=True)
        arrives = step - (stages - 1)
        if arrives < 0:
            return None
        part = part_of(arrives, back=True) - 1
        return part if part >= 0 else None

    def passed_on(result: Tensor | None, to: int | None) -> None:
        got = near.exchange(result, from_before=to is not None)[0]
        if to is not None:
            came[to].append(got)

    def passed_back(gradient: Tensor | None, to: int | None) -> None:
        got = near.exchange(back=gradient, from_after=to is not None)[1]
        if to is not None:
            given[to].append(got)

    if not first:
        came[0].append(near.exchange(from_before=True)[0])
    for step in range(warm):
        passed_on(run(step), next_forward(step))
    if not last and warm < total:
        given[parts - 1].append(near.exchange(from_after=True)[1])
    for step in range(total - warm):
        passed_on(run(step + warm), next_forward(step + warm))
        gradient = back(step)
        start = first and part_of(step, back=True) == 0
        passed_back(None if start else gradient, next_backward(step))
    if warm == total and not last:
        given[parts - 1].append(near.exchange(from_after=True)[1])
    for step in range(total - warm, total):
        gradient = back(step)
        start = first and part_of(step, back=True) == 0
        passed_back(None if start else gradient, next_backward(step))
    return losses
