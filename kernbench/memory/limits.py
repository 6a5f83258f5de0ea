"""How much memory there is for programs: a device's, less what CUDA and its libraries take."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20

CUDA_CONTEXT = 755 * MIB
"""Bytes that a process has on its device besides what is below: context, and kernels of the libraries it uses. What 1.06 GB
leave, which were in use on an H100 with a communicator of eight ranks (NCCL issue 1685). UNVERIFIED for other devices; a
process that has only begun has less: torch's message shows 386 MiB on an RTX 4090 (torch 2.10, nothing allocated yet)."""

NCCL_CONNECTION = 14 * MIB
"""Bytes of buffers per channel and connected peer. NCCL's log of allocations on H100 (NCCL issue 1685) shows such of 10485760
and of 2097152 bytes; 7 peers x 32 channels took 3.28 GB, which is 14.0 MiB each: one of the former, two of the latter."""

NCCL_RING_CHANNELS = 16
"""Channels that a communicator connects for rings, each with one peer: NCCL's logs on nodes of eight H100 (issues 1357, 1453).
Those of trees and of the switch, and of point-to-point calls, are not counted."""


@dataclass
class Overhead:
    """What a process has on a device besides its tensors: stated figures, not measured on the device.

    Attributes:
        parts: bytes by what it is.
    """

    parts: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(self.parts.values())

    def add(self, name: str, nbytes: int) -> None:
        """Count more of something."""
        self.parts[name] = self.parts.get(name, 0) + nbytes


def process_overhead(arch: int | str) -> Overhead:
    """What a process takes as soon as it uses a device of an architecture (90, ``"gfx942"``)."""
    return Overhead({f"{platform_of(arch)} context": CUDA_CONTEXT})


def platform_of(arch: int | str) -> str:
    """What torch calls the platform of an architecture: NVIDIA's are numbers, AMD's are names."""
    return "CUDA" if isinstance(arch, int) else "HIP"


def format_size(nbytes: int) -> str:
    """As torch writes sizes in its messages (c10/core/CachingDeviceAllocator, ``format_size``)."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes > unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"


_EXABYTE = 1 << 60


def out_of_memory_message(
    *, wanted: int, device: int, capacity: int, free: int, mine: int, others: dict[int, int], allowed: int | None,
    allocated: int, reserved: int, platform: str = "CUDA",
) -> str:  # fmt: skip
    """The message of torch 2.13 (c10/cuda/CUDACachingAllocator.cpp).

    Args:
        wanted: bytes of the segment that there is no room for.
        device: its number.
        capacity, free: of the device, bytes.
        mine, others: bytes that this process has there, tensors and all else, and others, by their number.
        allowed: what this process may reserve, None: all.
        allocated, reserved: by this process's allocator, bytes.
        platform: ``"CUDA"`` or ``"HIP"``.
    """
    if wanted > _EXABYTE:
        return f"{platform} out of memory. Tried to allocate more than 1EB memory."
    processes = "".join(f"Process {pid} has {format_size(used)} memory in use. " for pid, used in others.items())
    return (
        f"{platform} out of memory. Tried to allocate {format_size(wanted)}. GPU {device} has a total capacity of "
        f"{format_size(capacity)} of which {format_size(free)} is free. {processes}Including non-PyTorch memory, this "
        f"process has {format_size(mine)} memory in use. "
        f"{'' if allowed is None else f'{format_size(allowed)} allowed; '}Of the allocated memory {format_size(allocated)} "
        f"is allocated by PyTorch, and {format_size(reserved - allocated)} is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )
