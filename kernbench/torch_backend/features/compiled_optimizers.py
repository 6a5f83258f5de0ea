"""The state of an optimizer whose step is compiled.

Dynamo does not trace how an optimizer makes its state: it has that done, on the tensors themselves, while it compiles and has
taken all modes off. So the mode that records is put on for it: the state is on the GPU of its parameters, and making it is work
of that GPU.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from kernbench.torch_backend.gpu.device.devices import bound_devices, current_device
from kernbench.torch_backend.operations.recorder import open_recorder
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch._dynamo.variables.optimizer"

RELIES_ON = (
    Reliance(
        f"{MODULE}.OptimizerVariable.call_method", "within it an optimizer makes its state",
        parameters=("self", "tx", "name", "args", "kwargs"),
    ),
)  # fmt: skip


def install(patches: Patches, module: ModuleType) -> None:
    """Record what is done to make the state."""
    stock = module.OptimizerVariable.call_method

    @functools.wraps(stock)
    def call_method(self: object, tx: object, name: str, args: object, kwargs: object) -> Any:
        mine = current_device()
        if name != "_init_group" or mine is None or mine.host.rank is None:
            return stock(self, tx, name, args, kwargs)
        host, recorder = mine.host, bound_devices().recorder_of(mine.host.rank)
        outside, host.unrecorded = host.unrecorded, False
        try:
            with open_recorder(recorder):
                return stock(self, tx, name, args, kwargs)
        finally:
            host.unrecorded = outside

    patches.set(module.OptimizerVariable, "call_method", call_method)
