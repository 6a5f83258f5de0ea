"""What to do about an error that comes from what this machine lacks, where the error itself does not say it."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Sequence

from kernbench.errors import message_of, own_attribute
from kernbench.stand_ins import builds_kernels, loads_libraries, needs_cuda, stand_in_for

_TRITONS_CACHE = os.path.join("triton", "runtime", "cache")
_COMPILERS = re.compile(r"(?:.*/)?(?:\w+-)*(?:cc|gcc|g\+\+|c\+\+|clang|clang\+\+)(?:-[\d.]+)?")


def _no_cache(error: BaseException, files: Sequence[str]) -> str | None:
    if isinstance(error, OSError) and any(_TRITONS_CACHE in file for file in files):
        return "Triton keeps what it compiles in a folder that cannot be written: set TRITON_CACHE_DIR to one that can"
    return None


def _no_compiler(error: BaseException, files: Sequence[str]) -> str | None:
    named = str(getattr(error, "filename", None) or "")
    lacks = isinstance(error, FileNotFoundError) and _COMPILERS.fullmatch(named)
    if lacks or "Failed to find C compiler" in message_of(error):
        return "there is no C compiler: install one (apt-get install gcc, or dnf install gcc), or set CC to one"
    return None


def _no_program(error: BaseException, files: Sequence[str]) -> str | None:
    if isinstance(error, FileNotFoundError) and files and os.path.basename(files[-1]) == "subprocess.py":
        return f"the program {error.filename} is not there: install it, or put its folder on PATH"
    return None


def _no_processes(error: BaseException, files: Sequence[str]) -> str | None:
    if "can't start new thread" in message_of(error) or (
        isinstance(error, BlockingIOError) and files and os.path.basename(files[-1]) in _BEGIN_PROCESSES
    ):
        return "the system allows no more processes, of which each thread is one: allow more (ulimit -u)"
    return None


_BEGIN_PROCESSES = ("popen_fork.py", "popen_spawn_posix.py", "util.py", "subprocess.py")


def _no_gpu(error: BaseException, files: Sequence[str]) -> str | None:
    said = message_of(error)
    if "Torch not compiled with CUDA enabled" in said or (
        "Could not run 'aten::" in said and "the 'CUDA' backend" in said
    ):
        return (
            "there is no simulated GPU here: device='cuda' is for ranks (ctx.multiprocessing.spawn) and for what runs in a "
            "block of kernbench.simulated_gpu()"
        )
    return None


def _no_cuda_library(error: BaseException, files: Sequence[str]) -> str | None:
    if not isinstance(error, ImportError | OSError):
        return None
    said = message_of(error)
    what_to_do = needs_cuda(
        said, str(getattr(error, "path", None) or getattr(error, "name", None) or _outermost(files))
    )
    return None if what_to_do is None or what_to_do in said else what_to_do


def _no_libraries(error: BaseException, files: Sequence[str]) -> str | None:
    """Of a package that looks for its libraries itself, and says so in words of its own."""
    name = loads_libraries(files) if isinstance(error, RuntimeError | OSError) else None
    return None if name is None else f"{name} looks for CUDA's libraries: kernbench run --stand-in {name} has its own"


def _outermost(files: Sequence[str]) -> str:
    """The last file that belongs to an installed package which is not torch."""
    installed = [each for each in files if "site-packages" in each and "site-packages/torch/" not in each]
    return installed[-1] if installed else ""


def _no_cuda_compiler(error: BaseException, files: Sequence[str]) -> str | None:
    if any(file.endswith(os.path.join("torch", "utils", "cpp_extension.py")) for file in files) and (
        "CUDA_HOME" in message_of(error) or "nvcc" in message_of(error)
    ):
        name = builds_kernels(files)
        return "sources for CUDA cannot be built here, as there is no nvcc: " + (
            'give their operators a stand-in (docs/plugins.md, "How to add an operator"), or take the package\'s way without '
            "them"
            if name is None
            else f"kernbench run --stand-in {name} has some of its kernels (kernbench stand-ins lists them)"
        )
    return None


_ROWS: tuple[Callable[[BaseException, Sequence[str]], str | None], ...] = (
    _no_cache, _no_compiler, _no_program, _no_processes, _no_gpu, _no_cuda_library, _no_libraries, _no_cuda_compiler,
)  # fmt: skip
"""Each is given an error and the files of its frames, outermost first; the first that knows it is taken."""


def advice_for(error: BaseException) -> str | None:
    """A line that says what to do, also of an error that another was raised from; None where nothing is known.

    Of one that has come from another process, what :func:`tell_advice` has been given.
    """
    told = own_attribute(error, "__dict__").get(_ADVICE)
    if told is not None:
        return str(told)
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        files = [each.filename for each in traceback.extract_tb(cause.__traceback__)]
        for row in _ROWS:
            if found := row(cause, files):
                return found
        seen.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return stand_in_for(error)


def tell_advice(error: BaseException, advice: str) -> None:
    """Note what is known of an exception that has no traceback here, and not those that it was raised from."""
    if advice:
        own_attribute(error, "__dict__")[_ADVICE] = advice


_ADVICE = "_kernbench_advice"
