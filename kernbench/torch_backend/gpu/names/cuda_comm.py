"""What one process does over several GPUs: ``torch.cuda.comm``, on which ``torch.nn.DataParallel`` stands.

A build of torch without CUDA lacks the functions of ``torch._C`` that copy to and from several GPUs. Here they are copies
between simulated GPUs, one after the other, as torch's own are where NCCL does not do them. So are those of
``torch.cuda.nccl``, which takes the tensors of several GPUs of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from kernbench.errors import KernbenchError
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance, fit

_NAMES = {
    "scatter": ("_scatter", "_scatter_out"),
    "gather": ("_gather", "_gather_out"),
    "broadcast": ("_broadcast", "_broadcast_out"),
    "broadcast_coalesced": ("_broadcast_coalesced",),
}

_OF_NCCL = ("_nccl_all_reduce", "_nccl_reduce", "_nccl_broadcast", "_nccl_all_gather", "_nccl_reduce_scatter",
            "_nccl_unique_id", "_nccl_init_rank")  # fmt: skip


def _calls_them(comm: object) -> bool:
    return all({*wanted} <= {*getattr(comm, name).__code__.co_names} for name, wanted in _NAMES.items())


def _calls_nccl(nccl: Any) -> bool:
    return fit({name: globals()[name] for name in _OF_NCCL})(nccl)


RELIES_ON = (
    Reliance("torch._C", "names are given to it that builds without CUDA lack"),
    Reliance("torch.nn.parallel.comm", "its functions call these names of torch._C", has=tuple(_NAMES), holds=_calls_them),
    Reliance("torch.cuda.nccl", "what it calls in C++ takes here what it gives", holds=_calls_nccl),
    Reliance("torch.cuda.nccl.is_available", "sums over GPUs are additions where it says no", parameters=("tensors",)),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Give torch copies to and from several GPUs."""
    for functions in _NAMES.values():
        for name in functions:
            patches.add(torch._C, name, globals()[name])
    for name in _OF_NCCL:
        patches.add(torch._C, name, globals()[name])
    patches.set(torch.cuda.nccl, "is_available", lambda tensors: False)


def _on(index: int) -> torch.device:
    return torch.device("cpu") if index == -1 else torch.device("cuda", index)


