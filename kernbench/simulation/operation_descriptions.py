"""What a report shows of each operation besides its times: the lines of the program that led to it, shapes, FLOPs.

This costs only if requested: walking the stack takes longer than recording an operation. A request
(``Simulation.describe_operations``) notes it in the operations' ``detail``: ``stack``, lines and modules from the outermost
call inwards; ``shapes``, of tensors read and written; ``flops``, where they are counted. Ranks that are processes of their own
send operations without any of these.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.ranks.locations import is_pythons, is_users

STACK, SHAPES, FLOPS = "stack", "shapes", "flops"
"""Keys of ``detail``."""

_DEEPEST = 48
_MOST_TENSORS = 6


class Descriptions:
    """Describes operations where they are enqueued. What is described alike shares one dictionary, which may not be changed."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int, type | None], tuple[CodeType, str]] = {}
        self._stacks: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._details: dict[tuple[object, ...], dict[str, Any]] = {}
        self._tensors: dict[tuple[Any, Any], str] = {}

    def place(self, op: Operation) -> None:
        """Note which lines of the program led here."""
        stack = self._stack(sys._getframe(1))
        if not stack:
            return
        if op.detail is None:
            op.detail = self._shared(stack, "", 0)
        else:
            op.detail = {**op.detail, STACK: stack}

    def record(
        self, op: Operation, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], flops: int
    ) -> None:
        """Note what an operation of torch reads and writes, and how many FLOPs it is."""
        stack = (op.detail or {}).get(STACK, ())
        op.detail = self._shared(stack, f"{self._list(inputs)} -> {self._list(outputs)}", flops)

    def posted(self, op: Operation, shapes: Sequence[tuple[int, ...]]) -> None:
        """Note where a collective or a message was called, and of which shapes."""
        self.place(op)
        if shapes:
            op.detail = {**(op.detail or {}), SHAPES: _joined([str(list(shape)) for shape in shapes])}

    def _shared(self, stack: tuple[str, ...], shapes: str, flops: int) -> dict[str, object]:
        key = stack, shapes, flops
        found = self._details.get(key)
        if found is None:
            given = {STACK: stack, SHAPES: shapes, FLOPS: flops}
            found = self._details[key] = {name: value for name, value in given.items() if value}
        return found

    def _list(self, tensors: Sequence[torch.Tensor]) -> str:
        parts = []
        for tensor in tensors[: _MOST_TENSORS + 1]:
            key = tensor.shape, tensor.dtype
            found = self._tensors.get(key)
            if found is None:
                dtype = str(tensor.dtype).removeprefix("torch.")
                found = self._tensors[key] = f"{dtype}[{', '.join(map(str, tensor.shape))}]"
            parts.append(found)
        return _joined(parts, len(tensors))

    def _stack(self, frame: FrameType | None) -> tuple[str, ...]:
        parts: list[str] = []
        while frame is not None and len(parts) < _DEEPEST:
            part = self._part(frame)
            if part:
                parts.append(part)
            if _is_program(frame):  # further out is what has started it
                break
            frame = frame.f_back
        stack = tuple(reversed(parts))
        return self._stacks.setdefault(stack, stack)

    def _part(self, frame: FrameType) -> str:
        """A line of the program, or a module of torch's that it calls; empty for all else."""
        code = frame.f_code
        module: type | None = None
        if code.co_name == "forward" and code.co_varnames[:1] == ("self",):
            mine = frame.f_locals.get("self")
            module = type(mine) if isinstance(mine, torch.nn.Module) else None
        key = id(code), frame.f_lasti, module
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = code, _words(code, frame.f_lineno, module)
        return known[1]


def _is_program(frame: FrameType) -> bool:
    """Whether it executes a program's script."""
    return frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"


def _words(code: CodeType, line: int, module: type | None) -> str:
    file = code.co_filename
    name = code.co_name if module is None else f"{module.__name__}.{code.co_name}"
    if is_users(file) and not is_pythons(file):
        return f"{file}:{line} in {name}"
    return "" if module is None else module.__name__


def _joined(parts: Sequence[str], count: int | None = None) -> str:
    more = (len(parts) if count is None else count) - _MOST_TENSORS
    return ", ".join(parts[:_MOST_TENSORS]) + (f" and {more} more" if more > 0 else "")


class DescribedLog(OpLog):
    """A log that has operations described when they are added; collectives are when they are posted.

    Args:
        log: whose place it takes, with all that is in it.
        descriptions: describe.
    """

    def __init__(self, log: OpLog, descriptions: Descriptions) -> None:
        vars(self).update(vars(log))
        self._descriptions = descriptions

    def add(self, op: Operation) -> None:
        """Note an operation that has been enqueued."""
        if op.rank is not None and op.kind != "collective":
            self._descriptions.place(op)
        super().add(op)
