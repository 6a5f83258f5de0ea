"""What CUDA refuses of a call that a CPU carries out: formats, products in eight bits, kernels that are not deterministic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.gpu.kernels import nondeterministic, refused_types, scaled_products
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.overloads import OpOverload

Check = Callable[[int, Any, Any], None]
"""Is given the compute capability of a GPU, arguments by place and by keyword."""


def refusal_of(func: OpOverload) -> Check | None:
    """What raises, in CUDA's words, if CUDA refuses an ``OpOverload`` with given arguments on a GPU; None: it never does."""
    if func.namespace != "aten":
        return None
    name = func._opname
    typed, scaled, alert = (
        None
        if func._overloadname.startswith("dtype")
        else refused_types.refusal_of(name),  # these have a result of their own
        scaled_products.refusal_of(name),
        nondeterministic.alert_of(func),
    )
    if typed is None and scaled is None and alert is None:
        return None

    def check(arch: int, args: Any, kwargs: Any) -> None:
        if not any(isinstance(each, torch.Tensor) and block_of(each) is not None for each in args):
            return
        if typed is not None:
            typed(args)
        if scaled is not None:
            scaled(arch, args)
        if alert is not None:
            alert(args, kwargs)

    return check


def depends_on_settings(func: OpOverload) -> bool:
    """Whether it may be refused for what the program has set (:func:`torch.use_deterministic_algorithms`)."""
    return func.namespace == "aten" and nondeterministic.alert_of(func) is not None
