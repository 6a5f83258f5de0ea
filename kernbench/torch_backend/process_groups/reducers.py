"""Where DDP's reducer has its buckets: C++ makes them where it takes the parameters to be, and to it a GPU's are on the host.

What it makes while it is built, or builds its buckets again, is made on the GPU of its parameters instead, as any tensor of the
program: counted there, and without data of address space alone.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.torch_backend.gpu.devices import current_device
from kernbench.torch_backend.gpu.placement import block_of
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_Reducer: Any = dist.Reducer
_stock_init, _stock_rebuild = _Reducer.__init__, _Reducer._rebuild_buckets
_EMPTY = torch.ops.aten.empty.memory_format

RELIES_ON = (
    Reliance("torch.distributed.Reducer", "its buckets are made when it is", has=("__init__",), looked_up_by=(
        "torch.nn.parallel.DistributedDataParallel._ddp_init_helper",
    )),
    Reliance("torch.distributed.Reducer._rebuild_buckets", "and once it knows their order", looked_up_by=(
        "torch.nn.parallel.DistributedDataParallel._pre_forward",
    )),
    Reliance("torch.utils._python_dispatch.TorchDispatchMode", "it sees what C++ makes, too", subclassed=True),
)  # fmt: skip


class _OnGpu(TorchDispatchMode):
    """Memory that is asked for on the host is on a GPU, for the length of a block."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _EMPTY and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            kwargs = {**kwargs, "device": self._device}
        return func(*args, **kwargs)


def install(patches: Patches) -> None:
    """Put the buckets of reducers where their parameters are."""
    gpus: weakref.WeakKeyDictionary[Any, torch.device] = weakref.WeakKeyDictionary()

    @functools.wraps(_stock_init)
    def init(reducer: Any, params: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        device = (
            params[0].device if params and block_of(params[0]) is not None and current_device() is not None else None
        )
        if device is None:
            _stock_init(reducer, params, *args, **kwargs)
            return
        with _OnGpu(device):
            _stock_init(reducer, params, *args, **kwargs)
        gpus[reducer] = device

    @functools.wraps(_stock_rebuild)
    def rebuild(reducer: Any) -> bool:
        device = gpus.get(reducer)
        if device is None:
            return bool(_stock_rebuild(reducer))
        with _OnGpu(device):
            return bool(_stock_rebuild(reducer))

    patches.set(_Reducer, "__init__", init)
    patches.set(_Reducer, "_rebuild_buckets", rebuild)
