"""The recorder of a simulation without data: it computes what steers the program, and answers the rest by shape.

An operation is computed if its tensors are small and have bytes. What it gives is known if what it was given is. Others give
hollow tensors, or, if their results are small, tensors with the values that are assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.simulation.assumptions import default_stand_in, fill
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.storages import NOTE, SMALL_BYTES, Block
from kernbench.simulation.tensors import listed_tensors
from kernbench.torch_backend.gpu.placement import PLAIN
from kernbench.torch_backend.gpu.rank_device import RankDevice
from kernbench.torch_backend.gpu.recording import CUSTOM, TRANSFER, VIEW, Recorded, Recorder
from kernbench.torch_backend.hollow.looks import as_stated
from kernbench.torch_backend.hollow.selections import selected
from kernbench.torch_backend.hollow.shapes import MOST_KNOWN, Described, UnknownShapeError, allocate, described
from kernbench.torch_backend.hollow.stand_ins import assume, element_of, has_rule, places, stored_of
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._C.TensorBase.untyped_storage", "of a tensor whatever its class"),
    Reliance("torch._C", "whether tensors are fake, a mode that comes after all others", has=("_get_dispatch_mode",)),
    Reliance("torch._C._TorchDispatchModeKey", "the kinds of such modes", has=("FAKE",)),
)  # fmt: skip

SMALL_ON_HOST = 1 << 20
"""Elements up to which the host computes numbers with a point: larger ones are weights, on their way to a GPU."""

_OVERWRITES = frozenset({"zero_", "fill_", "copy_", "normal_", "uniform_", "random_"})
"""Operations after which nothing is left of what their target was."""

_SIZES = ("SymInt[]", "int[]", "List[int]")


class _Shape:
    """What an operation's schema says that matters without data.

    Attributes:
        given: arguments that it writes and returns, by place and name, one per result; None if a result is fresh.
        written: arguments that it writes, by place and name.
        out: whether what it writes is written as a whole, and not read (``out=``).
        sized: whether its arguments say how large its result is.
    """

    __slots__ = ("_statistics", "given", "out", "sized", "written")

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.written = [
            (at, each.name)
            for at, each in enumerate(schema.arguments)
            if each.alias_info is not None and each.alias_info.is_write
        ]
        self.out = bool(self.written) and all(schema.arguments[at].is_out for at, _ in self.written)
        returned = [each.alias_info is not None and each.alias_info.is_write for each in schema.returns]
        self.given = self.written if all(returned) and (returned or self.written) else None
        takes_tensors = any("Tensor" in str(each.type) for each in schema.arguments)
        self._statistics = [(3, "running_mean"), (4, "running_var")] if func._opname == "native_batch_norm" else []
        self.sized = not takes_tensors or any(str(each.type) in _SIZES for each in schema.arguments)

    def unsaid(self, args: Any) -> list[tuple[int, str]]:
        """Arguments that it writes although its schema does not say so: a norm's running statistics, in training."""
        return self._statistics if self._statistics and args[5] else []


class _ShapeByOperator(dict[Any, _Shape]):
    def __missing__(self, func: Any) -> _Shape:
        found = self[func] = _Shape(func)
        return found


_shapes = _ShapeByOperator()
_STRIDED = torch.strided
_empty_strided: Any = torch.empty_strided
_FAKE: Any = torch._C._TorchDispatchModeKey.FAKE
_DEVICE = type(torch.device("cpu"))  # in a rank, `torch.device` is another class, which makes these
_fake_mode: Any = torch._C._get_dispatch_mode
_storage: Any = torch._C.TensorBase.untyped_storage


class Survey:
    """What matters of the arguments of a call.

    Attributes:
        key: what the shapes of its results may depend on; None if something in it has no hash.
        tensors: among them.
        hollow, unknown, on_gpu, meta: whether any of them is.
        largest: elements of the largest one.
    """

    __slots__ = ("hollow", "key", "largest", "meta", "on_gpu", "tensors", "unknown")

    def __init__(self) -> None:
        self.key: Any = None
        self.tensors: list[torch.Tensor] = []
        self.hollow = self.unknown = self.on_gpu = self.meta = False
        self.largest = 0

    def look_at(self, values: Any, parts: list[Any]) -> None:
        """Add ``values`` to what is known, and what their shapes depend on to ``parts``."""
        for value in values:
            kind = type(value)
            if kind in PLAIN:
                stored = (
                    getattr(_storage(value), NOTE, None) if value.layout is _STRIDED else getattr(value, NOTE, None)
                )
                shape = value.shape
                parts += (shape, value.stride() if value.layout is _STRIDED else None, value.dtype)
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
                stored, size = stored_of(value), value.numel()
                parts += (kind, value.shape, value.dtype)
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
                if stored.stand_in is not None:
                    self.unknown = True
                if type(stored) is Block:
                    self.on_gpu = True


