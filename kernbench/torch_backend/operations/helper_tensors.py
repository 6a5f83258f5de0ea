"""Tensors that C++ makes for itself within one call of the program: on hardware they are on the GPU of what it was given.

``F.one_hot`` makes zeros "where its operand is" and writes ones into them. C++ takes tensors of simulated GPUs for the CPU's
(ADR 0041), so those zeros look like some that the program has made on the host, and mixing them with tensors of a GPU like its
mistake. What distinguishes them is the program's position: a tensor that was made, of shapes or of such tensors, in the same
instruction of the same frames in which it is used cannot have been in the program's hands.
"""

from __future__ import annotations

import dis
import sys
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import listed_tensors, made_tensors
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, block_of
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.relies_on import Reliance

_MADE = "kernbench_made_at"
_storage: Any = torch._C.TensorBase.untyped_storage

RELIES_ON = (
    Reliance("sys._getframe", "the frames of the program, and in each the instruction that is being executed",
             holds=lambda getframe: getframe().f_lasti >= 0),
    Reliance("torch._C.TensorBase.untyped_storage", "its Python object, with attributes, lives as long as the storage"),
)  # fmt: skip

_STORE_SUBSCR = dis.opmap["STORE_SUBSCR"]


def position(seen_by: Any, traced_by: Any) -> int:
    """Where the program is: its frames, from the one that calls the innermost function with the code ``seen_by`` on, or of what
    the function with the code ``traced_by`` has a tracer see the outermost."""
    frame, parts, inside = sys._getframe(1), list[int](), True
    while frame is not None:
        if frame.f_code is traced_by:
            parts.clear()
            inside = True
        elif frame.f_code is seen_by:
            inside = False
        frame = frame.f_back  # type: ignore[assignment]
        if frame is not None and not inside:
            parts += (id(frame), frame.f_lasti)
    return hash(tuple(parts))


def is_by_indexing(seen_by: Any, name: str) -> bool:
    """Whether the program, which calls the innermost function with the code ``seen_by``, assigns to an index.

    It does so in this instruction, or it does not have the name of the function that is called.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not seen_by:
        frame = frame.f_back  # type: ignore[assignment]
    frame = frame.f_back  # type: ignore[assignment]
    code = frame.f_code
    return code.co_code[frame.f_lasti] == _STORE_SUBSCR or name not in code.co_names


def made_on_host(call: OperatorCall) -> list[torch.Tensor]:
    """The tensors that a call has given, if they are all of the host; else none."""
    result = call.result
    made = made_tensors(result)
    return made if all(map(_is_plain, made)) else []


def mark(call: OperatorCall, made: list[torch.Tensor], at: int) -> bool:
    """Note of what a call has made, of nothing or of what was made at the same position, where it was made.

    Returns whether it was.
    """
    given = [] if call.operator.shapes_only else listed_tensors((*call.args, *(call.kwargs or {}).values()))
    if not all(was_made_at(each, at) for each in given):
        return False
    for each in made:
        setattr(_storage(each), _MADE, at)
    return True


def was_made_at(tensor: torch.Tensor, at: int) -> bool:
    """Whether a tensor of the host was made at a position of the program."""
    return _is_plain(tensor) and getattr(_storage(tensor), _MADE, None) == at


def is_helper(device: RankDevice, tensor: torch.Tensor) -> bool:
    """Whether C++ has made a tensor of the host within the call of the program that is being carried out."""
    return device.doing.helpers_at is not None and was_made_at(tensor, device.doing.helpers_at)


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_meta and block_of(tensor) is None
