"""What is assumed of values that are not computed: for each storage one number, what its elements are or are on average.

Most results are measured (activations, losses, norms), of which nothing is known: finite. What steers a program is counted and
told apart: masks, indices, counts. Their average survives what programs do with them, so that a router's choice of k experts of
n gives a mask that is true k times in n, counts that are balanced, and selections of the right length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from kernbench.simulation.memory.storages import NOTE, StorageTable, Stored
from kernbench.simulation.memory.tensor_queries import plain, storage_of
from kernbench.simulation.values import known_values
from kernbench.simulation.values.assumptions import blend, default_stand_in
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, wrapped_by
from kernbench.torch_backend.overloads import OpOverload


def stored_of(tensor: torch.Tensor) -> Stored | None:
    """What is noted with a tensor's storage, None if nothing."""
    try:
        return getattr(storage_of(tensor), NOTE, None)
    except (NotImplementedError, RuntimeError):
        return getattr(tensor, NOTE, None)


def has_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor's bytes are its values, known or assumed."""
    stored = stored_of(tensor)
    return stored is None or not stored.hollow


def is_unknown(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values were not computed from known ones."""
    stored = stored_of(tensor)
    if stored is None and type(tensor) not in PLAIN:
        return any(map(is_unknown, wrapped_by(tensor)))
    return stored is not None and known_values.is_unknown(stored, tensor)


def stand_in_of(tensor: torch.Tensor) -> float | None:
    """What a tensor's elements are on average; None where nothing is known of them."""
    stored = stored_of(tensor)
    if stored is not None and stored.hollow:
        return stored.stand_in
    if tensor.numel() == 0 or tensor.is_complex() or tensor.is_meta or tensor.numel() > 1 << 20:
        return None
    if tensor.dtype is torch.float4_e2m1fn_x2:  # torch converts none
        return None
    return float(tensor.double().mean()) if tensor.numel() > 1 or stored is None else float(tensor.double())


def element_of(tensor: torch.Tensor) -> float:
    """What an element of a tensor is taken to be."""
    found = stand_in_of(tensor)
    return default_stand_in(tensor.dtype) if found is None else found


def state(storages: StorageTable, tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Note that ``tensor`` has ``values``, of its shape and dtype: the bytes of a small one, the mean of another."""
    if not is_unknown(tensor):
        return
    note = storages.note(tensor)
    if not note.hollow:
        plain(tensor).data.copy_(values)
    elif tensor.numel():
        mean = float(values.real.double().mean())
        whole = storage_of(tensor).nbytes()
        part = min(1.0, tensor.nbytes / whole) if whole else 1.0
        before = default_stand_in(tensor.dtype) if note.stand_in is None else note.stand_in
        note.stand_in = blend(before, mean, part)
    if note.stand_in is None:
        note.stand_in = 0.0
    note.stated = tensor.nbytes == storage_of(tensor).nbytes()


class HollowCall:
    """An operation that is not computed, for the rules below.

    Args:
        func: the operation.
        args, kwargs: as it was called.
        numel: elements of its result.
    """

    def __init__(self, func: OpOverload, args: Any, kwargs: Any, numel: int) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.numel = numel

    def argument(self, at: int, name: str, default: Any = None) -> Any:
        """An argument by place or name."""
        return self.args[at] if at < len(self.args) else self.kwargs.get(name, default)

    def parameter(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the operation's schema."""
        names = [each.name for each in self.func._schema.arguments]
        return self.argument(names.index(name), name, default) if name in names else default

    def first(self) -> torch.Tensor | None:
        """The first tensor among the arguments, also in a list."""
        for value in self.args:
            if isinstance(value, torch.Tensor):
                return value
            if isinstance(value, list | tuple) and value and isinstance(value[0], torch.Tensor):
                return value[0]
        return None


Rule = Callable[[HollowCall], "float | None"]


def _keeps(call: HollowCall) -> float | None:
    first = call.first()
    return None if first is None else stand_in_of(first)


def _sums(call: HollowCall) -> float | None:
    first = call.first()
    mean = None if first is None else stand_in_of(first)
    return None if first is None or mean is None else mean * first.numel() / max(call.numel, 1)


def _counts(call: HollowCall) -> float | None:
    first = call.first()
    return None if first is None else first.numel() / max(call.numel, 1)


def _zero(call: HollowCall) -> float | None:
    return 0.0


def _one(call: HollowCall) -> float | None:
    return 1.0


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return stand_in_of(value)
    return None if isinstance(value, complex) else float(value)


def _filled_with(at: int, name: str) -> Rule:
    return lambda call: _number(call.argument(at, name, 0.0))


def _mixed(at: int, name: str, share: Callable[[HollowCall, torch.Tensor], float]) -> Rule:
    """A share of the first tensor's elements is replaced by what the argument ``name`` says."""

    def rule(call: HollowCall) -> float | None:
        first = call.first()
        before, value = (None if first is None else stand_in_of(first)), call.argument(at, name)
        after = None if value is None else _number(value)
        if first is None or before is None or after is None:
            return None
        return blend(before, after, share(call, first))

    return rule


def _indexed(at: int, name: str) -> Callable[[HollowCall, torch.Tensor], float]:
    """Elements that an index names, of all."""

    def share(call: HollowCall, first: torch.Tensor) -> float:
        index = call.argument(at, name)
        return index.numel() / max(first.numel(), 1) if isinstance(index, torch.Tensor) else 0.0

    return share


def _rows_indexed(call: HollowCall, first: torch.Tensor) -> float:
    dim, index = call.args[1], call.args[2]
    return index.numel() / max(first.size(dim), 1)


def _masked(call: HollowCall, first: torch.Tensor) -> float:
    return element_of(call.args[1])


def _put(call: HollowCall, first: torch.Tensor) -> float:
    indices = [index for index in call.args[1] if index is not None]
    share = 1.0
    for dim, index in enumerate(indices):
        if index.dtype in (torch.bool, torch.uint8):
            share *= element_of(index)
        elif dim == 0:
            share *= index.numel() / max(first.numel() if len(indices) > 1 else first.size(0), 1)
    return share


def _opposite(call: HollowCall) -> float | None:
    first = call.first()
    if first is None:
        return None
    return 1.0 - min(1.0, element_of(first)) if first.dtype == torch.bool else _pointwise(call)


def _normal(call: HollowCall) -> float | None:
    return _number(call.parameter("mean", 0.0))


def _uniform(call: HollowCall) -> float | None:
    return (float(call.parameter("from", 0.0)) + float(call.parameter("to", 1.0))) / 2


def _bernoulli(call: HollowCall) -> float | None:
    share = call.parameter("p")
    return _keeps(call) if share is None else _number(share)


def _drawn(call: HollowCall) -> float | None:
    bounds = [value for value in call.args if type(value) is int]
    return float((bounds[0] + bounds[1]) // 2 if len(bounds) > 1 else bounds[0] // 2) if bounds else None


def _chosen(call: HollowCall) -> float | None:
    """``where(mask, this, that)``."""
    if len(call.args) < 3:
        return None
    this, that = _number(call.args[1]), _number(call.args[2])
    return None if this is None or that is None else blend(that, this, element_of(call.args[0]))


def _both(call: HollowCall) -> float | None:
    pair = call.args[:2]
    if all(isinstance(each, torch.Tensor) and each.dtype == torch.bool for each in pair):
        return min(1.0, element_of(pair[0])) * min(1.0, element_of(pair[1]))
    return _pointwise(call)


def _pointwise(call: HollowCall) -> float | None:
    """An elementwise operation, on one element of each tensor."""

    def single(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        element = element_of(value)
        return torch.tensor(element, dtype=value.dtype)

    try:
        result = call.func(*map(single, call.args), **{n: single(v) for n, v in call.kwargs.items() if n != "out"})
    except (RuntimeError, TypeError):
        return None
    return float(result) if isinstance(result, torch.Tensor) and result.numel() == 1 else None


def _of_infinity(call: HollowCall) -> float | None:
    """An elementwise operation of a tensor all of whose elements are infinite: what is average says nothing of its sizes."""
    first = call.first()
    mean = None if first is None else stand_in_of(first)
    return _pointwise(call) if mean is not None and math.isinf(mean) else None


def places(name: str, args: Any, tensor: torch.Tensor) -> bool:
    """Give the places that an operation such as ``topk`` found the values that are assumed; False: ``name`` finds none.

    No place is found more often than another: a router sends each expert as many tokens, and of the k places that a row has
    none is there twice. What is sorted was in order.
    """
    if name not in PLACES or tensor.dtype is not torch.int64 or not tensor.numel():
        return False
    count, dim = _choices(name, args)
    if name in ("sort", "argsort"):
        shape = [1] * tensor.dim()
        if shape:
            shape[dim] = count
        tensor.copy_(torch.arange(count).view(shape).expand(tensor.shape))
        return True
    moved = tensor.movedim(dim, -1) if name == "topk" and tensor.dim() else tensor
    moved.copy_((torch.arange(tensor.numel()) % max(count, 1)).view(moved.shape))
    return True


PLACES = frozenset({"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue", "median", "multinomial"})
"""Operations that tell where values are, or draw places."""


def _choices(name: str, args: Any) -> tuple[int, int]:
    """Among how many places one is named, and along which dimension."""
    first = args[0]
    if not first.dim():
        return 1, 0
    at = 2 if name in ("topk", "kthvalue") else 1
    ints = [value for value in args[1:] if type(value) is int]
    if name in ("sort", "argsort"):
        dim = ints[0] if ints else -1
    elif name in ("argmax", "argmin") and not ints:
        return first.numel(), 0
    else:
        dim = args[at] if len(args) > at and type(args[at]) is int and name != "multinomial" else -1
    return first.size(dim), dim


_ROWS: tuple[tuple[str, Rule], ...] = (
    (
        """to_copy clone contiguous index index_select gather take flip roll repeat constant_pad_nd embedding sort topk
        masked_select view_copy expand_copy permute_copy split_with_sizes_copy tril triu cat stack repeat_interleave
        mean amax amin max min cummax""",
        _keeps,
    ),
    ("copy", _filled_with(1, "src")),
    ("zeros zeros_like zero new_zeros empty empty_like new_empty empty_strided", _zero),
    ("ones ones_like new_ones", _one),
    ("full full_like fill", _filled_with(1, "fill_value")),
    ("new_full", _filled_with(2, "fill_value")),
    ("any", lambda call: float(bool(_keeps(call)))),
    ("all", lambda call: float((_keeps(call) or 0.0) >= 1.0)),
    ("sum count_nonzero", _sums),
    ("bincount histc", _counts),
    ("scatter scatter_add scatter_reduce", _mixed(3, "src", _indexed(2, "index"))),
    ("index_fill index_copy index_add", _mixed(3, "value", _rows_indexed)),
    ("masked_fill", _mixed(2, "value", _masked)),
    ("index_put unsafe_index_put", _mixed(2, "values", _put)),
    ("logical_not bitwise_not", _opposite),
    ("logical_and bitwise_and and", _both),
    ("where", _chosen),
    ("abs neg", _of_infinity),
    ("randint randint_like", _drawn),
    ("normal normal_functional randn randn_like", _normal),
    ("uniform rand rand_like", _uniform),
    ("bernoulli", _bernoulli),
)
_FOREACH = "_foreach_"
_RULES = {name: rule for names, rule in _ROWS for name in names.split()}


def has_rule(name: str) -> bool:
    """Whether more than the default of its dtype may be assumed of what the operation ``name`` gives."""
    return name.strip("_") in _RULES or name in PLACES


def keeps_to_stand_ins(name: str) -> bool:
    """Whether what is assumed of the result of ``name`` follows from what is assumed of its first tensor, and from shapes."""
    return _RULES.get(name.strip("_")) in (_keeps, _sums, _counts, _zero, _one) and name not in PLACES


def each_of_lists(name: str, at: int, args: Any) -> tuple[str, Any]:
    """The name and the arguments of an operation; of one that goes through lists (``_foreach_copy_``) those with which it is
    carried out at one place of them."""
    if not name.startswith(_FOREACH):
        return name, args
    return name.removeprefix(_FOREACH), [each[at] if isinstance(each, list | tuple) else each for each in args]


def assume(func: OpOverload, name: str, args: Any, kwargs: Any, dtype: torch.dtype, numel: int) -> float | None:
    """What is assumed of a result of ``dtype`` and ``numel`` elements; None: nothing but the default of its dtype.

    Args:
        func: the operation.
        name: of it, without overload.
        args, kwargs: as it was called.
    """
    if name in PLACES and dtype is torch.int64 and (name.startswith("arg") or args[0].dtype is not torch.int64):
        return (_choices(name, args)[0] - 1) / 2
    rule = _RULES.get(name.strip("_"))
    if rule is not None:
        return rule(HollowCall(func, args, kwargs, numel))
    if dtype.is_floating_point or dtype.is_complex:
        return None
    if torch.Tag.pointwise in func.tags and "_foreach" not in name:
        return _pointwise(HollowCall(func, args, kwargs, numel))
    return None


def counted(mean: float, numel: int) -> int:
    """How many elements of a mask or of values are not zero."""
    return min(numel, max(0, round(min(1.0, abs(mean)) * numel)))
