"""Gradients that concern more than one rank: averaged over data parallel ranks while backward runs, and completed for what
sequence parallelism leaves partial.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from kernbench.tp import comm, parallel_state
from kernbench.tp.initialize import param_is_not_tensor_parallel_duplicate

DEFAULT_BUCKET_SIZE = 40_000_000
"""Elements of a bucket, as Megatron-Core's default for small data parallel sizes."""


class _Bucket:
    """Parameters whose gradients lie in one flat buffer and travel together."""

    def __init__(self, params: list[nn.Parameter], group: comm.Group) -> None:
        first = params[0]
        self.params = params
        self.group = group
        self.buffer = torch.zeros(sum(p.numel() for p in params), dtype=first.dtype, device=first.device)
        self.work: Any = None
        self.pending = len(params)
        offset = 0
        self.views = []
        for param in params:
            self.views.append(self.buffer[offset : offset + param.numel()].view_as(param))
            offset += param.numel()

    def reset(self) -> None:
        """Zero gradients, accumulated in place by autograd."""
        self.buffer.zero_()
        self.pending = len(self.params)
        self.work = None
        for param, view in zip(self.params, self.views, strict=True):
            param.grad = view

    def ready(self, asynchronously: bool) -> None:
        """One more gradient is complete; the last one starts the all-reduce."""
        self.pending -= 1
        if self.pending == 0 and asynchronously:
            self.start(True)

    def start(self, asynchronously: bool) -> None:
        self.buffer.div_(comm.group_size(self.group))
        self.work = comm.all_reduce(self.buffer, group=self.group, async_op=asynchronously)
        self.pending = -1


class DistributedDataParallel(nn.Module):
    """Averages gradients over the data parallel group, in buckets, while backward is still computing the others.

    As Megatron-Core's: gradients live in flat buffers that ``.grad`` views; :meth:`zero_grad_buffer` before the step,
    :meth:`finish_grad_sync` after backward.

    Args:
        module: parameters that do not require gradients are left alone.
        bucket_size: elements per all-reduce, at least; None: one bucket.
        overlap_grad_reduce: start a bucket's all-reduce as soon as its gradients are there.
    """

    def __init__(
        self, module: nn.Module, *, bucket_size: int | None = DEFAULT_BUCKET_SIZE, overlap_grad_reduce: bool = True
    ) -> None:
        super().__init__()
        self.module = module
        self.overlap_grad_reduce = overlap_grad_reduce
        self._group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        self.syncing = True  # whether backward starts all-reduces
        self._buckets = [
            _Bucket(params, self._group) for params in _split(reversed(list(module.parameters())), bucket_size)
        ]
        for bucket in self._buckets:
            for param in bucket.params:
                param.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._ready(bucket))
        self.zero_grad_buffer()

    def _ready(self, bucket: _Bucket) -> None:
        if self.syncing:
            bucket.ready(self.overlap_grad_reduce)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """What the module returns."""
        return self.module(*args, **kwargs)

    def no_sync(self) -> _NoSync:
        """Inside, backward only accumulates: for all micro-batches of a step but the last."""
        return _NoSync(self)

    def zero_grad_buffer(self) -> None:
        """Zero the gradients, before the first backward of a step."""
        for bucket in self._buckets:
            bucket.reset()

    def finish_grad_sync(self) -> None:
        """Start what has not been started, and wait for all of it: every ``.grad`` is then the average."""
        for bucket in self._buckets:
            if bucket.pending != -1:
                bucket.start(False)
            if bucket.work is not None:
                bucket.work.wait()


class _NoSync:
    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp

    def __enter__(self) -> None:
        self._ddp.syncing = False

    def __exit__(self, *exc: object) -> None:
        self._ddp.syncing = True


def _split(params: Iterable[nn.Parameter], bucket_size: int | None) -> list[list[nn.Parameter]]:
    """Parameters in the given order, cut where a bucket is full or the dtype changes."""
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for param in params:
        if not param.requires_grad:
            continue
        if not buckets or room <= 0 or buckets[-1][0].dtype != param.dtype:
            buckets.append([])
            room = bucket_size if bucket_size is not None else 1 << 62
        buckets[-1].append(param)
        room -= param.numel()
    return buckets


def finalize_model_grads(models: Iterable[nn.Module]) -> None:
    """After backward: wait for the data parallel averages, then sum over the tensor group what sequence parallelism left
    partial: gradients of parameters marked ``sequence_parallel`` (layer norms, biases of row-parallel layers)."""
    for model in models:
        if isinstance(model, DistributedDataParallel):
            model.finish_grad_sync()
        partial = [
            param.grad
            for param in model.parameters()
            if getattr(param, "sequence_parallel", False) and param.grad is not None
        ]
        if partial and parallel_state.get_tensor_model_parallel_world_size() > 1:
            flat = torch.cat([grad.reshape(-1) for grad in partial])
            comm.all_reduce(flat, group=parallel_state.get_tensor_model_parallel_group())
            for grad, total in zip(partial, flat.split([grad.numel() for grad in partial]), strict=True):
                grad.copy_(total.view_as(grad))


def clip_grad_norm(params: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale gradients so that the norm of the whole model's, over all model parallel ranks, is at most ``max_norm``.

    A parameter that every tensor parallel rank has whole counts once. Returns the norm before.
    """
    params = [param for param in params if param.grad is not None]
    counted = [p.grad for p in params if p.grad is not None and param_is_not_tensor_parallel_duplicate(p)]
    total = torch.nn.utils.get_total_norm(counted, foreach=True).float().square()
    comm.all_reduce(total, group=parallel_state.get_model_parallel_group())
    norm = total.sqrt()
    torch.nn.utils.clip_grads_with_norm_(params, max_norm, norm, foreach=True)
    return float(norm)