def survey(func: Any, args: Any, kwargs: Any) -> Survey:
    """What matters of the arguments of ``func(*args, **kwargs)``."""
    found, parts = Survey(), [func]
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


def _argument(args: Any, kwargs: Any, at: int, name: str) -> Any:
    return args[at] if at < len(args) else (kwargs or {}).get(name)


_MAKES_NESTED = frozenset({
    "_nested_tensor_from_tensor_list", "_nested_from_padded", "_nested_tensor_from_mask", "_nested_view_from_buffer",
    "_nested_view_from_buffer_copy",
})  # fmt: skip


class HollowRecorder(Recorder):
    """Records operations that are not computed."""

    def __init__(self, simulation: Simulation, who: Callable[[], RankDevice], *, shared: bool = False) -> None:
        super().__init__(simulation, who, shared=shared)
        self._storages = simulation.storages
        self._assumptions = simulation.assumptions
        self._plain: dict[Any, Described] = {}

    def _computed(self, device: RankDevice, operation: Recorded, func: Any, args: Any, kwargs: Any) -> Any:
        if (operation.kind <= VIEW and operation.kind != CUSTOM) or _fake_mode(_FAKE) is not None:
            return operation.call(*args, **kwargs) if kwargs else operation.call(*args)
        if operation.name in _MAKES_NESTED:
            raise KernbenchError(
                f"{operation.name}: C++ keeps the shapes of nested tensors of layout torch.strided with their values, and "
                "there is no data: make them with layout=torch.jagged, or run with data"
            )
        found = survey(func, args, kwargs)
        if found.meta:
            return operation.call(*args, **kwargs)
        hollow, on_gpu = found.hollow, found.on_gpu
        if hollow and (plain := self._plain.get(found.key)) is not None:
            return _empty_strided(plain.size, plain.stride, dtype=plain.dtype)
        tensors, unknown, largest = found.tensors, found.unknown, found.largest
        wanted = kwargs.get("device") if kwargs else None
        if operation.host_reads:
            return self._looked(device, operation, args, kwargs, tensors, hollow=hollow, unknown=unknown or hollow)
        if operation.allocates and not on_gpu:
            return operation.call(*args, **(kwargs or {}))
        shape, what = _shapes[func], None
        on_gpu |= device.moving
        compute = not (hollow or operation.allocates) and largest <= self._most(on_gpu, tensors, kwargs)
        if compute and shape.sized and shape.given is None:
            what = self._described(operation, func, args, kwargs, found.key)
            made = _tensors_of(what)
            size = max([each.numel * (each.dtype.itemsize if on_gpu else 1) for each in made], default=0)
            compute = what is None or size <= self._most(on_gpu, made, kwargs)
        if compute:
            result = self._call(device, operation, args, kwargs)
            self._mark_computed(operation, shape, args, kwargs, result, unknown=unknown)
            return result
        if shape.given is not None:
            return self._written(operation, func, shape, args, kwargs)
        if what is None:
            what = self._described(operation, func, args, kwargs, found.key)
        if what is None:
            return self._call(device, operation, args, kwargs)
        for at, name in shape.written + shape.unsaid(args):
            for target in listed_tensors((_argument(args, kwargs, at, name),)):
                self._mark(target, None)
        stays = on_gpu and operation.kind != TRANSFER
        if stays and wanted is None and not shape.written and self._is_plain(operation, what):
            if len(self._plain) >= MOST_KNOWN:
                self._plain.clear()
            self._plain[found.key] = what
        made = self._made(what, func, operation, args, kwargs, on_gpu=stays)
        if stays and wanted is not None and wanted.type == "cuda":
            for tensor in listed_tensors((made,)):
                device.on_device(tensor, wanted)
        return made

    def _is_plain(self, operation: Recorded, what: Any) -> bool:
        """Whether what it gives is one hollow tensor of which nothing is assumed, whatever is of its arguments."""
        if type(what) is not Described or not what.dtype.is_floating_point or has_rule(operation.name):
            return False
        return what.numel * what.dtype.itemsize > self._storages.most_bytes

    @staticmethod
    def _most(on_gpu: bool, tensors: Any, kwargs: Any) -> int:
        """Elements up to which an operation is computed; tensors on a GPU that have more bytes are hollow anyway."""
        if on_gpu:
            return SMALL_BYTES
        dtype = next((each.dtype for each in tensors), None) or (kwargs or {}).get("dtype")
        if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
            return 1 << 30
        return SMALL_ON_HOST

    def _call(self, device: RankDevice, operation: Recorded, args: Any, kwargs: Any) -> Any:
        return super()._computed(device, operation, None, args, kwargs)

    def _described(self, operation: Recorded, func: Any, args: Any, kwargs: Any, key: Any) -> Any:
        """What it would give; None if nobody knows, so that it must be computed."""
        chosen = selected(operation.name, func, args, kwargs or {})
        if chosen is not None:
            return chosen
        try:
            return described(func, args, kwargs or {}, key)
        except UnknownShapeError as error:
            self._costs.unmodelled.say(f"computed without data: {operation.name}, as nobody knows what it gives")
            if any(each.numel() > SMALL_ON_HOST for each in listed_tensors(args)):
                raise KernbenchError(
                    f"{operation.name} has no shape rule (no meta or fake kernel), and its tensors are too large to compute "
                    f"without data: register one with torch.library.register_fake ({error})"
                ) from None
            return None

    # -- what is made and written ----------------------------------------------------------------------------------------

    def _made(self, what: Any, func: Any, operation: Recorded, args: Any, kwargs: Any, *, on_gpu: bool) -> Any:
        if type(what) is Described:
            return self._fresh(what, func, operation, args, kwargs, on_gpu)
        if type(what) in (list, tuple):
            return type(what)(self._made(each, func, operation, args, kwargs, on_gpu=on_gpu) for each in what)
        return what

    def _fresh(
        self, what: Described, func: Any, operation: Recorded, args: Any, kwargs: Any, on_gpu: bool
    ) -> torch.Tensor:
        tensor = allocate(what)
        small = tensor.nbytes <= self._storages.most_bytes
        value = assume(func, operation.name, args, kwargs or {}, what.dtype, what.numel)
        if small:
            if not places(operation.name, args, tensor):
                fill(tensor, value)
        elif on_gpu and value is None:
            return tensor  # as all that is large and on a GPU
        note = self._storages.note(tensor)
        note.hollow = not small
        note.stand_in = (0.0 if value is None else value) if small else value
        return tensor

    def _written(self, operation: Recorded, func: Any, shape: _Shape, args: Any, kwargs: Any) -> Any:
        given = [_argument(args, kwargs, at, name) for at, name in shape.written]
        for target in listed_tensors(given):
            value = None
            if not isinstance(given[0], list | tuple):
                value = assume(func, operation.name, args, kwargs or {}, target.dtype, target.numel())
                if value is None and (shape.out or operation.name in _OVERWRITES):
                    value = default_stand_in(target.dtype)
            self._mark(target, value)
        if not func._schema.returns:
            return None
        return given[0] if len(func._schema.returns) == 1 else tuple(given)

    def _mark(self, target: torch.Tensor, value: float | None) -> None:
        """What was written to ``target`` is not known: its elements are ``value`` on average, None: nothing is known."""
        stored = self._storages.note(target)
        stored.stated = False
        if not stored.hollow:
            if type(stored) is not Block and target.nbytes > self._storages.most_bytes:
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
            part = target.nbytes / whole
            value = before * (1.0 - part) + value * part
        stored.stand_in = value

    def _mark_computed(
        self, operation: Recorded, shape: _Shape, args: Any, kwargs: Any, result: Any, *, unknown: bool
    ) -> None:
        """Results of what is assumed are assumed; those of what is known are known."""
        if unknown:
            targets = [_argument(args, kwargs, at, name) for at, name in shape.written + shape.unsaid(args)]
            if operation.name in _OVERWRITES and not any(
                stored is not None and stored.unknown for stored in map(stored_of, listed_tensors(args[1:]))
            ):
                self._forget(targets[0])
                return
            for tensor in listed_tensors((*targets, *(result if isinstance(result, list | tuple) else (result,)))):
                note = self._storages.note(tensor)
                note.stated = False
                if note.stand_in is None:
                    note.stand_in = 0.0

    def _forget(self, target: torch.Tensor) -> None:
        """All of ``target`` is known now."""
        stored = stored_of(target)
        if stored is not None and not stored.hollow and target.nbytes == _storage(target).nbytes():
            stored.stand_in = None

    # -- what the host is told -------------------------------------------------------------------------------------------

    def _looked(
        self,
        device: RankDevice,
        operation: Recorded,
        args: Any,
        kwargs: Any,
        tensors: list[torch.Tensor],
        *,
        hollow: bool,
        unknown: bool,
    ) -> Any:
        """The value that the host gets."""
        if not hollow:
            answer = operation.call(*args, **(kwargs or {}))
        elif operation.name == "_local_scalar_dense":
            answer = scalar(tensors[0].dtype, element_of(tensors[0]))
        elif operation.name in ("equal", "allclose"):
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
            name = {"_local_scalar_dense": "item", "is_nonzero": "bool"}.get(operation.name, operation.name)
            self._assumptions.told(name, device.host.rank, answer, stated=by_itself)
        return answer


def scalar(dtype: torch.dtype, value: float) -> Any:
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
