"""What torch's process group of NCCL (and RCCL) checks before it calls the library, and what the library says of the rest.

Each check raises the class of error that torch raises, with its words first and what is wrong here behind them. A size that
only another rank contradicts is no business of these: NCCL compares none, and hangs or writes where it should not; the matcher
compares them all (:class:`~kernbench.errors.CollectiveMismatchError`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from kernbench.errors import CallError, KernbenchError
from kernbench.torch_backend.gpu.device.software_versions import NCCL


def all_gather(output: torch.Tensor, given: torch.Tensor) -> str:
    """Of one tensor for all ranks' parts. Gives what torch says first if their sizes do not fit."""
    if output.dtype is not given.dtype:
        raise TypeError(f"output tensor must have the same type as input tensor: {output.dtype} and {given.dtype}")
    return "output tensor size must be equal to world_size times input tensor size: "


def reduce_scatter(output: torch.Tensor, given: torch.Tensor) -> str:
    """Of one tensor with all ranks' parts. Gives what torch says first if their sizes do not fit."""
    if output.dtype is not given.dtype:
        raise TypeError(f"input tensor must be the same type as the output tensor. {given.dtype} and {output.dtype}")
    return "input tensor must be the same size as output size times world size: "


def rooted(op: str, what: str, own: torch.Tensor, parts: Sequence[torch.Tensor], size: int) -> None:
    """Of ``gather``'s outputs, or ``scatter``'s inputs, on the root."""
    group = f"ProcessGroupNCCL::{op}"
    if len(parts) != size:
        raise CallError(
            f"{group}: Incorrect {what} list size {len(parts)}. {what.capitalize()} list size should be {size}, same as size "
            f"of the process group.: {op}: expected {size} {what} tensors, one per rank, found {len(parts)}"
        )
    for at, part in enumerate(parts):
        if part.dtype is not own.dtype:
            kinds = (str(each.dtype).removeprefix("torch.") for each in (own, part))
            raise TypeError(f"{group}: invalid tensor type at index {at} (expected {', got '.join(kinds)})")
        if part.shape != own.shape:
            sizes = [part.numel() for part in parts]
            raise CallError(
                f"{group}: invalid tensor size at index {at} (expected ({_written(own)}), got ({_written(part)})): {op}: "
                f"{what} tensors have {sizes} elements, expected {own.numel()} each"
            )


def _written(tensor: torch.Tensor) -> str:
    return ", ".join(map(str, tensor.shape))


def split_words(wrong_count: bool, given: bool) -> str:
    """What torch says first of split sizes that do not fit: there are too many, or their sum is wrong; or of none."""
    if not given:
        return "Tensor's dim 0 does not divide equally across group size: "
    return (
        "Number of tensor splits not equal to group size: "
        if wrong_count
        else "Split sizes doesn't match total dim 0 size: "
    )


def refused_by_the_library(what: str) -> Any:
    """The error of an argument that NCCL itself refuses."""
    version = ".".join(map(str, NCCL))
    return dist.DistBackendError(
        f"NCCL error in: invalid argument (run with NCCL_DEBUG=WARN for details), NCCL version {version}\n{what}"
    )


def member(op: str, rank: int, size: int) -> None:
    """Of a root's, or a peer's, number in the group. Raises ``torch.distributed.DistBackendError`` if there is none."""
    if not 0 <= rank < size:
        raise refused_by_the_library(f"{op}: there is no rank {rank} in a group of {size}")


def root(op: str, rank: int, size: int) -> None:
    """Of a root's number in the group: torch looks at it itself where NCCL has no such operation, and raises ValueError."""
    if op in ("gather", "scatter"):
        raise ValueError(f"ProcessGroupNCCL::{op}: invalid root rank: {rank}")
    member(op, rank, size)


def from_any() -> None:
    """Of a receive that names no source."""
    raise NotImplementedError(
        "ProcessGroupNCCL does not support recvAnysource: name the source, or use a group of gloo for tensors of the host"
    )


SPARSE = "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead."
"""torch's words; gloo adds such tensors up."""


class DuplicateGpuError(KernbenchError, dist.DistBackendError):
    """Two members of a group of NCCL's use one GPU, which NCCL calls an invalid usage."""


def ended(rank: int, why: str) -> Callable[..., Any]:
    """What a group does with a call after its communicator has been ended, in ``rank`` of it; ``why``: a sentence."""

    def refuse(*args: object, **kwargs: object) -> Any:
        raise dist.DistBackendError(f"NCCL communicator was aborted on rank {rank}. {why}: make another one")

    return refuse
