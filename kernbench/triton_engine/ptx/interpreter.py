"""Executes parsed PTX on arrays: one element per invocation, 64 bits per register.

Invocations that take different branches are distinguished by their program counters; the lowest runs first. When every
invocation that is left spins on memory that is unchanged, :class:`Stuck` carries the state out, and ``run``
continues from it later.
"""

from __future__ import annotations

import numpy as np

from . import arithmetic, conversions, exchanges, memory_access, moves  # noqa: F401  (they fill the table)
from .numbers import decode
from .parse import NO_EFFECT, Assembly, AssemblyError, Instruction
from .state import Frame, GlobalMemory, State
from .table import INSTRUCTIONS


class Stuck(Exception):
    """Every unfinished invocation waits for memory to change. ``frame`` is where to go on."""

    def __init__(self, frame: Frame, end: int, address: np.ndarray | None = None) -> None:
        super().__init__("waiting for memory")
        self.frame = frame
        self.end = end
        self.address = address


def run(assembly: Assembly, frame: Frame, memory: GlobalMemory, parks: bool = True) -> None:
    """Run until every invocation has finished.

    Raises:
        Stuck: the rest waits for memory to change (not raised when ``parks`` is false: they end where they are).
    """
    state = State(frame, memory)
    code = assembly.instructions
    end = len(code)
    waiting = np.zeros(frame.size, dtype=bool)
    while True:
        live = (frame.pc >= 0) & (frame.pc < end) & ~waiting
        if not live.any():
            if waiting.any():
                if state.changed:
                    state.changed = False
                    waiting[:] = False
                    continue
                if parks:
                    raise Stuck(frame, end, state.watched)
            frame.pc[:] = -1
            return
        at = int(frame.pc[live].min())
        active = live & (frame.pc == at)
        instruction = code[at]
        taken = active
        if instruction.guard:
            state.mask = active
            holds = decode(state.raw(instruction.guard), "pred")
            taken = active.copy()
            taken[active] = ~holds if instruction.negated else holds
        frame.pc[active] = at + 1
        if not taken.any():
            continue
        state.mask = taken
        if instruction.opcode == "bra":
            frame.pc[taken] = instruction.target
            if instruction.waits:
                if state.changed:
                    state.changed = False
                else:
                    waiting |= taken
            continue
        if instruction.opcode in ("ret", "exit"):
            frame.pc[taken] = -1
            continue
        _step(state, instruction)


def _step(state: State, instr: Instruction) -> None:
    handler = INSTRUCTIONS.get(instr.opcode)
    if handler is not None:
        handler(state, instr)
    elif instr.opcode in ("fence", "membar"):
        state.memory.fenced(state)
    elif instr.opcode not in NO_EFFECT:
        raise AssemblyError(f"inline assembly instruction is not supported: {instr.text}")
