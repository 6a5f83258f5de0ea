"""Errors of the CUDA runtime, as torch raises them: ``torch.AcceleratorError``, with what torch writes below the first line."""

from __future__ import annotations

import torch

from kernbench.errors import KernbenchError

_CODES = {
    "invalid device ordinal": (101, "GPU device may be out of range, do you have enough GPUs?\n"),
    "invalid resource handle": (400, "Search for `cudaErrorInvalidResourceHandle'"),
    "device not ready": (600, "Search for `cudaErrorNotReady'"),
    "device-side assert triggered": (710, "Search for `cudaErrorAssert'"),
    "operation not permitted when stream is capturing": (900, "Search for `cudaErrorStreamCaptureUnsupported'"),
    "operation failed due to a previous error during capture": (901, "Search for `cudaErrorStreamCaptureInvalidated'"),
    "capturing stream has unjoined work": (904, "Search for `cudaErrorStreamCaptureUnjoined'"),
    "dependency created on uncaptured work in another stream": (905, "Search for `cudaErrorStreamCaptureIsolation'"),
    "operation would make the legacy stream depend on a capturing blocking stream": (
        906, "Search for `cudaErrorStreamCaptureImplicit'",
    ),
    "operation not permitted on an event last recorded in a capturing stream": (907, "Search for `cudaErrorCapturedEvent'"),
}  # fmt: skip
"""What CUDA says, with its number and what torch adds."""

_PAGE = " in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
_REST = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def cuda_error(words: str, here: str = "") -> torch.AcceleratorError:
    """The error that torch raises when CUDA says ``words``.

    Args:
        here: what a simulation knows besides: the last line of the message.
    """
    code, hint = _CODES[words]
    hint = hint if hint.endswith("\n") else hint + _PAGE
    error = torch.AcceleratorError(f"CUDA error: {words}\n{hint}{_REST}{here}")
    error.error_code = code  # type: ignore[attr-defined]
    return error


class DeviceAssertError(KernbenchError, torch.AcceleratorError):
    """A kernel on a GPU has met a value that it does not permit: an index out of bounds, say. Raised where it is launched.

    On hardware the launch returns, the kernel stops the GPU's context, and the next call that looks at the GPU raises
    ``torch.AcceleratorError``, wherever the program is by then. So this is one, and no ``IndexError``: no program meets that.
    """

    error_code = _CODES["device-side assert triggered"][0]
