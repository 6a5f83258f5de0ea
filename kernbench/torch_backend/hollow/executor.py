"""The results of operations in a simulation without data: what steers the program is computed, the rest answered by shape.

An operation is computed if its tensors are small and have bytes. What it gives is known if what it was given is. Others give
hollow tensors, or, if their results are small, tensors with the values that are assumed.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.simulation.memory.storages import NOTE, SMALL_BYTES, Block
from kernbench.simulation.memory.tensor_queries import listed_tensors, made_tensors
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values import known_values
from kernbench.simulation.values.assumptions import blend, default_stand_in, fill, is_finite, keep_finite
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, components_of, is_sparse
from kernbench.torch_backend.hollow.computed_shapes import shapes_by_computing
from kernbench.torch_backend.hollow.data_dependent_shapes import deciders, selected
from kernbench.torch_backend.hollow.host_looks import as_stated
from kernbench.torch_backend.hollow.shapes import Described, UnknownShapeError, allocate, described, made_on_host
from kernbench.torch_backend.hollow.sparse_tensors import NO_EQUAL_INDICES, answered, makes_sparse
from kernbench.torch_backend.hollow.stand_ins import (
    assume,
    each_of_lists,
    element_of,
    has_bytes,
    has_rule,
    is_unknown,
    keeps_to_stand_ins,
    places,
    stored_of,
)
from kernbench.torch_backend.hollow.whole_numbers import (
    filled,
    fills_whole,
    gives_whole,
    keep_resized,
    keep_whole,
    stay_whole,
)
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.operations.computing import ComputedValues
from kernbench.torch_backend.operations.operators import CUSTOM, TRANSFER, VIEW, TorchOperator
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._C.TensorBase", "of a tensor whatever its class", has=("size", "untyped_storage")),
    Reliance("torch._C", "whether tensors are fake, a mode that comes after all others", has=(
        "_get_dispatch_mode", "DisableTorchFunctionSubclass",
    )),
    Reliance("torch._C._TorchDispatchModeKey", "the kinds of such modes", has=("FAKE",)),
)  # fmt: skip

SMALL_ON_HOST = 1 << 20
"""Elements up to which the host computes numbers with a point: larger ones are weights, on their way to a GPU."""

_STRIDED = torch.strided
_FAKE: Any = torch._C._TorchDispatchModeKey.FAKE
_DEVICE = type(torch.device("cpu"))  # in a rank, `torch.device` is another class, which makes these
_fake_mode: Any = torch._C._get_dispatch_mode
_storage: Any = torch._C.TensorBase.untyped_storage
_size: Any = torch._C.TensorBase.size
_stride: Any = torch.Tensor.stride


class Survey:
    """What matters of the arguments of a call.

    Attributes:
        key: what the shapes of its results may depend on; None if something in it has no hash.
        tensors: among them.
        hollow, unknown, on_gpu, meta, sparse: whether any of them is.
        largest: elements of the largest one.
    """

    __slots__ = ("hollow", "key", "largest", "meta", "on_gpu", "sparse", "tensors", "unknown")

    def __init__(self) -> None:
        self.key: Any = None
        self.tensors: list[torch.Tensor] = []
        self.hollow = self.unknown = self.on_gpu = self.meta = self.sparse = False
        self.largest = 0

    def look_at(self, values: Any, parts: list[Any]) -> None:
        """Add ``values`` to what is known, and what their shapes depend on to ``parts``."""
        for value in values:
            kind = type(value)
            if kind in PLAIN:
                if value.layout is not _STRIDED:
                    self.sparse = True
                    parts += (value.shape, value.layout, value.dtype)
                    self.look_at(components_of(value), parts)
                    continue
                stored = getattr(_storage(value), NOTE, None)
                shape = value.shape
                parts += (shape, _stride(value), value.dtype)
                size = shape.numel()
            elif kind is float:
                parts.append(float)
                continue
            elif kind is list or kind is tuple:
                parts.append(kind)
                self.look_at(value, parts)
                parts.append(kind)
                continue
            elif isinstance(value, torch.Tensor):
                with torch._C.DisableTorchFunctionSubclass():  # parameters that are not made yet refuse to say
                    shape = _size(value)
                stored, size = stored_of(value), shape.numel()
                parts += (kind, shape, value.dtype)
            elif kind is _DEVICE:
                self.on_gpu |= value.type == "cuda"
                self.meta |= value.type == "meta"
                parts.append(value)
                continue
            else:
                parts += (kind, None if isinstance(value, torch.Generator) else value)
                continue
            self.tensors.append(value)
            if size > self.largest:
                self.largest = size
            if stored is None:
                self.meta |= value.is_meta
            else:
                if stored.hollow:
                    self.hollow = True
                if stored.stand_in is not None and (stored.missing is None or known_values.is_unknown(stored, value)):
                    self.unknown = True
                if type(stored) is Block:
                    self.on_gpu = True


def survey(func: OpOverload, args: Any, kwargs: Any) -> Survey:
    """What matters of the arguments of ``func(*args, **kwargs)``."""
    found, parts = Survey(), [func, torch.get_default_dtype()]
    found.look_at(args, parts)
    if kwargs:
        parts += kwargs
        found.look_at(kwargs.values(), parts)
    if not found.tensors:
        parts += map(repr, args)  # a factory: what numbers it is given matters
    try:
        found.key = tuple(parts)
        hash(found.key)
    except TypeError:
        found.key = None
    return found


class HollowValues:
    """Computes what steers the program, and gives hollow tensors for the rest.

    Args:
        simulation: whose assumptions are made.
        computed: computes the others.
    """

    hollow = True

    def __init__(self, simulation: Simulation, computed: ComputedValues) -> None:
        self._computed = computed
        self._storages = simulation.storages
        self._assumptions = simulation.assumptions
        self._unmodelled = simulation.op_costs.unmodelled

    def compute(self, call: OperatorCall) -> Any:
        """See :class:`~kernbench.torch_backend.operations.computing.Executor`."""
        device, operator, args, kwargs = call.device, call.operator, call.args, call.kwargs
        func = operator.func
        if (operator.kind <= VIEW and operator.kind != CUSTOM) or _fake_mode(_FAKE) is not None:
            result = operator.call(*args, **kwargs) if kwargs else operator.call(*args)
            if operator.resizes:
                keep_resized(self._storages, operator.written(args, kwargs))
            return result
        if operator.makes_nested:
            raise KernbenchError(
                f"{operator.name}: C++ keeps the shapes of nested tensors of layout torch.strided with their values, and "
                "there is no data: make them with layout=torch.jagged, or run with data"
            )
        found = survey(func, args, kwargs)
        if found.meta:
            return operator.call(*args, **kwargs)
        hollow, on_gpu, tensors = found.hollow, found.on_gpu, found.tensors
        sparse = found.sparse or makes_sparse(operator.name, args)
        wanted = kwargs.get("device") if kwargs else None
        if operator.host_reads:
            return self._looked(device, operator, args, kwargs, tensors, hollow=hollow, unknown=found.unknown or hollow)
        if operator.allocates and not on_gpu:
            return made_on_host(operator.call, func, args, kwargs or {}, found.key)
        what = None
        on_gpu |= device.doing.moving
        small = found.largest <= self._most(on_gpu, tensors, kwargs)
        compute = not (hollow or operator.allocates or operator.without_values or (sparse and found.unknown))
        compute = compute and (small or (on_gpu and stay_whole(device, tensors)))
        if compute and (operator.sized or not small) and not operator.returns_written:
            what = self._described(operator, func, args, kwargs, found.key)
            made = _tensors_of(what)
            size = max([each.numel * (each.dtype.itemsize if on_gpu else 1) for each in made], default=0)
            compute = what is None or size <= self._most(on_gpu, made, kwargs) or gives_whole(made, tensors)
        result = None
        infinite = False
        if compute:
            infinite = found.unknown and not all(map(is_finite, operator.written(args, kwargs)))
            try:
                result = self._computed.compute(call)
            except RuntimeError as error:
                what = self._of_any_numbers(error, operator, func, args, kwargs, found)
                compute = False
        if compute:
            if found.unknown:
                self._sized(device, operator, args, kwargs, result)
            self._mark_computed(operator, args, kwargs, result, unknown=found.unknown, infinite=infinite)
            if on_gpu:
                keep_whole(device, result, tensors)
            return result
        if operator.name == "copy_" and fills_whole(self._storages, *args[:2]):
            return filled(self._storages, self._computed.compute(call), args[1])
        if operator.writes_out:
            self._fit(operator, func, args, kwargs, found.key)
        if operator.returns_written and not sparse:
            return self._written(operator, func, args, kwargs)
        if sparse:
            return self._sparse(operator, func, args, kwargs, on_gpu=on_gpu)
        if what is None:
            what = self._described(operator, func, args, kwargs, found.key)
        if what is None:
            return self._computed.compute(call)
        for target in (*operator.written(args, kwargs), *operator.written_unsaid(args)):
            self._mark(target, None)
        stays = on_gpu and operator.kind != TRANSFER
        made = self._made(what, func, operator, args, kwargs, on_gpu=stays)
        self._sized(device, operator, args, kwargs, made)
        if stays and wanted is not None and wanted.type == "cuda":
            for tensor in made_tensors(made):
                device.on_device(tensor, wanted)
        return made

    def stays_unknown(self, call: OperatorCall) -> bool:
        """See :class:`~kernbench.torch_backend.operations.computing.Executor`: so is what has a point, is large and is on a
        GPU, and what is made of that: new, or in memory that began in the graph. A graph then keeps none of the call's
        tensors, whose memory is free for what comes after it, as on a GPU."""
        operator, kwargs = call.operator, call.kwargs or {}
        if operator.allocates:  # it begins in the graph, and holds nothing that is known
            self._stay_unknown([each for each in made_tensors(call.result) if each.dtype not in known_values.WHOLE])
            return True
        moves = call.device.doing.moving or (operator.kind == TRANSFER and (kwargs.get("device") or operator.writes))
        if operator.draws or moves or call.device.host.order is not None:
            return False
        given = listed_tensors((*call.args, *kwargs.values()))
        if not any(type(stored_of(each)) is Block for each in given):
            return False
        follows, made = any(map(self._stays_unknown, given)), made_tensors(call.result)
        for each in (*operator.written(call.args, kwargs), *operator.written_unsaid(call.args)):
            if not (self._is_large(each) or (follows and self._stays_unknown(each) and _is_assumed(each))):
                return False
        if not all(self._is_large(each) or (follows and _is_assumed(each)) for each in made):
            return False
        self._stay_unknown(made)
        return True

    def _stay_unknown(self, tensors: list[torch.Tensor]) -> None:
        for each in tensors:
            if stored_of(each) is not None:
                self._storages.note(each).stays_unknown = True

    def _is_large(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor on a GPU has more numbers with a point than are ever known."""
        if type(tensor) not in PLAIN or tensor.dtype in known_values.WHOLE:
            return False
        return _storage(tensor).nbytes() > self._storages.most_bytes

    def _stays_unknown(self, tensor: torch.Tensor) -> bool:
        stored = stored_of(tensor)
        if stored is None:
            return False
        return self._is_large(tensor) or (stored.stays_unknown and stored.stand_in is not None)

    def marks_plainly(self, call: OperatorCall) -> bool:
        """Whether of what a call that was not computed has written nothing is known now, whatever is of its other arguments."""
        operator = call.operator
        written = operator.written(call.args, call.kwargs)
        if has_rule(operator.name) or operator.writes_all or operator.writes_out or operator.written_unsaid(call.args):
            return False
        return all(
            each.dtype.is_floating_point and type(note := stored_of(each)) is Block and note.hollow for each in written
        )

    def plain_results(self, call: OperatorCall) -> list[tuple[Described, float | None]]:
        """What a call that has been answered gives whatever the values of its arguments are: hollow tensors, each with what is
        assumed of it, which follows from what is assumed of the arguments; empty if that is not so."""
        operator, result = call.operator, call.result
        results = list(result) if isinstance(result, tuple) else [result]
        if operator.writes or not all(type(each) is torch.Tensor for each in results):
            return []
        if has_rule(operator.name) and not (
            keeps_to_stand_ins(operator.name)
            and all(map(_is_hollow, listed_tensors((*call.args, *(call.kwargs or {}).values()))))
        ):
            return []
        made = []
        for each in results:
            stored = stored_of(each)
            if type(stored) is not Block or not stored.hollow or each.dtype in known_values.WHOLE:
                return []  # it was computed, or something else may be assumed of it
            made.append((Described(tuple(each.shape), tuple(_stride(each)), each.dtype), stored.stand_in))
        return made

    @staticmethod
    def computes_always(call: OperatorCall) -> bool:
        """Whether a call that was computed is one of the host alone, of which nothing is noted."""
        tensors = [*listed_tensors((*call.args, *(call.kwargs or {}).values())), *made_tensors(call.result)]
        return bool(tensors) and all(stored_of(each) is None for each in tensors)

    @staticmethod
    def _most(on_gpu: bool, tensors: Any, kwargs: Any) -> int:
        """Elements up to which an operation is computed; tensors on a GPU that have more bytes are hollow anyway."""
        if on_gpu:
            return SMALL_BYTES
        dtype = next((each.dtype for each in tensors), None) or (kwargs or {}).get("dtype")
        if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
            return 1 << 30
        return SMALL_ON_HOST

    def _described(self, operator: TorchOperator, func: OpOverload, args: Any, kwargs: Any, key: object) -> Any:
        """What it would give; None if not known, so that it must be computed."""
        chosen = selected(operator.name, func, args, kwargs or {})
        if chosen is not None:
            return chosen
        try:
            return described(func, args, kwargs or {}, key)
        except UnknownShapeError as error:
            if not error.refused:
                self._unmodelled.say(f"computed without data: {operator.name}, as what it gives is not known")
            if any(each.numel() > SMALL_ON_HOST for each in listed_tensors(args)):
                if error.refused and isinstance(error.__cause__, RuntimeError):  # in torch's words
                    raise error.__cause__ from None
                raise KernbenchError(
                    f"{operator.name} has no shape rule (no meta or fake kernel), and its tensors are too large to compute "
                    f"without data: register one with torch.library.register_fake ({error})"
                ) from None
            if func.namespace != "aten":
                return None
            return shapes_by_computing(func, args, kwargs or {}, _has_no_numbers, refused=error.refused)

    def _of_any_numbers(
        self, error: RuntimeError, operator: TorchOperator, func: Any, args: Any, kwargs: object, found: Survey
    ) -> Any:
        """What a call gives that was refused, maybe for numbers that are only assumed (a singular matrix).

        Raises ``error`` if it is anything else."""
        if not found.unknown or isinstance(error, KernbenchError):
            raise error
        try:
            what = described(func, args, kwargs or {}, found.key)
        except (UnknownShapeError, KernbenchError):
            raise error from None
        self._unmodelled.say(
            f"{operator.name} refuses the numbers that are assumed here: taken to accept those that are not known"
        )
        return what

    def _sparse(self, operator: TorchOperator, func: Any, args: Any, kwargs: object, *, on_gpu: bool) -> Any:
        """Of operands that are not known, and of which one is sparse, or that make one."""
        written = operator.written(args, kwargs)
        if written and not any(map(is_sparse, written)):
            return self._written(operator, func, args, kwargs)
        self._unmodelled.say(NO_EQUAL_INDICES)
        if written:  # of a sparse tensor, whose elements stay
            for each in components_of(written[0])[1:]:
                self._mark(each, None)
            return written[0]
        return answered(
            operator.name, func, args, kwargs or {}, lambda what: self._fresh(what, func, operator, (), {}, on_gpu)
        )

    # -- what is made and written ----------------------------------------------------------------------------------------

    def _made(
        self, what: Any, func: OpOverload, operator: TorchOperator, args: Any, kwargs: object, *, on_gpu: bool
    ) -> Any:
        if type(what) is Described:
            return self._fresh(what, func, operator, args, kwargs, on_gpu)
        if type(what) in (list, tuple):
            return type(what)(self._made(each, func, operator, args, kwargs, on_gpu=on_gpu) for each in what)
        return what

    def _fresh(
        self, what: Described, func: OpOverload, operator: TorchOperator, args: Any, kwargs: Any, on_gpu: bool
    ) -> torch.Tensor:
        tensor = allocate(what)
        small = tensor.nbytes <= self._storages.most_bytes
        value = assume(func, operator.name, args, kwargs or {}, what.dtype, what.numel)
        if small:
            if not places(operator.name, args, tensor):
                fill(tensor, value)
        elif on_gpu and value is None:
            return tensor  # as all that is large and on a GPU
        note = self._storages.note(tensor)
        if operator.allocates and (small or what.dtype in known_values.WHOLE):
            note.missing = ((0, _storage(tensor).nbytes()),)
        note.hollow = not small
        note.stand_in = (0.0 if value is None else value) if small else value
        return tensor

    def _fit(self, operator: TorchOperator, func: OpOverload, args: Any, kwargs: Any, key: object) -> None:
        """Give the tensors that a call writes by ``out=`` the shapes that torch would give them."""
        made = _tensors_of(self._described(operator, func, args, kwargs, key))
        for target, what in zip(operator.written(args, kwargs), made, strict=False):
            if target.shape != what.size:
                target.resize_(what.size)

    def _written(self, operator: TorchOperator, func: OpOverload, args: Any, kwargs: Any) -> Any:
        given = [each.of(args, kwargs) for each in operator.writes]
        whole = operator.writes_out or operator.writes_all
        for at, target in enumerate(listed_tensors(given)):
            name, mine = each_of_lists(operator.name, at, args)
            value = assume(func, name, mine, kwargs or {}, target.dtype, target.numel())
            if value is None and whole:
                value = default_stand_in(target.dtype)
            self._mark(target, value)
        if not func._schema.returns:
            return None
        return given[0] if len(func._schema.returns) == 1 else tuple(given)

    def _mark(self, target: torch.Tensor, value: float | None) -> None:
        """What was written to ``target`` is not known: its elements are ``value`` on average, None: nothing is known."""
        stored = self._storages.note(target)
        stored.stated, stored.missing = False, None
        if not stored.hollow:
            if target.nbytes > self._storages.most_bytes:
                stored.hollow = True
                stored.stand_in = value
                return
            if value is not None:
                fill(target.data, value)
            if stored.stand_in is None:
                stored.stand_in = 0.0  # its bytes are assumed now
            return
        whole = _storage(target).nbytes() if type(target) in PLAIN else target.nbytes
        if value is not None and target.nbytes < whole and target.element_size():
            before = default_stand_in(target.dtype) if stored.stand_in is None else stored.stand_in
            value = blend(before, value, target.nbytes / whole)
        stored.stand_in = value

    def _mark_computed(
        self, operator: TorchOperator, args: Any, kwargs: Any, result: object, *, unknown: bool, infinite: bool
    ) -> None:
        """Results of what is assumed are assumed, and finite unless ``infinite`` or an operand was not; those of what is known
        are known."""
        if unknown:
            targets = [*operator.written(args, kwargs), *operator.written_unsaid(args)]
            if operator.writes_all and not any(
                stored is not None and stored.unknown for stored in map(stored_of, listed_tensors(args[1:]))
            ):
                known_values.write(self._storages, targets[:1])
                return
            for tensor in listed_tensors((*targets, *(result if isinstance(result, list | tuple) else (result,)))):
                note = self._storages.note(tensor)
                note.stated, note.missing = False, None
                if note.stand_in is None:
                    note.stand_in = 0.0
                if not is_finite(tensor):
                    keep_finite(tensor, infinite=infinite or _is_given_infinity(args, targets))

    # -- what the host reads --------------------------------------------------------------------------------------------

    def _sized(self, device: RankDevice, operator: TorchOperator, args: Any, kwargs: Any, result: Any) -> None:
        """The host gets a result whose size may follow from what is assumed, and knows its size."""
        by = [each for each in deciders(operator.name, args, kwargs or {}) if not has_bytes(each) or is_unknown(each)]
        if by and not device.host.unrecorded:
            notes = [stored_of(each) for each in by]
            stated = all(note is not None and note.stated for note in notes)
            self._assumptions.told(operator.name, device.host.rank, made_tensors(result)[0].shape, stated=stated)

    def _looked(
        self,
        device: RankDevice,
        operator: TorchOperator,
        args: Any,
        kwargs: Any,
        tensors: list[torch.Tensor],
        *,
        hollow: bool,
        unknown: bool,
    ) -> Any:
        """The value that the host gets."""
        if not hollow:
            answer = operator.call(*args, **(kwargs or {}))
        elif operator.name == "_local_scalar_dense":
            answer = scalar(tensors[0].dtype, element_of(tensors[0]))
        elif operator.name in ("equal", "allclose"):
            answer = tensors[0].shape == tensors[1].shape
        else:
            answer = bool(element_of(tensors[0])) if tensors else None
        if unknown and not device.host.unrecorded:
            stated = self._assumptions.stated_here()
            if stated is not None:
                answer = type(answer)(as_stated(stated, tensors[0].new_empty(())).item())
            by_itself = stated is not None or any(
                note is not None and note.stated for note in map(stored_of, tensors[:1])
            )
            name = {"_local_scalar_dense": "item", "is_nonzero": "bool"}.get(operator.name, operator.name)
            self._assumptions.told(name, device.host.rank, answer, stated=by_itself)
        return answer


