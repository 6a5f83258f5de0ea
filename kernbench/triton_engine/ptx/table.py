"""The table of instructions and the decorator that fills it."""

from __future__ import annotations

from collections.abc import Callable

from .parse import Instruction
from .state import State

Handler = Callable[[State, Instruction], None]

#: Opcode: what executes it.
INSTRUCTIONS: dict[str, Handler] = {}


def instruction(*opcodes: str) -> Callable[[Handler], Handler]:
    """Register what executes ``opcodes``."""

    def register(handler: Handler) -> Handler:
        INSTRUCTIONS.update(dict.fromkeys(opcodes, handler))
        return handler

    return register
