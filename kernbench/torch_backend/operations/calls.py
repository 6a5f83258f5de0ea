"""One call of an operator, on its way through the recorder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.cost.work import Cost
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.operations.operators import TorchOperator


class OperatorCall:
    """A call of an operator, as listeners are given it.

    Attributes:
        device: of the rank that calls.
        operator: what is known of it.
        args, kwargs: as it was called.
        result: what it has given; None before it is computed.
        inputs, outputs: tensors that it reads, and gives or writes, as they are priced.
        cost: of the operation, as it was put on its stream; None: it was not.
        library, scratch: what it needs of the GPU's memory besides (:class:`~kernbench.torch_backend.operations.plans.Plan`).
        over_links: whether some of what it reads may be in other SIPs' memory.
        computed_wide: whether the CPU has no kernel for its formats
            (:mod:`~kernbench.torch_backend.operations.narrow_formats`).
        kept: what listeners keep from one stage to the next, by listener.
    """

    __slots__ = (
        "args", "computed_wide", "cost", "device", "inputs", "kept", "kwargs", "library", "operator", "outputs", "over_links",
        "result", "scratch",
    )  # fmt: skip

    def __init__(self, device: RankDevice, operator: TorchOperator, args: Any, kwargs: Any) -> None:
        self.device = device
        self.operator = operator
        self.args = args
        self.kwargs = kwargs
        self.result: Any = None
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        self.cost: Cost | None = None
        self.library = ""
        self.scratch: Sequence[int] = ()
        self.over_links = False
        self.computed_wide = False
        self.kept: dict[Any, Any] = {}
