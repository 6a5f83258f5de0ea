"""What finalizers raise, and whatever else Python can only print.

What a program leaves behind is collected when Python gets to it, often after its rank; a ``__del__`` that synchronizes then
finds torch without a GPU. That is no error of the program's, and Python would print a traceback for each: they are dropped.
So is the end of a rank that reaches it in one. The rest is shown as errors of programs are, without the simulator's frames.
"""

from __future__ import annotations

import sys
import traceback
from functools import cache
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.own_files import is_own
from kernbench.scheduler import user_traceback
from kernbench.torch_backend.gpu.device.devices import ENDED
from kernbench.torch_backend.relies_on import Reliance

NO_GPU = (
    "Torch not compiled with CUDA enabled",  # torch.cuda, in a build for CPUs
    "Cannot access accelerator device when none is available",  # torch.accelerator, there
    "Found no NVIDIA driver on your system",  # both, in a build for CUDA
    "No CUDA GPUs are available",  # there, where the environment hides the GPUs, or a driver has none
    "Backend doesn't support synchronizing all streams on device",  # there, once a tensor has said that it is on a GPU
)
"""How torch says that there is no GPU."""


def _says_so(call: Any) -> bool:
    try:
        call()
    except (AssertionError, RuntimeError) as error:
        if not str(error).startswith(NO_GPU):
            raise
    return True


RELIES_ON = (
    Reliance("torch.cuda.synchronize", "without a GPU it raises what is dropped of finalizers", holds=_says_so),
    Reliance("torch.accelerator.synchronize", "the same", holds=_says_so),
)


@cache
def expect() -> None:
    """From now on, until this process ends, drop them."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        late = isinstance(error, AssertionError | RuntimeError | KernbenchError)
        if late and str(error).startswith((*NO_GPU, ENDED)):
            return
        frames = [each.f_code.co_filename for each, _ in traceback.walk_tb(unraisable.exc_traceback)]
        if not any(map(is_own, frames)) or before is not sys.__unraisablehook__:
            before(unraisable)
        elif not (isinstance(error, SystemExit) and is_own(frames[-1])):
            try:
                said = f"{unraisable.err_msg or 'Exception ignored in'}: {unraisable.object!r}\n{user_traceback(error)}"
                sys.stderr.write(said)
            except Exception:  # a repr that raises, a stream that is closed
                before(unraisable)

    sys.unraisablehook = hook
