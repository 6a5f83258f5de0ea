"""Groups of ranks and the products between them, as Megatron-Core has them (arXiv:1909.08053, 2104.04473, 2205.05198).

Ranks are counted by tensor parallelism first, then context, data and pipeline. Experts are spread over neighbours of one stage.
Activations are ``[sequence, batch, hidden]``; with tensor parallelism what is between products is split over the sequence.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

Tensor = torch.Tensor
Group = Any


class Mesh:
    """This rank's groups and its place in each.

    Attributes:
        tp, cp, dp, pp: groups of tensor, context, data and pipeline parallelism.
        dp_cp: ranks with the same dense weights; reduces gradients and shares the optimizer.
        ep, edp: ranks with different experts of a layer; those with the same.
        world: all ranks.
        stand_ins: what stands for gradients that products have added up (:func:`stand_in`).
    """

    def __init__(self, tp: int, cp: int, ep: int, pp: int) -> None:
        size, rank = dist.get_world_size(), dist.get_rank()
        if size % (tp * cp * pp) or (size // pp) % ep:
            raise SystemExit(f"{size} ranks are no multiple of TP {tp} x CP {cp} x PP {pp}, or a stage's of EP {ep}")
        dp, stage = size // (tp * cp * pp), size // pp
        every = range(size)
        keys = {
            "tp": lambda each: each // tp,
            "cp": lambda each: (each // (tp * cp), each % tp),
            "dp": lambda each: (each // stage, each % (tp * cp)),
            "dp_cp": lambda each: (each // stage, each % tp),
            "pp": lambda each: each % stage,
            "ep": lambda each: each // ep,
            "edp": lambda each: (each // stage, each % ep),
        }
        self._groups: dict[str, Group] = {}
        for name, key in keys.items():
            for value in dict.fromkeys(map(key, every)):
                members = [each for each in every if key(each) == value]
                if len(members) == 1:
                    continue
                group = dist.new_group(members)
                if rank in members:
                    self._groups[name] = group
        self._members = {name: [each for each in every if key(each) == key(rank)] for name, key in keys.items()}
        self.rank, self.world = rank, size
        self.data_parallel = dp
        self.stand_ins: dict[Any, Tensor] = {}

    def group(self, name: str) -> Group:
        """The group of a name."""
        return self._groups[name]

    def size(self, name: str) -> int:
        """Its ranks."""
        return len(self._members[name])

    def place(self, name: str) -> int:
        """This rank among them."""
        return self._members[name].index(self.rank)

    def peer(self, name: str, offset: int) -> int:
        """The global rank so many places further, around."""
        members = self._members[name]
        return members[(members.index(self.rank) + offset) % len(members)]


def gathered(x: Tensor, mesh: Mesh, name: str = "tp", wait: bool = True) -> tuple[Tensor, Any]:
    """``x`` of all members, one after the other along the first dimension, and what to wait for."""
    out = x.new_empty((x.shape[0] * mesh.size(name), *x.shape[1:]))
    work = dist.all_gather_into_tensor(out, x.contiguous(), group=mesh.group(name), async_op=not wait)
    return out, work


def scattered(x: Tensor, mesh: Mesh, name: str = "tp", wait: bool = True) -> tuple[Tensor, Any]:
    """This rank's part of the sum of ``x``, along the first dimension, and what to wait for."""
    out = x.new_empty((x.shape[0] // mesh.size(name), *x.shape[1:]))
    work = dist.reduce_scatter_tensor(out, x.contiguous(), group=mesh.group(name), async_op=not wait)
    return out, work


# -- products ------------------------------------------------------------------------------------------------------------


def stand_in(weight: Tensor, mesh: Mesh) -> Tensor:
    """What autograd is given for a gradient that is in ``main_grad`` already: one per shape, as Transformer Engine has."""
    key = (weight.shape, weight.dtype)
    if key not in mesh.stand_ins:
        mesh.stand_ins[key] = torch.empty_like(weight, requires_grad=False)
    return mesh.stand_ins[key].detach()


def accumulate(weight: Tensor, given: Tensor, x: Tensor, mesh: Mesh) -> Tensor:
    """Add ``given.t() @ x`` to the weight's gradient in 32 bits, as one product. Shapes ``[rows, out]`` and ``[rows, in]``."""
    main: Tensor = weight.main_grad  # type: ignore[attr-defined]
    if x.dtype is main.dtype:
        main.addmm_(given.t(), x)
    else:
        torch.addmm(main, given.t(), x, out_dtype=main.dtype, out=main)
    weight.fused = True  # type: ignore[attr-defined]
    return stand_in(weight, mesh)


def rows(x: Tensor) -> Tensor:
    """``[sequence * batch, width]``."""
    return x.reshape(-1, x.shape[-1])


class _Column(torch.autograd.Function):
    """``x @ weight.t()`` with the rows of ``weight`` split; ``x`` is split over the sequence before, and whole after."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, mesh: Mesh) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.mesh = mesh
        whole = gathered(x, mesh)[0] if mesh.size("tp") > 1 else x
        return whole @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (given,) = gradients
        x, weight = ctx.saved_tensors
        mesh = ctx.mesh
        split = mesh.size("tp") > 1
        work: Any = None
        whole = x
        if split:
            whole, work = gathered(x, mesh, wait=False)
        of_x = given @ weight
        if split:
            work.wait()
            of_x, work = scattered(of_x, mesh, wait=False)
        of_weight = accumulate(weight, rows(given), rows(whole), mesh)
        if split:
            work.wait()
        return of_x, of_weight, None


class _Row(torch.autograd.Function):
    """``x @ weight.t()`` with the columns of ``weight`` split; the sum is split over the sequence after."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, mesh: Mesh) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.mesh = mesh
        out = x @ weight.t()
        return scattered(out, mesh)[0] if mesh.size("tp") > 1 else out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (given,) = gradients
        x, weight = ctx.saved_tensors
        whole = gathered(given, ctx.mesh)[0] if ctx.mesh.size("tp") > 1 else given
        of_x = whole @ weight
        return of_x, accumulate(weight, rows(whole), rows(x), ctx.mesh), None


def column_product(x: Tensor, weight: Tensor, mesh: Mesh) -> Tensor:
    """``x [sequence / tp, batch, in]`` by ``weight [out / tp, in]``: ``[sequence, batch, out / tp]``."""
    found: Tensor = _Column.apply(x, weight, mesh)
    return found


def row_product(x: Tensor, weight: Tensor, mesh: Mesh) -> Tensor:
    """``x [sequence, batch, in / tp]`` by ``weight [out, in / tp]``: ``[sequence / tp, batch, out]``."""
    found: Tensor = _Row.apply(x, weight, mesh)
    return found


class _Grouped(torch.autograd.Function):
    """Rows of ``x`` in equal groups, each by a weight of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, mesh: Mesh) -> Tensor:
        ctx.mesh = mesh
        groups = weight.shape[0]
        each = x.shape[0] // groups
        ends = torch.arange(each, x.shape[0] + 1, each, dtype=torch.int32).to(x.device)
        ctx.save_for_backward(x, weight, ends)
        return F.grouped_mm(x, weight.transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, ends = ctx.saved_tensors
        given = gradients[0].contiguous()
        of_x = F.grouped_mm(given, weight, offs=ends)
        weight.main_grad.add_(F.grouped_mm(given.t(), x, offs=ends))
        weight.fused = True
        return of_x, stand_in(weight, ctx.mesh), None


def grouped_product(x: Tensor, weight: Tensor, mesh: Mesh) -> Tensor:
    """``x [groups * n, in]`` by ``weight [groups, out, in]``: ``[groups * n, out]``."""
    found: Tensor = _Grouped.apply(x, weight, mesh)
    return found


class _SplitSum(torch.autograd.Function):
    """The sum over tensor parallelism, split over the sequence; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: Mesh) -> Tensor:
        ctx.mesh = mesh
        return scattered(x, mesh)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gathered(gradients[0], ctx.mesh)[0], None


def split_sum(x: Tensor, mesh: Mesh) -> Tensor:
    """``x [sequence, ...]`` summed over tensor parallelism: ``[sequence / tp, ...]``."""
    found: Tensor = _SplitSum.apply(x, mesh) if mesh.size("tp") > 1 else x
    return found


class _Exchanged(torch.autograd.Function):
    """All-to-all of equal parts along the first dimension; so is the gradient's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: Mesh, name: str) -> Tensor:
        ctx.how = mesh, name
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=mesh.group(name))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        mesh, name = ctx.how
        given = gradients[0].contiguous()
        out = torch.empty_like(given)
        dist.all_to_all_single(out, given, group=mesh.group(name))
        return out, None, None


def exchanged(x: Tensor, mesh: Mesh, name: str) -> Tensor:
    """``x [members * part, ...]``: part ``n`` goes to member ``n``."""
    if mesh.size(name) == 1:
        return x
    found: Tensor = _Exchanged.apply(x.contiguous(), mesh, name)
    return found
