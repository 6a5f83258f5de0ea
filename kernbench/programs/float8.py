"""Linear layers that multiply in eight bits, and FSDP2 that gathers their weights so.

Inputs and weights are ``e4m3``, gradients of outputs ``e5m2`` (Micikevicius et al., arXiv:2209.05433). Each tensor has one
scale, from its largest magnitude at that moment. A shard of a weight is cast before it is gathered: half the bytes of 16 bits;
for this the ranks have to agree on the scale of the whole weight, which takes an all-reduce, or one for all weights after the
optimizer's step (:func:`agree_on_scales`). All of it is what torchao's ``Float8Linear`` does, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

_LEAST = 1e-12  # of a largest magnitude: a tensor of zeros has a scale too


def scale_for(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What brings ``largest`` magnitudes to the largest number of ``dtype``; float32."""
    return (torch.finfo(dtype).max / largest.double().clamp(min=_LEAST)).float()


def largest_of(x: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of ``x``, ``[]``."""
    return x.abs().max()


def cast(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x * scale`` in ``dtype``, no larger than its largest number."""
    most = torch.finfo(dtype).max
    return (x.float() * scale).clamp(-most, most).to(dtype)


def product(
    a: torch.Tensor, b: torch.Tensor, scales: Sequence[torch.Tensor], dtype: torch.dtype, fast: bool = False
) -> torch.Tensor:
    """``a [M, K] @ b [K, N]`` without their scales, in ``dtype``; ``fast``: sums are kept in less than 32 bits.

    The kernel wants ``a`` row by row and ``b`` column by column; what is not is copied.
    """
    inverse = [scale.reciprocal() for scale in scales]
    columns = b.t().contiguous().t()
    return torch._scaled_mm(
        a.contiguous(), columns, scale_a=inverse[0], scale_b=inverse[1], out_dtype=dtype, use_fast_accum=fast
    )


class _Wrapped(torch.Tensor):
    """A tensor that is made of others.

    Attributes:
        ELEMENTS: name of the one that has its elements.
        KEPT: operators whose result is such a tensor again.
    """

    ELEMENTS: str
    KEPT: frozenset[Any]

    @classmethod
    def over(cls, shown: torch.Tensor, dtype: torch.dtype) -> Any:
        """One that looks like ``shown`` in ``dtype``, without what it is made of."""
        return torch.Tensor._make_wrapper_subclass(
            cls,
            shown.size(),
            strides=shown.stride(),
            storage_offset=shown.storage_offset(),
            dtype=dtype,
            layout=shown.layout,
            device=shown.device,
            requires_grad=shown.requires_grad,
        )

    def like(self, elements: torch.Tensor) -> Any:
        """The same with other elements."""
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
        plain = tree_map_only(cls, lambda each: getattr(each, cls.ELEMENTS), (args, dict(kwargs or {})))
        found = func(*plain[0], **plain[1])
        if func in cls.KEPT and isinstance(first, cls):
            return first if func is _ATEN.copy_.default else tree_map_only(torch.Tensor, first.like, found)
        return found


_ATEN = torch.ops.aten


class GatheredWeight(_Wrapped):
    """A whole weight in eight bits, which stands for one of more.

    Attributes:
        bits: ``[out, in]``.
        scale: ``[]``, float32, that it was multiplied by.
    """

    ELEMENTS = "bits"
    KEPT = frozenset({_ATEN.detach.default, _ATEN.view.default, _ATEN.as_strided.default, _ATEN.alias.default})
    bits: torch.Tensor
    scale: torch.Tensor

    def __new__(cls, bits: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> GatheredWeight:
        """``dtype`` is what it stands for."""
        self: GatheredWeight = cls.over(bits, dtype)
        self.bits, self.scale = bits, scale
        return self

    def like(self, elements: torch.Tensor) -> GatheredWeight:
        """Other bits, of the same scale."""
        return GatheredWeight(elements, self.scale, self.dtype)

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
        return ["bits", "scale"], self.dtype

    @staticmethod
    def __tensor_unflatten__(
        parts: Mapping[str, torch.Tensor], dtype: Any, size: object, stride: Any
    ) -> GatheredWeight:
        return GatheredWeight(parts["bits"], parts["scale"], dtype)


class Agreed:
    """What the ranks agree on.

    Attributes:
        scale: of a weight, ``[]``; None if they have not yet.
    """

    scale: torch.Tensor | None = None


class WeightToGather(_Wrapped):
    """A weight, or a shard of one, that FSDP2 gathers in eight bits.

    Attributes:
        master: it, in full precision.
        agreed: the scale of the whole weight, which all that is made of it shares.
    """

    ELEMENTS = "master"
    KEPT = frozenset(
        {
            _ATEN.detach.default,
            _ATEN.empty_like.default,
            _ATEN.new_zeros.default,
            _ATEN.slice.Tensor,
            _ATEN.split.Tensor,
            _ATEN.copy_.default,
            _ATEN.view.default,
            _ATEN.as_strided.default,
            _ATEN._to_copy.default,
            _ATEN.clone.default,
        }
    )
    master: torch.Tensor
    agreed: Agreed

    def __new__(cls, master: torch.Tensor, agreed: Agreed) -> WeightToGather:
        """Of a weight or shard, ``master [rows, in]``."""
        self: WeightToGather = cls.over(master, master.dtype)
        self.master, self.agreed = master, agreed
        return self

    def like(self, elements: torch.Tensor) -> WeightToGather:
        """Other elements of the same weight."""
        return WeightToGather(elements, self.agreed)

    def __tensor_flatten__(self) -> tuple[list[str], Agreed]:
        return ["master"], self.agreed

    @staticmethod
    def __tensor_unflatten__(
        parts: Mapping[str, torch.Tensor], agreed: Agreed, size: object, stride: object
    ) -> WeightToGather:
        return WeightToGather(parts["master"], agreed)

    def fsdp_pre_all_gather(self, mesh: DeviceMesh) -> tuple[tuple[torch.Tensor, ...], Any]:
        """What is gathered, and what the ranks know besides."""
        scale = self.agreed.scale
        if scale is None:
            largest = largest_of(self.master)
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=mesh.get_group())
            scale = scale_for(largest, torch.float8_e4m3fn)
        return (cast(self.master, scale, torch.float8_e4m3fn),), (scale,)

    def fsdp_post_all_gather(
        self,
        gathered: tuple[torch.Tensor, ...],
        known: Any,
        param_dtype: torch.dtype,
        *,
        out: torch.Tensor | None = None,
    ) -> Any:
        """The whole weight; ``out``: one of an earlier time, whose bits are these."""
        if out is not None:
            assert isinstance(out, GatheredWeight)
            out.scale = known[0]
            return None
        return GatheredWeight(gathered[0], known[0], param_dtype), gathered


class _Product(torch.autograd.Function):
    """``x @ weight.t()`` and its gradients, each a product in eight bits."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``x [rows, in]``, ``weight [out, in]``."""
        if isinstance(weight, GatheredWeight):
            bits, weight_scale = weight.bits, weight.scale
        else:
            weight_scale = scale_for(largest_of(weight), torch.float8_e4m3fn)
            bits = cast(weight, weight_scale, torch.float8_e4m3fn)
        scale = scale_for(largest_of(x), torch.float8_e4m3fn)
        narrow = cast(x, scale, torch.float8_e4m3fn)
        ctx.save_for_backward(narrow, scale, bits, weight_scale)
        return product(narrow, bits.t(), (scale, weight_scale), x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Those of ``x`` and ``weight``."""
        (gradient,) = gradients
        narrow, scale, bits, weight_scale = ctx.saved_tensors
        own = scale_for(largest_of(gradient), torch.float8_e5m2)
        given = cast(gradient, own, torch.float8_e5m2)
        of_x = product(given, bits, (own, weight_scale), gradient.dtype)
        return of_x, product(given.t(), narrow, (own, scale), gradient.dtype)


class Float8Linear(nn.Linear):
    """A linear layer without bias that multiplies in eight bits."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input [.., in]``, of 16 or 32 bits."""
        rows = input.reshape(-1, input.shape[-1])
        found: torch.Tensor = _Product.apply(rows, self.weight)
        return found.reshape(*input.shape[:-1], -1)


def narrowed(model: nn.Module, wanted: Callable[[str], bool], *, gather: bool) -> None:
    """Have the linear layers of ``model`` whose name is ``wanted`` multiply in eight bits, their weights gathered so or not."""
    for name, layer in list(model.named_modules()):
        if type(layer) is nn.Linear and wanted(name):
            layer.__class__ = Float8Linear
            if gather:
                layer.weight = nn.Parameter(WeightToGather(layer.weight.detach(), Agreed()))


def local_part(weight: object) -> Any:
    """What this rank has of ``weight``."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


@torch.no_grad()
def agree_on_scales(model: nn.Module) -> None:
    """Find the scales of all weights that are gathered in eight bits, with one all-reduce."""
    weights = [layer.weight for layer in model.modules() if isinstance(layer, Float8Linear)]
    shards = [local_part(weight) for weight in weights]
    if any(isinstance(shard, WeightToGather) for shard in shards):
        largest = torch.stack(torch._foreach_norm(weights, math.inf))
        scales = local_part(scale_for(largest, torch.float8_e4m3fn))
        for shard, scale in zip(shards, scales.unbind(), strict=True):
            shard.agreed.scale = scale
