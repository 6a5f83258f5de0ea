"""What programs can query of the software that drives a simulated GPU: what torch 2.13 is built for."""

from __future__ import annotations

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
