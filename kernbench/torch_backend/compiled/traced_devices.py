"""Where C++ puts what a graph computes, while AOTAutograd traces it.

To C++ a fake tensor of a simulated GPU is on the CPU; so the casts and the memory that autograd's own formulas ask for are
for the CPU. In a graph of a GPU they are for that one: unless the program has asked for the host, where its operand is.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch._subclasses.functional_tensor"

RELIES_ON = (
    Reliance(
        f"{MODULE}.FunctionalTensorMode.__torch_dispatch__", "AOTAutograd sees each operation there first",
        parameters=("self", "func", "types", "args", "kwargs"),
    ),
    Reliance(f"{MODULE}.FunctionalTensor", "it says which GPU it is on", has=("device",)),
    Reliance("torch.ops.aten", "what C++ asks for", has=("_to_copy", "new_empty_strided")),
    Reliance("torch._from_functional_tensor", "it gives the fake tensor that a functional one wraps, which knows its GPU"),
    Reliance("torch._C._current_graph_task_id", "it is negative outside backward"),
)  # fmt: skip


def install(patches: Patches, module: ModuleType) -> None:
    """Let what C++ asks of the CPU be asked of the GPU."""
    stock = module.FunctionalTensorMode.__torch_dispatch__

    def dispatch(self: object, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and (wanted := kwargs.get("device")) is not None and wanted.type == "cpu":
            kwargs = _placed(func, args, kwargs)
        return stock(self, func, types, args, kwargs)

    def device(tensor: Any) -> torch.device:
        return torch._from_functional_tensor(tensor.elem).device

    patches.add(module.FunctionalTensor, "device", property(device))
    patches.set(module.FunctionalTensorMode, "__torch_dispatch__", dispatch)


_OF_CPP = (torch.ops.aten._to_copy.default, torch.ops.aten.new_empty_strided.default)
"""What C++ asks for in a forward pass, too; programs ask for the first by ``Tensor.to``, for the other hardly ever."""


def _placed(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    mine = current_device()
    if mine is None or not mine.doing.compiling or mine.doing.moving:
        return kwargs
    in_backward = torch._C._current_graph_task_id() >= 0
    if args and isinstance(args[0], torch.Tensor):
        if not in_backward and func not in _OF_CPP:
            return kwargs
        return {name: value for name, value in kwargs.items() if name != "device"}
    if in_backward:
        return {**kwargs, "device": torch.device("cuda", mine.told(mine.index))}
    return kwargs
