"""Recurrent layers of cuDNN: their products, kernels and memory.

All steps' inputs are one product; then a step is a product with the state and a kernel of its gates, which wait for the step
before. Layers of few units keep their weights in registers and take all steps in one kernel
(``CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H``, chosen as aten/src/ATen/native/cudnn/RNN.cpp chooses it). Both directions of a layer
run one after the other. What has no other source was measured on an H100 [H].
"""

from __future__ import annotations

from math import ceil, prod
from typing import NamedTuple

from kernbench.cost.operands import Operand, Operands, Shapes
from kernbench.topology.dtypes import ITEM_BYTES

RELU, TANH, LSTM, GRU = range(4)
"""cuDNN's numbers of the kinds of cells."""

GATES = (1, 1, 4, 3)
"""Gates of each kind."""

_RESERVED = {RELU: 1.0, TANH: 1.0, LSTM: 5.0, GRU: 4.0}
"""Elements that training keeps for each state besides the results: an LSTM's gates and cell [H]; of others likewise,
UNVERIFIED."""
_WORKSPACE = {1: 1.2, 3: 4.2, 4: 4.2}
"""Elements that are taken for each state of all layers while a call runs, by gates [H]; of others than LSTM UNVERIFIED."""
_SMALL = {1: (384, 256), 3: (192, 128), 4: (192, 128)}
"""Units up to which all steps are one kernel, forward and back, by gates."""


class Recurrence(NamedTuple):
    """What a call computes.

    Attributes:
        layers: of each layer and direction: gates, width of the input, units, width of the state.
        batch, steps: sequences, and steps of the longest one.
        rows: of all steps together.
        fused: whether it is cuDNN's, which may have one kernel for all steps.
    """

    layers: tuple[tuple[int, int, int, int], ...]
    batch: int
    steps: int
    rows: int
    fused: bool = True

    @classmethod
    def of(cls, given: Shapes) -> Recurrence | None:
        """From the shapes of ``input, weights ..., state [layers directions, batch, R]``; None of others.

        The input is ``[steps, batch, I]`` or ``[batch, steps, I]``; of packed sequences ``[rows, I]``, or with their steps
        :func:`packed`. Without cuDNN it is one layer, ``input [steps, batch, I], weight [gates H, I], weight [gates H, H]``.
        """
        at = next((at for at, shape in enumerate(given) if at and len(shape) == 3), 0)
        count, batch, width = given[at] if at else (0, 0, 0)
        matrices = [shape for shape in given[1:at] if len(shape) == 2]
        if not count or not batch or len(matrices) < 2 * count or len(matrices) % count:
            return cls._of_layer(given)
        if len(given[0]) not in (2, 3, 4):
            return None
        each = len(matrices) // count
        found = []
        for first in range(0, len(matrices), each):
            units = matrices[first + 2][1] if each > 2 else width
            found.append((matrices[first][0] // max(units, 1), matrices[first][1], units, width))
        rows = prod(given[0][:-1])
        steps = given[0][1] if len(given[0]) == 4 else ceil(rows / batch)
        return cls(tuple(found), batch, max(steps, 1), rows)

    @classmethod
    def _of_layer(cls, given: Shapes) -> Recurrence | None:
        if [len(shape) for shape in given[:3]] != [3, 2, 2]:
            return None
        (steps, batch, width), _, (outer, units) = given[:3]
        return cls(((outer // max(units, 1), width, units, units),), batch, max(steps, 1), steps * batch, fused=False)

    def products(self, gradient: bool) -> list[tuple[int, int, int, int]]:
        """Matrix products: batch, M, N and K."""
        found: list[tuple[int, int, int, int]] = []
        for gates, width, units, state in self.layers:
            one = (1, self.rows, gates * units, width)
            of_steps = (1, max(self.rows // self.steps, 1), gates * units, state)
            steps = [(1, of_steps[1], state, gates * units) if gradient else of_steps] * self.steps
            found += [one, *steps]
            if gradient:
                found += [(1, gates * units, width, self.rows), (1, gates * units, state, self.rows)]
        return found

    def small(self, gradient: bool) -> bool:
        """Whether a layer's steps are one kernel."""
        return self.fused and all(units <= _SMALL.get(gates, (0, 0))[gradient] for gates, _, units, _ in self.layers)


def packed(input: Operand, steps: int) -> Operand:
    """The input ``[rows, I]`` of packed sequences, the longest of which has so many steps."""
    rows, width = input.shape
    return input._replace(shape=(1, steps, ceil(rows / max(steps, 1)), width))


def recurrent_products(gradient: bool, given: Shapes, made: Shapes) -> list[tuple[int, int, int, int]]:
    """Matrix products of a call, or of its gradient."""
    found = Recurrence.of(given)
    return [] if found is None else found.products(gradient)


def recurrent_launches(gradient: bool, given: Operands, made: Operands) -> int:
    """Kernels of a call: of each layer and direction a product of all inputs, and of each step a product and its gates; of a
    gradient besides memory that is cleared, and products for both weights."""
    found = Recurrence.of([each.shape for each in given])
    if found is None:
        return 1
    around, each = (4, 3) if gradient else (1, 2)
    return len(found.layers) * (around + (1 if found.small(gradient) else each * found.steps))


def recurrent_calls(gradient: bool, given: Operands, made: Operands) -> float:
    """What cuDNN's loop over steps takes the host besides launches, in units of a host's unit [H]."""
    found = Recurrence.of([each.shape for each in given])
    return (
        0.0 if found is None or found.small(gradient) else (0.12 if gradient else 0.2) * len(found.layers) * found.steps
    )


def reserve_bytes(mode: int, states: int, masks: int) -> int:
    """Bytes that a layer in training keeps for its gradient, of ``states`` bytes of all layers' states and ``masks`` elements
    that may be dropped."""
    return int(_RESERVED[mode] * states) + masks


def recurrent_workspace(given: Operands) -> float:
    """Bytes that cuDNN takes while a call runs."""
    found = Recurrence.of([each.shape for each in given])
    if found is None:
        return 0.0
    item = ITEM_BYTES[given[0].format]
    return sum(_WORKSPACE.get(gates, 1.2) * found.rows * units * item for gates, _, units, _ in found.layers)