def _scatter(
    tensor: Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, streams: Sequence[Any] | None
) -> list[Tensor]:
    """The parts of ``tensor`` along ``dim``, one on each GPU; on ``streams`` where there are. Raises RuntimeError, as torch
    does, without a GPU, or if there are not as many sizes."""
    _require(bool(devices), "Expected at least one device to scatter to")
    if chunk_sizes:
        _require(
            len(chunk_sizes) == len(devices),
            f"Expected devices and chunk_sizes to be of same length, but got len(devices) = {len(devices)} and "
            f"len(chunk_sizes) = {len(chunk_sizes)}",
        )
    chunks = tensor.split(list(chunk_sizes), dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    out = []
    for place, (chunk, device) in enumerate(zip(chunks, devices, strict=False)):
        stream = streams[place] if streams else None
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            out.append(chunk.to(_on(device), non_blocking=True))
    return out


def _scatter_out(tensor: Tensor, out: Sequence[Tensor], dim: int, streams: Sequence[object] | None) -> list[Tensor]:
    """The same into tensors that there are. Raises RuntimeError, as torch does, if they are not those parts."""
    _require(bool(out), "Expected at least one output tensor to scatter to")
    _require_gpus(out, "output")
    wanted, along = _but(tensor, dim), 0
    for place, part in enumerate(out):
        _require(
            part.dim() == tensor.dim() and _but(part, dim) == wanted,
            f"Output tensor at index {place} has incorrect shape: {[*part.shape]}",
        )
        along += part.shape[dim]
    _require(
        along == tensor.shape[dim],
        f"Total size for output tensors along scatter dim {dim % tensor.dim()} does not match the input size along dim "
        f"{dim % tensor.dim()}: {tensor.shape[dim]}, got {along}",
    )
    for part, chunk in zip(out, tensor.split([part.shape[dim] for part in out], dim), strict=True):
        part.copy_(chunk, non_blocking=True)
    return list(out)


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    """All parts along ``dim``, on one GPU (None: the current one) or on the host (-1). Raises RuntimeError, as torch does, if
    one is on the host, or does not fit the others."""
    _require(bool(tensors), "Expected at least one tensor to gather from")
    _require_gpus(tensors, "input")
    first = tensors[0]
    for place, tensor in enumerate(tensors):
        _require(
            tensor.dim() == first.dim(),
            f"Expected all input tensors to have the same number of dimensions, but tensor at index {place} has "
            f"{tensor.dim()} dimensions, (expected {first.dim()})",
        )
        _require(
            _but(tensor, dim) == _but(first, dim),
            f"Input tensor at index {place} has invalid shape {[*tensor.shape]}, but expected {[*first.shape]}, but for dim "
            f"{dim}",
        )
    device = _on(torch.cuda.current_device() if destination is None else destination)
    goes_on = device.type == "cuda"  # what comes to the host is not pinned: it is waited for
    return torch.cat([tensor.to(device, non_blocking=goes_on) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    gathered = _gather(tensors, dim, out.device.index if out.is_cuda else -1)
    _require(
        out.shape == gathered.shape,
        f"Expected out tensor to have shape {[*gathered.shape]}, but got {[*out.shape]}",
    )
    return out.copy_(gathered)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    """``tensor`` on each GPU; where it is, itself."""
    return [tensor.to(_on(device), non_blocking=True) for device in devices]


def _broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    """The same into tensors that there are. Raises RuntimeError, as torch does, of one on the host, or of another shape."""
    _require_gpus(out, "output")
    for place, copy in enumerate(out):
        _require(
            copy.shape == tensor.shape,
            f"Expected all output tensors to have same shape as the source tensor with size {[*tensor.shape]}, but output "
            f"tensor at index {place} has shape {[*copy.shape]}",
        )
        copy.copy_(tensor, non_blocking=True)
    return list(out)


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> list[list[Tensor]]:
    """All of ``tensors`` on each GPU, copied together, one copy to each per type; where they are, themselves.

    ``buffer_size``, bytes of one copy, is taken to be enough. Sparse tensors are copied one by one.
    """
    out: list[list[Tensor]] = [list(tensors), *([*tensors] for _ in devices[1:])]
    packs: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor.layout is torch.strided:
            packs.setdefault(tensor.dtype, []).append(place)
        else:
            for copies, device in zip(out[1:], devices[1:], strict=True):
                copies[place] = tensor.to(_on(device), non_blocking=True)
    for places in packs.values():
        packed = torch.cat([tensors[place].reshape(-1) for place in places])
        for copies, device in zip(out[1:], devices[1:], strict=True):
            parts = packed.to(_on(device), non_blocking=True).split([tensors[place].numel() for place in places])
            for place, part in zip(places, parts, strict=True):
                copies[place] = part.view(tensors[place].shape).data  # each has a version of its own
    return out


def _but(tensor: Tensor, dim: int) -> list[int]:
    """The sizes of a tensor, without that of a dimension."""
    sizes = list(tensor.shape)
    del sizes[dim]
    return sizes


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise RuntimeError(words)


def _require_gpus(tensors: Sequence[Tensor], kind: str) -> None:
    """Raise RuntimeError if one is on the host."""
    for place, tensor in enumerate(tensors):
        _require(
            tensor.is_cuda,
            f"Expected all {kind} tensors to be CUDA tensors, but {'output ' if kind == 'output' else ''}tensor at index "
            f"{place} has device '{tensor.device}'",
        )


# -- torch.cuda.nccl ---------------------------------------------------------------------------------------------------

_SUM, _PRODUCT, _MAX, _MIN, _MEAN = range(5)
"""NCCL's reductions, by their numbers."""

_REDUCTIONS: dict[int, Any] = {
    _SUM: torch.add, _PRODUCT: torch.mul, _MAX: torch.maximum, _MIN: torch.minimum, _MEAN: torch.add,
}  # fmt: skip


def _reduced(inputs: Sequence[Tensor], op: int, device: torch.device) -> Tensor:
    total = inputs[0].to(device, non_blocking=True)
    for each in inputs[1:]:
        total = _REDUCTIONS[op](total, each.to(device, non_blocking=True))
    return total / len(inputs) if op == _MEAN else total


def _nccl_reduce(
    inputs: Sequence[Tensor], output: Tensor, root: int, op: int, streams: object = None, comms: object = None
) -> None:
    output.copy_(_reduced(inputs, op, output.device))


def _nccl_all_reduce(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], op: int, streams: object = None, comms: object = None
) -> None:
    _nccl_reduce(inputs, outputs[0], 0, op)
    _broadcast_out(outputs[0], outputs[1:])


def _nccl_broadcast(inputs: Sequence[Tensor], root: int, streams: object = None, comms: object = None) -> None:
    _broadcast_out(inputs[root], [each for place, each in enumerate(inputs) if place != root])


def _nccl_all_gather(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], streams: object = None, comms: object = None
) -> None:
    for out in outputs:
        for place, part in zip(out.view(-1).chunk(len(inputs)), inputs, strict=True):
            place.copy_(part.reshape(-1), non_blocking=True)


def _nccl_reduce_scatter(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], op: int, streams: object = None, comms: object = None
) -> None:
    parts = [each.reshape(-1).chunk(len(inputs)) for each in inputs]
    for place, out in enumerate(outputs):
        out.copy_(_reduced([of_one[place] for of_one in parts], op, out.device).view(out.shape))


def _nccl_unique_id() -> bytes:
    """One that no communicator is made with."""
    return bytes(128)


def _nccl_init_rank(num_ranks: int, uid: bytes, rank: int) -> None:
    raise KernbenchError(
        "torch.cuda.nccl.init_rank: communicators of NCCL's own interface are not simulated. Use torch.distributed with the "
        "backend nccl"
    )
