"""Values of recurrent layers and of their gradients, as cuDNN defines them, step by step in plain operators.

Sums are in 32 bits at least; a state is rounded to the layer's format after each step, as the next step reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch

from kernbench.cost.recurrent_shapes import GRU, LSTM, TANH

Tensor = torch.Tensor


class Weights(NamedTuple):
    """Of one layer in one direction: ``[gates H, I]``, ``[gates H, R]``, both biases ``[gates H]``, projection ``[R, H]``."""

    of_input: Tensor
    of_state: Tensor
    input_bias: Tensor | None
    state_bias: Tensor | None
    projection: Tensor | None

    @classmethod
    def of(cls, given: Sequence[Tensor]) -> Weights:
        """From the flat list of a call: two matrices, two biases if there are some, a projection if there is one."""
        biased = len(given) > 3
        return cls(
            given[0], given[1], given[2] if biased else None, given[3] if biased else None,
            given[-1] if len(given) % 2 else None,
        )  # fmt: skip


class States(NamedTuple):
    """``hidden [batch, R]``; ``cell [batch, H]`` of an LSTM."""

    hidden: Tensor
    cell: Tensor | None


@dataclass(frozen=True, slots=True)
class Kept:
    """What a step keeps for its gradient: the states before, the gates after their functions, and what else a kind needs."""

    hidden: Tensor
    cell: Tensor | None
    gates: tuple[Tensor, ...]
    after: Tensor


Step = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None, Kept]]


def wide(tensor: Tensor) -> Tensor:
    """In 32 bits at least."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _plus(tensor: Tensor, bias: Tensor | None) -> Tensor:
    return tensor if bias is None else tensor + wide(bias)


@dataclass(slots=True)
class Direction:
    """One layer in one direction, over the steps of a batch whose sequences become fewer.

    Args:
        mode: the kind of cell.
        weights: its own, as the program has them.
        sizes: sequences of each step.
        reverse: steps are taken from the last one.
    """

    mode: int
    weights: Weights
    sizes: Sequence[int]
    reverse: bool
    kept: list[Kept] = field(default_factory=list)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Where the rows of each step begin, and how many they are, in the order in which steps are taken."""
        begins = [0, *accumulate(self.sizes)]
        found = [*zip(begins, self.sizes, strict=False)]
        return found[::-1] if self.reverse else found

    def forward(self, x: Tensor, before: States) -> tuple[Tensor, States]:
        """``x [rows, I]`` and the first states, in 32 bits; gives ``[rows, R]`` and the last states."""
        weights, dtype = self.weights, self.weights.of_state.dtype
        given = _plus(x @ wide(weights.of_input).t(), weights.input_bias)
        through = wide(weights.of_state).t()
        hidden, cell = before
        found: dict[int, Tensor] = {}
        self.kept = []
        for begin, size in self.steps:
            now, cell_now = hidden[:size], None if cell is None else cell[:size]
            sums = _plus(now @ through, weights.state_bias)
            out, made, kept = self._step(given[begin : begin + size], sums, now, cell_now)
            out = wide(out.to(dtype))
            self.kept.append(kept)
            hidden = torch.cat((out, hidden[size:]))
            cell = None if cell is None or made is None else torch.cat((made, cell[size:]))
            found[begin] = out
        return torch.cat([found[begin] for begin in sorted(found)]), States(hidden, cell)

    def _step(
        self, given: Tensor, sums: Tensor, hidden: Tensor, cell: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Kept]:
        """The next state, the next cell of an LSTM, and what the gradient needs."""
        if self.mode == LSTM:
            assert cell is not None
            parts = (given + sums).chunk(4, 1)
            let, keep, new, out = parts[0].sigmoid(), parts[1].sigmoid(), parts[2].tanh(), parts[3].sigmoid()
            made = keep * cell + let * new
            after = out * made.tanh()
            kept = Kept(hidden, cell, (let, keep, new, out, made), after)
            projection = self.weights.projection
            return after if projection is None else after @ wide(projection).t(), made, kept
        if self.mode == GRU:
            (reset_in, update_in, new_in), (reset_of, update_of, new_of) = given.chunk(3, 1), sums.chunk(3, 1)
            reset, update = (reset_in + reset_of).sigmoid(), (update_in + update_of).sigmoid()
            new = (new_in + reset * new_of).tanh()
            after = new + update * (hidden - new)
            return after, None, Kept(hidden, None, (reset, update, new, new_of), after)
        total = given + sums
        after = total.tanh() if self.mode == TANH else total.relu()
        return after, None, Kept(hidden, None, (), after)

    def backward(
        self, x: Tensor, grad_out: Tensor, after: States
    ) -> tuple[Tensor, States, list[Tensor]]:  # fmt: skip
        """Gradients of ``x``, of the first states and of the weights, in the order of the flat list.

        ``after``: gradients of the last states."""
        weights = self.weights
        of_state, projection = wide(weights.of_state), weights.projection
        hidden, cell = after
        by_input: dict[int, Tensor] = {}
        to_state, to_projection = (
            torch.zeros_like(of_state),
            None if projection is None else torch.zeros_like(wide(projection)),
        )
        state_bias = torch.zeros(of_state.shape[0], dtype=of_state.dtype)
        for (begin, size), kept in zip(self.steps[::-1], self.kept[::-1], strict=True):
            grad = hidden[:size] + grad_out[begin : begin + size]
            if projection is not None and to_projection is not None:
                to_projection += grad.t() @ kept.after
                grad = grad @ wide(projection)
            of_input, of_sums, direct, made = self._gradient(grad, None if cell is None else cell[:size], kept)
            by_input[begin] = of_input
            to_state += of_sums.t() @ kept.hidden
            state_bias += of_sums.sum(0)
            before = of_sums @ of_state
            hidden = torch.cat((before if direct is None else before + direct, hidden[size:]))
            cell = None if cell is None or made is None else torch.cat((made, cell[size:]))
        whole = torch.cat([by_input[begin] for begin in sorted(by_input)])
        found = [whole.t() @ x, to_state]
        if weights.input_bias is not None:
            found += [whole.sum(0), state_bias]
        if to_projection is not None:
            found.append(to_projection)
        return whole @ wide(weights.of_input), States(hidden, cell), found

    def _gradient(
        self, grad: Tensor, cell: Tensor | None, kept: Kept
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Gradients of the gates by the input and by the state, of the state besides these, and of the cell before."""
        if self.mode == LSTM:
            assert cell is not None
            assert kept.cell is not None
            let, keep, new, out, made = kept.gates
            through = made.tanh()
            of_cell = cell + grad * out * (1 - through * through)
            gates = torch.cat((
                of_cell * new * (1 - let) * let, of_cell * kept.cell * (1 - keep) * keep, of_cell * let * (1 - new * new),
                grad * through * (1 - out) * out,
            ), 1)  # fmt: skip
            return gates, gates, None, of_cell * keep
        if self.mode == GRU:
            reset, update, new, of_state = kept.gates
            of_new = grad * (1 - update) * (1 - new * new)
            of_update = grad * (kept.hidden - new) * (1 - update) * update
            of_reset = of_new * of_state * (1 - reset) * reset
            by_input = torch.cat((of_reset, of_update, of_new), 1)
            return by_input, torch.cat((of_reset, of_update, of_new * reset), 1), grad * update, None
        total = grad * (1 - kept.after * kept.after) if self.mode == TANH else grad * (kept.after > 0)
        return total, total, None, None


