"""What operations cost on a stream of one device: estimates, and what was registered, kept by operation, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernbench.cost.by_values import CallOperands
from kernbench.cost.generations import generation_of
from kernbench.cost.op_estimates import CHANNELS_LAST, OUTER, OVERLAPS, SPREAD, UNKNOWN, Tensors, estimate_row
from kernbench.cost.operands import Operand, Operands, everything
from kernbench.cost.operator import Kind, Model, Operator
from kernbench.cost.operators import find, qualified
from kernbench.cost.recurrent_shapes import packed
from kernbench.cost.registry import OperatorCost, registered, seeing_values, supplied, tell_changes
from kernbench.cost.unmodelled import Unmodelled
from kernbench.cost.work import Cost
from kernbench.topology.device import DeviceSpec
from kernbench.topology.system import HostSpec


class OpCosts:
    """What a stream of one device is occupied for by each operation: estimates, kept per operation, shapes and dtypes.

    An estimate is of a launch that the device waits for. On a stream the launch's latency passes before the operation
    may begin, and is hidden when something runs meanwhile; so it is no part of the time that the stream is occupied for
    (ADR 0038). A kernel that does nothing still occupies it for :data:`LEAST`.

    Args:
        device: the SIP's description.
        costs: of operators that plugins bring, by name; besides those that are registered for the whole process.
        where: says where the user's program is, for the operators that no model knows.
        host: what the host's side of an operation costs.

    Attributes:
        unmodelled: operators that were counted by their bytes because nothing is known of them.
        epoch: another number whenever what operations cost may have changed.
        flops: what operations count, kept by the caller that counts, with its costs: by ``id`` of the cost that
            :meth:`of_tensors` gives, that cost, the format that is multiplied, and FLOPs.
        uncounted: operations of the matrix engines whose FLOPs are not known.
        seeing: operators whose costs depend on values (:func:`~kernbench.cost.by_values.by_values`), by name.
    """

    def __init__(
        self,
        device: DeviceSpec,
        costs: Mapping[str, OperatorCost] | None = None,
        where: Callable[[], str] | None = None,
        host: HostSpec | None = None,
    ) -> None:
        self._device = device
        self._host = host or HostSpec()
        self._brought = dict(costs or {})
        self.seeing = seeing_values(self._brought)
        self._of_work: dict[tuple[str, Any], Cost] = {}
        self._known: dict[tuple[Any, ...], Cost] = {}
        self._otherwise: dict[tuple[Any, ...], Cost] = {}  # warm, while costs are cold, and the other way round
        self._cold = False
        self.uncounted: set[str] = set()
        self.flops: dict[int, tuple[Cost, str, int]] = {}
        self.unmodelled = Unmodelled(where)
        self.epoch = 0
        tell_changes(self)

    def forget(self) -> None:
        """What operators cost has changed."""
        self.epoch += 1
        self.seeing = seeing_values(self._brought)
        self._of_work.clear()
        self._known.clear()
        self._otherwise.clear()
        self.flops.clear()

    def price_cold(self, cold: bool) -> None:
        """From now on operations that are bound by memory find their operands there, or (not ``cold``) in the last-level cache
        if they fit."""
        if cold != self._cold:
            self.epoch += 1
            self._cold = cold
            self._known, self._otherwise = self._otherwise, self._known

    def stated(self, name: str) -> OperatorCost | None:
        """What the program or a plugin says that an operator costs, by any of its names; None if neither says anything."""
        known = qualified(name)
        return registered(known) or self._brought.get(known) or supplied(known)

    def of_values(self, name: str, operands: CallOperands) -> Cost:
        """The cost of one call of an operator in :attr:`seeing`, and its FLOPs noted in :attr:`flops`."""
        stated = self.seeing[name]
        work = stated.work_of_call(operands)
        cost = self._of_work.get((name, work))
        if cost is None:
            nbytes = sum(each.nbytes for each in (*operands.tensors, *operands.results))
            cost = self._of_work[name, work] = stated.cost_of(work, nbytes, self._device)
        counted = None if isinstance(work, float | int) or not work.matrix else work
        self.flops[id(cost)] = (cost, "", 0) if counted is None else (cost, counted.dtype, counted.flops)
        return cost

    def is_known(self, name: str) -> bool:
        """Whether anything says what an operator costs: others are counted, at each call."""
        row = find(name)
        return (row is not None and not row.guessed) or self.stated(name) is not None

    def of(self, name: str, inputs: Tensors, outputs: Tensors, *, flag: bool = False, layout: str = "") -> Cost:
        """The cost of an operation called ``name``; ``inputs``, ``outputs``: ``(shape, dtype)`` of each tensor.

        A dtype is whatever ``str`` names: torch's own, or a name. ``flag``: of an attention, it is causal; of a product in
        eight bits, its sums are kept in 32 bits; of one of fp32, it may be computed in TF32; of a batch norm, it is not
        trained. ``layout``: of a copy, ``"transpose"`` (rows become columns), ``"strided"`` (one of both has gaps), or nothing;
        of images :data:`CHANNELS_LAST` or another, with :data:`SPREAD` or :data:`OVERLAPS`; of packed sequences that recurrent
        layers are given, the number of steps; of a scan :data:`OUTER`.
        """
        flat = (name, flag, layout, len(inputs), *(part for tensor in (*inputs, *outputs) for part in tensor))
        cost = self._known.get(flat)
        if cost is None:
            cost = self._price(name, inputs, outputs, (flag, layout), flat)
        return cost

    def of_tensors(
        self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], flag: bool = False, layout: str = ""
    ) -> Cost:
        """As :meth:`of`, of what has a ``shape`` and a ``dtype``: for those who ask at every operation."""
        key: list[Any] = [name, flag, layout, len(inputs)]
        for tensor in inputs:
            key += (tensor.shape, tensor.dtype)
        for tensor in outputs:
            key += (tensor.shape, tensor.dtype)
        flat = tuple(key)
        cost = self._known.get(flat)
        if cost is None:
            given, made = (tuple([(each.shape, each.dtype) for each in tensors]) for tensors in (inputs, outputs))
            cost = self._price(name, given, made, (flag, layout), flat)
        return cost

    def _beyond_a_launch(self, row: Operator | None, given: Operands, made: Operands) -> float:
        """Seconds of the host beside one launch: further ones, tensors of lists, what a library looks for or keeps."""
        if row is None:
            return 0.0
        host = self._host
        further = max(row.count_launches(given, made) - 1, 0)
        tensors = len(given) if row.lists else 0
        found = host.launch * further + host.tensor * tensors + host.unit * row.keeps_books(given, made)
        return host.factor * (found + host.library * row.chosen)

    def _price(
        self, name: str, inputs: Tensors, outputs: Tensors, how: tuple[bool, str], key: tuple[object, ...]
    ) -> Cost:
        flag, layout = how
        given, made = (tuple(Operand.of(shape, dtype) for shape, dtype in tensors) for tensors in (inputs, outputs))
        stated = self.stated(name)
        if stated is not None and stated.cost is not None and not stated.sees_values:
            cost = self._known[key] = stated.priced(given, made, self._device)
            return cost
        row = find(name) if stated is None else find(stated.like)
        if layout and row is not None and row.recurs:
            given = (packed(given[0], int(layout)), *given[1:])
        elif layout and row is not None and row.model is Model.SCAN:
            row = replace(row, outer=layout == OUTER)
        elif layout and row is not None and row.images:
            row = replace(
                row, channels_last=CHANNELS_LAST in layout, spread=SPREAD in layout, overlaps=OVERLAPS in layout
            )
        elif layout and row is not None and row.pace == "copy":
            row = replace(row, kind=Kind.COMPUTE, pace=layout)
        found = estimate_row(row or UNKNOWN, given, made, self._device, flag, self._cold)
        kind = "math"
        if row is not None and row.uses_matrix_engines:
            kind = "attention" if row.model is Model.ATTENTION else "gemm"
        cost = Cost.on_stream(
            found,
            self._device,
            kind=kind,
            nbytes=int(everything(given, made)),
            host=self._beyond_a_launch(row, given, made),
        )
        if kind == "attention" and row is not None and (drawn := generation_of(self._device).draw) is not None:
            cost = replace(cost, draw=drawn.attention.get(row.variant, 0.0))
        if row is None or row.guessed:
            self.unmodelled.note(qualified(name))  # and is not kept, so that each call is counted
        else:
            self._known[key] = cost
        return cost
