"""Where gradients are: autograd's engine has each where the tensor is whose gradient it is.

To C++ a simulated GPU's tensors are the host's (ADR 0041). So zeros that a backward pass makes for a gradient begin on the
host, and the gradient of a tensor of the host that an operation on a GPU has used stays on that GPU, unless it is seen to here.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterable
from types import CodeType
from typing import Any

import torch
from torch.autograd import graph

from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._C._current_graph_task_id", "it is negative outside backward"),
    Reliance("torch._C._current_autograd_node", "the node whose gradient is computed now; None: none is"),
    Reliance("torch.autograd.graph._engine_run_backward", "the function of Python that calls the engine",
             parameters=("t_outputs",)),
    Reliance("torch.autograd.graph.Node", "its metadata is a dictionary of Python's, and it knows those that follow it",
             has=("metadata", "next_functions")),
    Reliance("torch._C.TensorBase._backward_hooks", "the hooks of a tensor"),
    Reliance("sys._getframe", "the function that calls an operation"),
    Reliance("torch.distributed.tensor._dispatch", "C++ calls this module's functions to carry an operation out"),
)  # fmt: skip

_register_hook = torch.Tensor.register_hook
_ENGINE = graph._engine_run_backward.__code__
_MOVED_TO = "kernbench: moved to a GPU"
_MOST_NODES = 1000
_DTENSORS = "torch.distributed.tensor._dispatch"
"""The module whose functions C++ calls for an operation on a ``DTensor``."""


def note_move(node: Any, *, to_gpu: bool) -> None:
    """Note of the node of a copy to another device whether what it gives is on a GPU."""
    node.metadata[_MOVED_TO] = to_gpu


def is_by_engine(seen_by: CodeType) -> bool:
    """Whether C++ calls an operation in a backward pass, which the function with the code ``seen_by`` sees now: no function of
    Python does, as of a forward pass that a checkpoint repeats."""
    if torch._C._current_graph_task_id() < 0:
        return False
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not seen_by:
        frame = frame.f_back
    return frame is not None and frame.f_back is not None and frame.f_back.f_code is _ENGINE


def is_for_engine(seen_by: CodeType) -> bool:
    """The same of an operation on the parts of a tensor whose class carries operations out, as ``DTensor`` does: it is C++ that
    calls one on the whole."""
    if torch._C._current_graph_task_id() < 0:
        return False
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not seen_by:
        frame = frame.f_back
    while frame is not None and frame.f_back is not None and frame.f_back.f_code is not _ENGINE:
        frame = frame.f_back
    if frame is None or frame.f_back is None:
        return False
    return frame.f_code.co_name == "__torch_dispatch__" or frame.f_globals.get("__name__") == _DTENSORS


def is_gradient_of_gpu() -> bool:
    """Whether what C++ makes now in a backward pass, of nothing, is a gradient of tensors on a GPU."""
    node: Any = torch._C._current_autograd_node()
    return node is not None and _is_of_gpu(node)


def _is_of_gpu(node: Any) -> bool:
    """Whether what a node gave is on a GPU: as the nearest of the leaves and copies that it was made of.

    Numbers of the host, which operations on a GPU take as they are, do not say."""
    to_visit, seen = deque([node]), {node}
    while to_visit and len(seen) < _MOST_NODES:
        node = to_visit.popleft()
        moved = node.metadata.get(_MOVED_TO)
        if moved is not None:
            return bool(moved)
        variable = getattr(node, "variable", None)
        if variable is not None and (block_of(variable) is not None or variable.dim()):
            return block_of(variable) is not None
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                to_visit.append(following)
    return False


def return_gradients(tensors: Iterable[torch.Tensor]) -> bool:
    """Have the gradients of tensors that an operation uses which is computed elsewhere go back to where these are; whether any
    has one. What is computed without gradients sends none back."""
    found = False
    for tensor in tensors if torch.is_grad_enabled() else ():
        if not tensor.requires_grad:
            continue
        found = True
        hooks: Any = tensor._backward_hooks
        if not any(type(each) is _Return for each in (hooks or {}).values()):
            _register_hook(tensor, _Return(tensor))
    return found


class _Return:
    """A hook that moves a gradient of a tensor to where the tensor is by then: its ``data`` may be replaced."""

    __torch_unserializable__ = True  # torch need not warn of it where the tensor is saved

    def __init__(self, tensor: torch.Tensor) -> None:
        self._device = tensor.device
        self._tensor = weakref.ref(tensor)

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        tensor = self._tensor()
        return gradient.to(self._device if tensor is None else tensor.device)
