"""Compare-and-swap of inline assembly by many invocations at once does what one after the other does."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.triton_engine.ptx import Frame, parse, run

WORDS = 3
_SMALL = st.integers(0, 2)


class Words:
    """Words of four bytes from address 0 on, and how often they are read."""

    def __init__(self, values: list[int]) -> None:
        self.values = np.array(values, dtype=np.uint64)
        self.reads = 0

    def load(self, address: np.ndarray, nbytes: int, times: int = 1) -> np.ndarray:
        assert nbytes == 4
        self.reads += len(address) * times
        return self.values[address // np.uint64(4)]

    def store(self, address: np.ndarray, value: np.ndarray, nbytes: int) -> None:
        assert nbytes == 4
        self.values[address // np.uint64(4)] = value

    def accessed(self, *args: Any) -> None:
        """Races are not looked for here."""


@given(
    st.lists(_SMALL, min_size=WORDS, max_size=WORDS),
    st.lists(st.tuples(st.integers(0, WORDS - 1), _SMALL, _SMALL), min_size=1, max_size=12),
)
def test_as_one_after_the_other(words: list[int], calls: list[tuple[int, int, int]]) -> None:
    memory = Words(words)
    places, expected, wanted = (np.array(column, dtype=np.uint64) for column in zip(*calls, strict=True))
    registers = {"%a": 4 * places, "%b": expected, "%c": wanted, "%d": np.zeros(len(calls), dtype=np.uint64)}
    assembly = parse("atom.global.acq_rel.sys.cas.b32 %d, [%a], %b, %c;")
    frame = Frame(len(calls), registers, np.zeros(len(calls), dtype=np.int64))
    run(assembly, frame, memory)  # type: ignore[arg-type]
    seen = []
    for place, old, new in calls:
        seen.append(words[place])
        if words[place] == old:
            words[place] = new
    assert frame.registers["%d"].tolist() == seen
    assert memory.values.tolist() == words
    assert memory.reads == len(calls)
