"""torch's formulas for the FLOPs of its operators."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

aten = torch.ops.aten


def _meta(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.empty(shape, device="meta") for shape in shapes]


RELIES_ON = (
    Reliance("torch.utils.flop_counter.flop_registry", "formulas by operator, asked with arguments and `out_val`",
             holds=lambda formulas: formulas[aten.mm](*_meta((2, 3), (3, 5)), out_val=_meta((2, 5))[0]) == 60),
    Reliance("torch.ops.aten", "operations whose formula holds for those that stand for them", has=(
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
    )),
)  # fmt: skip

_LIKE = {
    "_scaled_dot_product_flash_attention_for_cpu": aten._scaled_dot_product_efficient_attention,
    "_scaled_dot_product_fused_attention_overrideable": aten._scaled_dot_product_efficient_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": aten._scaled_dot_product_efficient_attention_backward,
}
"""Attention as it is called here, where a GPU would be called with an operation that torch has a formula for. Operands are the
same: query, key, value, for the gradient after that of the result."""


def formula_of(func: OpOverload) -> Any:
    """torch's formula for an ``OpOverload``, None if it has none."""
    packet = getattr(func, "overloadpacket", None)
    found = flop_registry.get(packet)
    return flop_registry.get(_LIKE.get(getattr(func, "_opname", ""))) if found is None else found
