"""Kernels for CUDA that a program gives operators of torch (``Library("aten", "IMPL").impl(name, kernel, "CUDA")``).

To C++ the tensors that stand for a GPU's are the CPU's, for which it never looks up a kernel for CUDA: that is done where
operations are recorded. Each rank has its own kernels, and of several of one operator the newest is called, as in torch.

Operators that torch composes of others are taken apart above autograd, before they are recorded. While one of them is
overridden, what takes it apart for tensors of the CPU asks first (:func:`composed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._C._len_torch_dispatch_stack", "it is zero where no mode is on"),
    Reliance("torch.ops.aten.vstack.default", "it can be taken apart as torch does", has=("decompose",)),
)

Kernel = Callable[..., Any]
Kernels = dict[str, list[Kernel]]
"""Kernels of one rank by operator (``"aten::add.Tensor"``), the newest last."""

_of_rank: dict[int, Kernels] = {}
_told: list[Callable[[str], object]] = []


def override(operator: str, rank: int, kernel: Kernel) -> None:
    """``kernel`` computes ``operator`` on the GPUs of ``rank`` from now on."""
    _of_rank.setdefault(rank, {}).setdefault(operator, []).append(kernel)
    _tell(operator)


def restore(operator: str, rank: int, kernel: Kernel) -> None:
    """Take a kernel away again; nothing if it is gone already."""
    kernels = _of_rank.get(rank, {}).get(operator, [])
    for at, each in enumerate(kernels):
        if each is kernel:
            del kernels[at]
            break
    if not kernels and rank in _of_rank:
        _of_rank[rank].pop(operator, None)
    _tell(operator)


def kernel_for(operator: str, rank: int | None) -> Kernel | None:
    """What the program of ``rank`` has registered for ``operator``."""
    kernels = None if rank is None else _of_rank.get(rank, {}).get(operator)
    return kernels[-1] if kernels else None


def is_overridden(operator: str) -> bool:
    """Whether any rank has a kernel for it."""
    return any(operator in kernels for kernels in _of_rank.values())


def kernels_of(rank: int) -> Kernels:
    """All of one rank's, to be given back by :func:`keep` when it has become a rank again."""
    return _of_rank.get(rank, {})


def keep(rank: int, kernels: Kernels) -> None:
    """Kernels that ``rank`` has had before."""
    if kernels:
        _of_rank[rank] = kernels
        for operator in list(kernels):
            _tell(operator)


def forget() -> None:
    """The ranks have ended."""
    operators = {operator for kernels in _of_rank.values() for operator in kernels}
    _of_rank.clear()
    for operator in operators:
        _tell(operator)


def tell(changed: Callable[[str], object]) -> None:
    """``changed`` is called with each operator whose kernels are others now."""
    _told.append(changed)


def dispatches_to_gpu(args: Any, kwargs: Any) -> bool:
    """Whether C++ would choose a kernel for CUDA: by the tensors given; by the device asked for if there are none."""
    tensors = listed_tensors((*args, *(kwargs or {}).values()))
    device = (kwargs or {}).get("device")
    if tensors or device is None:
        return any(block_of(each) is not None for each in tensors)
    return bool(device.type == "cuda")


def composed(operator: str, stock: Any, whose: Callable[[], int | None]) -> Kernel:
    """An implementation for ``AutogradCPU`` of an operator that torch composes of others.

    As below CUDA's autograd, the program's kernel is called with autograd on: what it consists of has its gradients.

    Args:
        operator: its name.
        stock: its ``OpOverload``.
        whose: the rank that runs.
    """

    def implementation(*args: object, **kwargs: object) -> Any:
        recorded = torch._C._len_torch_dispatch_stack() > 0  # else the simulation itself computes
        kernel = kernel_for(operator, whose()) if recorded else None
        if kernel is None or not dispatches_to_gpu(args, kwargs):
            return stock.decompose(*args, **kwargs)
        return kernel(*args, **kwargs)

    return implementation


def overload(operator: str) -> Any:
    """The ``OpOverload`` of that name, None if this version of torch has none."""
    namespace, _, name = operator.partition("::")
    packet, _, which = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet, None), which or "default", None)


def _tell(operator: str) -> None:
    for changed in _told:
        changed(operator)