def _is_given_infinity(values: Any, written: list[torch.Tensor]) -> bool:
    """Whether an operand that is not ``written`` has what is not finite, as masks have."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if not any(value is each for each in written) and not is_finite(value):
                return True
        elif isinstance(value, list | tuple):
            if _is_given_infinity(value, written):
                return True
        elif isinstance(value, float) and math.isinf(value):
            return True
    return False


def _is_assumed(tensor: torch.Tensor) -> bool:
    """Whether nothing of a tensor's numbers is known, or there are none."""
    stored = stored_of(tensor)
    if not tensor.numel():
        return True
    return stored is not None and stored.stand_in is not None and stored.missing is None


def _has_no_numbers(tensor: torch.Tensor) -> bool:
    """Whether a tensor's bytes are not its numbers."""
    stored = stored_of(tensor)
    return stored is not None and stored.hollow


def _is_hollow(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on a GPU, and has no bytes."""
    stored = stored_of(tensor)
    return type(stored) is Block and stored.hollow


def scalar(dtype: torch.dtype, value: float) -> object:
    """``value`` as Python has numbers of ``dtype``."""
    if dtype == torch.bool:
        return value >= 0.5
    if dtype.is_complex:
        return complex(value)
    return float(value) if dtype.is_floating_point else int(value)


def _tensors_of(what: Any) -> list[Described]:
    if type(what) is Described:
        return [what]
    return [each for part in what for each in _tensors_of(part)] if type(what) in (list, tuple) else []
