"""Gradients in 32 bits, reduced and scattered; an optimizer that every replica has a part of (arXiv:1910.02054, stage 1).

As Megatron-Core's ``DistributedDataParallel`` and ``DistributedOptimizer``: weights are views of flat buffers in 16 bits,
their gradients of such in 32. Products add to them; other gradients are added by a hook. Before it is reduced a buffer is
scaled, after the optimizer's step its part is gathered from all. With overlap buffers are cut into buckets, reduced as soon as
a backward pass has been through them, and gathered while the next forward pass runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn

from kernbench.programs.megatron_model import MegatronPart
from kernbench.programs.megatron_parallel import Mesh

_REDUCED_OVER = {"split": "dp_cp", "replicated": "dp_cp", "experts": "edp"}
_PADDED = 128  # elements up to a multiple of which each replica has


class Bucket:
    """Parameters that are reduced and gathered together.

    Attributes:
        kind: ``split`` over tensor parallelism, ``replicated`` in it, or ``experts``.
        weights, gradients: flat, in 16 and, as a rule, 32 bits.
        own: this replica's part of both.
        master: that part of the weights in 32 bits.
    """

    def __init__(self, kind: str, parameters: Sequence[nn.Parameter], mesh: Mesh, dtype: torch.dtype) -> None:
        self.kind, self.parameters, self.mesh = kind, list(parameters), mesh
        self.name = _REDUCED_OVER[kind]
        replicas = mesh.size(self.name)
        count = sum(each.numel() for each in parameters)
        length = math.ceil(count / (replicas * _PADDED)) * replicas * _PADDED
        first = self.parameters[0]
        self.weights = torch.zeros(length, device=first.device, dtype=first.dtype)
        self.gradients = torch.zeros(length, device=first.device, dtype=dtype)
        at = 0
        for each in self.parameters:
            place = slice(at, at + each.numel())
            self.weights[place].copy_(each.detach().flatten())
            each.data = self.weights[place].view_as(each)
            each.main_grad = self.gradients[place].view_as(each)  # type: ignore[attr-defined]
            at = place.stop
        share = length // replicas
        self.own = slice(mesh.place(self.name) * share, (mesh.place(self.name) + 1) * share)
        self.master = self.weights[self.own].float()
        self.missing: set[int] = set()
        self.work: Any = None

    def reduce(self, wait: bool) -> None:
        """Sum over replicas into this one's part, scaled to their mean."""
        if self.kind == "replicated" and self.mesh.size("tp") > 1:
            dist.all_reduce(self.gradients, group=self.mesh.group("tp"))
        replicas = self.mesh.size("dp_cp")
        if replicas > 1:
            self.gradients.mul_(1 / replicas)
        if self.mesh.size(self.name) > 1:
            group = self.mesh.group(self.name)
            own = self.gradients[self.own]
            self.work = dist.reduce_scatter_tensor(own, self.gradients, group=group, async_op=not wait)

    def gather(self, wait: bool) -> None:
        """The weights of all replicas."""
        if self.mesh.size(self.name) > 1:
            group = self.mesh.group(self.name)
            self.work = dist.all_gather_into_tensor(
                self.weights, self.weights[self.own], group=group, async_op=not wait
            )

    def wait(self) -> None:
        """For whatever has been begun."""
        if self.work is not None:
            self.work.wait()
            self.work = None


class MegatronOptimizer:
    """AdamW over this replica's part of the weights of some parts of a model.

    Args:
        parts: of the model, on this rank.
        mesh: groups of ranks.
        gradients: dtype in which they are summed and reduced.
        overlap_reduce, overlap_gather: Megatron's ``--overlap-grad-reduce`` and ``--overlap-param-gather``.
        bucket: elements of a bucket, at least, with either.
        learning_rate: of AdamW.
    """

    def __init__(
        self,
        parts: Sequence[MegatronPart],
        mesh: Mesh,
        *,
        gradients: torch.dtype,
        overlap_reduce: bool,
        overlap_gather: bool,
        bucket: int,
        learning_rate: float,
    ) -> None:
        self.mesh, self.overlap_reduce, self.overlap_gather = mesh, overlap_reduce, overlap_gather
        least = bucket if overlap_reduce or overlap_gather else None
        self.buckets = [Bucket(*each, mesh, gradients) for part in parts for each in _cut(part, least)]
        self.last_microbatch = False
        for each in self.buckets:
            for parameter in each.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(each))
        if overlap_gather:
            for part in parts:
                self._wait_before(part)
        masters = [each.master for each in self.buckets]
        self.adam = torch.optim.AdamW(masters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def _hook(self, bucket: Bucket) -> Any:
        def added(parameter: nn.Parameter) -> None:
            if not getattr(parameter, "fused", False):
                parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
            parameter.grad = None
            if self.overlap_reduce and self.last_microbatch:
                bucket.missing.discard(id(parameter))
                if not bucket.missing:
                    bucket.reduce(wait=False)

        return added

    def _wait_before(self, part: MegatronPart) -> None:
        """Have modules wait for what they read."""
        buckets = {id(parameter): bucket for bucket in self.buckets for parameter in bucket.parameters}

        def waiting(own: list[Bucket]) -> Any:
            def wait(*_: Any) -> None:
                for bucket in own:
                    bucket.wait()

            return wait

        inner = [each for layer in part.layers for each in layer.parameters()]
        outer = [each for each in part.parameters() if all(each is not other for other in inner)]
        for module, parameters in ((part, outer), *((layer, list(layer.parameters())) for layer in part.layers)):
            own = list({id(found): found for each in parameters if (found := buckets[id(each)])}.values())
            module.register_forward_pre_hook(waiting(own))

    def begin(self) -> None:
        """Of a step: gradients are zero."""
        for each in self.buckets:
            each.gradients.zero_()
            each.missing = {id(parameter) for parameter in each.parameters}

    def step(self, clip: float = 1.0) -> float:
        """Reduce, clip, step and gather; the norm of the gradient."""
        for each in self.buckets:
            if not self.overlap_reduce:
                each.reduce(wait=True)
            each.wait()
        gradients = [each.gradients[each.own].float() for each in self.buckets]  # no copy of what is in 32 bits
        for each, gradient in zip(self.buckets, gradients, strict=True):
            each.master.grad = gradient
        norm = self._norm(gradients)
        if norm > clip:
            torch._foreach_mul_(gradients, clip / (norm + 1e-6))
        self.adam.step()
        torch._foreach_copy_([each.weights[each.own] for each in self.buckets], [each.master for each in self.buckets])
        for each in self.buckets:
            each.gather(wait=not self.overlap_gather)
        return norm

    def _norm(self, gradients: list[torch.Tensor]) -> float:
        """Over all ranks; what tensor parallelism has several times counts once."""
        norms = torch._foreach_norm(gradients)
        times = [1 / self.mesh.size("tp") if each.kind == "replicated" else 1.0 for each in self.buckets]
        total = (torch.stack(norms).square() * torch.tensor(times).cuda()).sum()
        if self.mesh.world > 1:
            dist.all_reduce(total)
        return math.sqrt(total.item())


def _cut(part: MegatronPart, least: int | None) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """Buckets of a part's parameters, in the order in which a forward pass uses them: the sort, and the parameters."""
    for kind in _REDUCED_OVER:
        open_: list[nn.Parameter] = []
        for each in part.parameters():
            if each.kept_in != kind:  # type: ignore[attr-defined]
                continue
            open_.append(each)
            if least is not None and sum(one.numel() for one in open_) >= least:
                yield kind, open_
                open_ = []
        if open_:
            yield kind, open_
