"""Parameters that a program never writes: ``to_empty`` or ``torch.empty`` without an initialisation.

What ``empty`` and its kin give is marked at both ends, by a few bytes that nothing computes: as numbers of any format with a
point they are all but zero, and harm no program that reads such memory and makes no use of it. A parameter that still has both
marks when an optimizer makes its first step has not been written, and has a gradient, so it has been read: the run says so.
Only allocations take the time of marking, and only first steps that of looking.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import plain_of
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.tensors.placement import stored_in

_HALF = b"\xe5\x00"
_MARK = 8 * _HALF
_SEEN = 4 * _HALF
"""Of the mark: what is left of it in a copy of half the bits per number."""
_MARKED = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128})


def _ends(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The addresses of its first byte and of the one behind its last; None of what is not marked."""
    if (
        tensor.dtype not in _MARKED
        or tensor.layout is not torch.strided
        or tensor.is_meta
        or not tensor.is_contiguous()
    ):
        return None
    begin = tensor.data_ptr()
    return (begin, begin + tensor.nbytes) if begin and tensor.nbytes >= len(_MARK) else None


def marking(allocate: Callable[..., object]) -> Callable[..., Any]:
    """An operation that allocates, and marks what it gives."""

    def call(*args: object, **kwargs: object) -> Any:
        made = allocate(*args, **kwargs)
        if type(made) is torch.Tensor and (ends := _ends(made)) is not None:
            ctypes.memmove(ends[0], _MARK, len(_MARK))
            ctypes.memmove(ends[1] - len(_MARK), _MARK, len(_MARK))
        return made

    return call


def is_unwritten(tensor: torch.Tensor) -> bool:
    """Whether a tensor is as it was allocated."""
    ends = _ends(plain_of(tensor))
    if ends is None:
        return False
    return ctypes.string_at(ends[0], len(_SEEN)) == ctypes.string_at(ends[1] - len(_SEEN), len(_SEEN)) == _SEEN


def remark_on(
    simulation: Simulation,
    optimizer: torch.optim.Optimizer,
    buffers: Iterable[tuple[str, torch.Tensor]],
    name: Callable[[Any], str | None],
) -> None:
    """Say which parameters, of which an optimizer is about to make its first step, and which buffers have not been written.

    Args:
        buffers: of modules, by name.
        name: of the module that has a parameter; None: none has it.
    """
    if not simulation.engine.enable_data:
        return
    found = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and any(map(is_unwritten, stored_in(parameter))):
                found.append(f"a parameter of {name(parameter) or 'no module'} ({_described(parameter)})")
    unwritten = [(path, buffer) for path, buffer in buffers if any(map(is_unwritten, stored_in(buffer)))]
    found += sorted(f"buffer {path} ({_described(buffer)})" for path, buffer in unwritten)
    if not found:
        return
    others = "" if len(found) == 1 else f" and {len(found) - 1} more"
    simulation.remarks.setdefault(
        f"never written when the optimizer made its first step: {found[0]}{others}; the model has computed with what was in "
        "that memory. Initialise what torch.empty or to_empty has made (--races finds each look at such memory)"
    )


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
