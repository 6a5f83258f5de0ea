"""What torch allocates for cuBLAS and its like: a workspace per handle and stream, at the first product, for good.

Each thread that multiplies has a handle, the one of the backward pass among them. Sizes and rules are torch's
(aten/src/ATen/cuda/CublasHandlePool.cpp, of torch 2.11; an H100 with that version has them to the byte).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernbench.input_files import whole_number

KIB = 1 << 10

BLAS, LT = "blas", "lt"
"""Which library multiplies: cuBLAS, or cuBLASLt, whose calls take cuBLAS's handle, too."""

DNN, SOLVER, FFT = "dnn", "solver", "fft"
"""Libraries that have no workspace of this kind: cuDNN, cuSOLVER, cuFFT."""

NOT_IN_A_CAPTURE = {
    BLAS: "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    DNN: "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    SOLVER: "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
    FFT: "cuFFT error: CUFFT_INTERNAL_ERROR",
}
"""What the first call of a library says if it is in a CUDA graph's capture: a handle cannot be made there."""

LARGE = 32 << 20
"""Of Hopper and Blackwell, bytes; of AMD's devices, too, but for:"""
MI300 = 128 << 20
"""those of gfx94x and gfx95x."""
OTHER = 2 * 4096 * KIB + 8 * 16 * KIB
"""Of all others, as cuBLAS writes it: ``:4096:2:16:8``."""
LT_DEFAULT = 1024 * KIB
HIP_LT_DEFAULT = 76 * 1024 * KIB

_PART = re.compile(r":([0-9]+):([0-9]+)")


@dataclass(frozen=True)
class Workspaces:
    """Bytes of one workspace of each library.

    Attributes:
        blas: of cuBLAS.
        lt: of cuBLASLt; 0: it shares cuBLAS's.
    """

    blas: int
    lt: int

    @classmethod
    def of(cls, arch: int | str, environ: Mapping[str, str]) -> Workspaces:
        """Those of a process on a device of an architecture (90, ``"gfx942"``), as its environment has them:
        ``CUBLAS_WORKSPACE_CONFIG`` (pairs of KiB and count), ``CUBLASLT_WORKSPACE_SIZE`` (KiB) and
        ``TORCH_CUBLASLT_UNIFIED_WORKSPACE``; what cannot be read is as if it were not there."""
        hip = isinstance(arch, str)
        default = _default(arch)
        config = environ.get("CUBLAS_WORKSPACE_CONFIG")
        if hip:
            config = config or environ.get("HIPBLAS_WORKSPACE_CONFIG") or environ.get("ROCBLAS_WORKSPACE_CONFIG")
        parts = [(whole_number(size) or 0, whole_number(count) or 0) for size, count in _PART.findall(config or "")]
        blas = sum(size * KIB * count for size, count in parts) if parts else default
        if environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") in ("1", "true", "True", "TRUE") and not hip:
            return cls(blas, 0)
        size = environ.get("CUBLASLT_WORKSPACE_SIZE") or (environ.get("HIPBLASLT_WORKSPACE_SIZE") if hip else None)
        stated = whole_number(size or "")
        lt = stated * KIB if stated is not None else HIP_LT_DEFAULT if hip else LT_DEFAULT
        return cls(blas, lt)


def _default(arch: int | str) -> int:
    if isinstance(arch, str):
        return MI300 if arch.startswith(("gfx94", "gfx95")) else LARGE
    return LARGE if arch // 10 in (9, 10, 12) else OTHER
