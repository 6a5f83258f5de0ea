"""What programs can query of the software that drives a simulated GPU: what torch 2.13 is built for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # processes of a program that are no ranks do without systems
    from kernbench.topology import Topology

DRIVER = "580.65.06"
CUDA = (13, 0)
"""The newest CUDA that the driver serves."""

NCCL = (2, 27, 7)
"""Torch's own error messages speak of it, too: what it offers torch 2.13 is there."""

CUDNN = 91900
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
"""What a build of torch for this CUDA has kernels for: read off torch 2.11."""


def nccl_version() -> tuple[int, int, int]:
    """``torch.cuda.nccl.version``."""
    return NCCL


def cuda_version(topology: Topology) -> str | None:
    """What ``torch.version.cuda`` says beside these GPUs: none beside AMD's."""
    return ".".join(map(str, CUDA)) if topology.device.target.backend == "cuda" else None


def architectures(topology: Topology) -> list[str]:
    """``torch.cuda.get_arch_list``: what a build of torch for such a GPU has kernels for."""
    target = topology.device.target
    if target.backend == "cuda":
        return list(ARCHITECTURES)
    return [str(target.arch)] if target.backend == "hip" else []