@dataclass(slots=True)
class Layers:
    """All layers of one call.

    Args:
        mode: the kind of cell.
        weights: of each layer, by direction.
        sizes: sequences of each step.
        dropout: share of what goes from one layer to the next that is dropped.
    """

    mode: int
    weights: list[list[Weights]]
    sizes: Sequence[int]
    dropout: float = 0.0
    inputs: list[Tensor] = field(default_factory=list)
    directions: list[Direction] = field(default_factory=list)

    def forward(self, x: Tensor, before: States, masks: Sequence[Tensor]) -> tuple[Tensor, States]:
        """``x [rows, I]``, the first states ``[layers directions, batch, ...]``, and which elements stay behind each layer but
        the last one; gives ``[rows, directions R]`` and the last states."""
        self.inputs, self.directions, last = [], [], []
        y = wide(x)
        for at, layer in enumerate(self.weights):
            self.inputs.append(y)
            parts = []
            for side, weights in enumerate(layer):
                direction = Direction(self.mode, weights, self.sizes, reverse=bool(side))
                out, states = direction.forward(y, _at(before, at * len(layer) + side))
                self.directions.append(direction)
                parts.append(out)
                last.append(states)
            y = torch.cat(parts, 1)
            if at < len(masks):
                y = y * masks[at] / (1 - self.dropout)
        return y, _stacked(last)

    def backward(
        self, grad: Tensor, after: States, masks: Sequence[Tensor]
    ) -> tuple[Tensor, States, list[Tensor]]:  # fmt: skip
        """Gradients of what :meth:`forward` was given: of ``x``, of the first states, of the weights in one flat list."""
        found: list[list[Tensor]] = []
        first: list[States] = []
        for at in reversed(range(len(self.weights))):
            if at < len(masks):
                grad = grad * masks[at] / (1 - self.dropout)
            sides = len(self.weights[at])
            to_input: Tensor | None = None
            for side, part in reversed([*enumerate(grad.chunk(sides, 1))]):
                index = at * sides + side
                of_x, states, mine = self.directions[index].backward(self.inputs[at], part, _at(after, index))
                to_input = of_x if to_input is None else to_input + of_x
                first.append(states)
                found.append(mine)
            assert to_input is not None
            grad = to_input
        return grad, _stacked(first[::-1]), [each for mine in found[::-1] for each in mine]


def _at(states: States, index: int) -> States:
    return States(wide(states.hidden[index]), None if states.cell is None else wide(states.cell[index]))


def _stacked(states: Iterable[States]) -> States:
    hidden, cells = zip(*states, strict=True)
    return States(
        torch.stack(hidden), None if cells[0] is None else torch.stack([each for each in cells if each is not None])
    )
