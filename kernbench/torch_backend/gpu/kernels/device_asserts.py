"""Values that a kernel on a GPU does not permit: indices out of bounds, targets that are no class, probabilities above one.

The CPU's kernels raise ``IndexError`` or ``RuntimeError`` at the call. CUDA's assert on the device: the call returns, and what
fails is whatever looks at the GPU next. Here the call raises, but what hardware raises, with what it does not say: which
operator, which value, which bound, and where (:class:`~kernbench.simulation.ranks.accelerator_errors.DeviceAssertError`).
"""

from __future__ import annotations

import re
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.simulation.ranks.accelerator_errors import DeviceAssertError
from kernbench.simulation.ranks.locations import user_location
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.relies_on import Reliance

_numbers: Any = torch._C.TensorBase.tolist


def _says_which(embedding: Any) -> bool:
    try:
        embedding(torch.ones(3, 2), torch.tensor([9]))
    except IndexError as error:
        return _BY_VALUE.search(str(error)) is not None
    return False


_BY_VALUE = re.compile(
    r"index (-?\d+) is out of bounds for dimension \d+ with size \d+"
    r"|index out of range in self"
    r"|Target (-?\d+) is out of bounds"
    r"|tried to access index (-?\d+) on a tensor of \d+ elements"
    r"|takes value (-?\d+) which is not in the valid range"
    r"|target out of range"
    r"|argument target is out of range"
    r"|all elements of (input|target) should be between 0 and 1"
    r"|Expected p_in >= 0 && p_in <= 1"
    r"|probability tensor contains either `inf`, `nan` or element < 0"
    r"|invalid multinomial distribution"
    r"|Found an invalid max index"
)
"""What the CPU's kernels say of values. What they say of shapes and numbers, both kinds of device check at the call."""

RELIES_ON = (
    Reliance("torch.ops.aten.embedding.default", "the CPU's kernel says what CUDA's asserts", holds=_says_which),
    Reliance("torch._C.TensorBase.tolist", "the values of a tensor, which is no look of the program's"),
)  # fmt: skip


def explain_assert(error: Exception, name: str, args: Any, kwargs: Any) -> None:
    """Say what an operator's kernel on a GPU would have asserted, if that is what its kernel for the CPU says: raises
    :class:`DeviceAssertError` then."""
    said = str(error).partition("\n")[0]
    if not _BY_VALUE.search(said):
        return
    tensors = listed_tensors((*args, *(kwargs or {}).values()))
    if all(block_of(each) is None for each in tensors):
        return
    given = ", ".join(f"{list(each.shape)} {str(each.dtype).removeprefix('torch.')}" for each in tensors)
    raise DeviceAssertError(
        f"CUDA error: device-side assert triggered\n{name} of {given}, at {user_location()}: {said}{_bounds(name, args)}\n"
        "On hardware this call returns, the kernel stops the GPU, and the next call that looks at it fails, wherever the "
        "program is by then; CUDA_LAUNCH_BLOCKING=1 is there to find out what is said here."
    ) from error


def _bounds(name: str, args: Any) -> str:
    """Which value is out of which bounds, of the two operators whose kernels for the CPU do not say it."""
    if name == "embedding":
        bound, indices = args[0].shape[0], args[1]
    elif name == "index_select" and args[0].dim():
        bound, indices = args[0].shape[args[1]], args[2]
    else:
        return ""
    wrong = next((each for each in _numbers(indices.flatten()) if not 0 <= each < bound), None)
    return "" if wrong is None else f": {wrong}, of {bound}"
