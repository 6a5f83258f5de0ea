"""Where DDP's reducer has its buckets: C++ makes them where it takes the parameters to be, and to it a GPU's are on the host.

What it makes of their type while it is built, or builds its buckets again, is made on the GPU of its parameters instead, as any
tensor of the program: counted there, and without data of address space alone. The lists of numbers by which reducers agree on
the order of buckets stay on the host, where C++ reads and writes them.

Its buckets for a broadcast of parameters and buffers are by device, too: those on the host are not joined with a GPU's.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.device.gradient_streams import note_kept_leaf
from kernbench.torch_backend.gpu.memory.memory_owners import claim_communication
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_Reducer: Any = dist.Reducer
_stock_init, _stock_rebuild = _Reducer.__init__, _Reducer._rebuild_buckets
_BROADCAST = "_broadcast_coalesced"
_EMPTY = torch.ops.aten.empty.memory_format

RELIES_ON = (
    Reliance("torch.distributed.Reducer", "its buckets are made when it is", has=("__init__",), looked_up_by=(
        "torch.nn.parallel.DistributedDataParallel._ddp_init_helper",
    )),
    Reliance(f"torch.distributed.{_BROADCAST}", "parameters and buffers are broadcast by it, in buckets that C++ makes",
             looked_up_by=("torch.distributed.utils._sync_params_and_buffers",)),
    Reliance("torch.distributed.Reducer._rebuild_buckets", "and once it knows their order", looked_up_by=(
        "torch.nn.parallel.DistributedDataParallel._pre_forward",
    )),
    Reliance("torch.utils._python_dispatch.TorchDispatchMode", "it sees what C++ makes, too", subclassed=True),
)  # fmt: skip


def _by_device(stock: Callable[..., None]) -> Callable[..., None]:
    """``_broadcast_coalesced`` of the tensors of each device by themselves."""

    @functools.wraps(stock)
    def each_by_itself(group: object, tensors: Sequence[torch.Tensor], buffer_size: int, src: int = 0) -> None:
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for each in tensors:
            by_device.setdefault(each.device, []).append(each)
        for some in by_device.values():
            stock(group, some, buffer_size, src)

    return each_by_itself  # pybind11 takes a caller `broadcast(group)` for the method of the group, and calls C++'s


class _OnGpu(TorchDispatchMode):
    """Memory of some types that is asked for on the host is on a GPU, for the length of a block."""

    def __init__(self, device: torch.device, types: frozenset[torch.dtype]) -> None:
        super().__init__()
        self._device = device
        self._types = types

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on_host = torch.device(kwargs.get("device") or "cpu").type == "cpu"
        if func is _EMPTY and on_host and kwargs.get("dtype") in self._types:
            bucket = func(*args, **{**kwargs, "device": self._device})
            claim_communication((bucket,))
            return bucket
        return func(*args, **kwargs)


def install(patches: Patches) -> None:
    """Put the buckets of reducers where their parameters are."""
    made_on: weakref.WeakKeyDictionary[object, _OnGpu] = weakref.WeakKeyDictionary()

    @functools.wraps(_stock_init)
    def init(reducer: object, params: Sequence[torch.Tensor], *args: object, **kwargs: object) -> None:
        mine = current_device()
        if not params or mine is None or block_of(params[0]) is None:
            _stock_init(reducer, params, *args, **kwargs)
            return
        on_gpu = _OnGpu(params[0].device, frozenset([each.dtype for each in params]))
        with on_gpu:
            _stock_init(reducer, params, *args, **kwargs)
        made_on[reducer] = on_gpu
        for each in params:
            note_kept_leaf(mine.stream_changes, each)

    @functools.wraps(_stock_rebuild)
    def rebuild(reducer: object) -> bool:
        with made_on.get(reducer) or nullcontext():
            return bool(_stock_rebuild(reducer))

    patches.set(dist, _BROADCAST, _by_device(getattr(dist, _BROADCAST)))
    patches.set(_Reducer, "__init__", init)
    patches.set(_Reducer, "_rebuild_buckets", rebuild)
