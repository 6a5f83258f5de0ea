"""What DTensor makes of an operation on shardings, found out once for all ranks that share a process.

DTensor keeps for each rank what an operation's placements come to. Finding it out runs the operation on fake tensors and weighs
all ways to redistribute its arguments: seconds for the first step of an optimizer over hundreds of parameters, and the same in
each rank, and in the scout that runs before them. Meshes of ranks are not equal (:mod:`device_meshes`), because what a rank has
of an uneven shard depends on its place. What is found out *here* does not: it is of whole tensors. So it is kept by layout,
with a number in the place of each mesh, and a rank gets a copy with its own meshes.

Not shared are operations whose arguments are made local, which depends on the rank; placements with a state of their own
(``_MaskPartial`` has the mask of a call); rules that are not torch's own; and whatever has other arguments than numbers and
words. Of the former, shapes of whole results are shared all the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from kernbench.topology import Topology
from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.tensor._sharding_prop"
_RULES = "torch.distributed.tensor._ops."
_MESH = "torch.distributed.device_mesh.DeviceMesh"
_SCHEMAS = "torch.distributed.tensor._op_schema"
_RANKS_OWN = "_thread_id"

RELIES_ON = (
    Reliance(
        f"{MODULE}.ShardingPropagator.propagate_op_sharding_non_cached", "what a call comes to depends on the call alone",
        parameters=("self", "op_schema"),
        looked_up_by=("torch.distributed.tensor._dispatch.OpDispatcher._propagate_op_sharding_dispatch_slow_path",),
    ),
    Reliance(
        f"{MODULE}.ShardingPropagator._propagate_tensor_meta_non_cached", "shapes of the whole results, by fake tensors",
        parameters=("self", "op_schema"),
        looked_up_by=(f"{MODULE}.ShardingPropagator.propagate_op_sharding_non_cached",),
    ),
    Reliance(
        f"{MODULE}.ShardingPropagator", "its tables: rules by operator, and the operators whose arguments it makes local",
        holds=lambda kind: {
            "op_strategy_funcs", "op_single_dim_strategy_funcs", "op_to_shape_and_stride_idx", "op_to_scalar_shape_adjuster",
        } <= vars(kind()).keys(),
    ),
    Reliance(f"{_MESH}._hash_key", "what makes meshes equal: attributes, of which one is the rank's own number",
             holds=lambda function: _RANKS_OWN in function.__code__.co_names and all(
                 name.startswith("_") for name in function.__code__.co_names)),
    Reliance(
        f"{MODULE}.DTensorSpec", "it is all of these, and a hash that is kept", parameters=(
            "mesh", "placements", "tensor_meta", "shard_order", "use_strided_shard_as_shard_order",
        ),
    ),
    Reliance(f"{MODULE}.DeviceMesh", "what a mesh is, where no program is compiled"),
    Reliance(f"{MODULE}.OpSchema", "a call; specs in its arguments", has=("_recompute_comparison_key",),
             parameters=("op", "args_schema", "kwargs_schema")),
    Reliance(
        f"{_SCHEMAS}.OutputSharding", "what an operation comes to; other fields have no mesh",
        parameters=("output_spec", "redistribute_schema", "needs_redistribute", "use_val_from_redistribute_schema"),
    ),
    Reliance("torch.distributed.tensor.placement_types", "placements without a state", has=(
        "Shard", "Replicate", "Partial", "_StridedShard",
    )),
)  # fmt: skip

_STATELESS = frozenset({"Shard", "Replicate", "Partial", "_StridedShard", "_NormPartial"})
"""Placements of torch's that say all there is to them."""
_PLAIN = frozenset({
    int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
})  # fmt: skip
_MOST = 1 << 14
"""Calls that are kept of one system."""


class _NotSharedError(Exception):
    """A call has something that is not shared."""


def _check_stateless(placements: Sequence[object]) -> None:
    """Raise :class:`_NotSharedError` if there is more to a placement than it says, or it is not torch's."""
    for each in placements:
        kind = type(each)
        if kind.__name__ not in _STATELESS or not kind.__module__.startswith("torch."):
            raise _NotSharedError


class _FoundOut(NamedTuple):
    """What a call has come to.

    Attributes:
        rules: torch's, by which it has been found out.
        result: with numbers in the place of meshes.
    """

    rules: tuple[object, Any]
    result: Any


class _SharedShardings:
    """What is known of calls on one system. ``shardings`` and ``shapes`` by what the calls look like."""

    def __init__(self) -> None:
        self.shardings: dict[object, _FoundOut] = {}
        self.shapes: dict[Any, Any] = {}


_stores: WeakKeyDictionary[Topology, _SharedShardings] = WeakKeyDictionary()
"""A scout has a simulation of its own, on the same system."""


class _CallLayout:
    """A call as it is looked up.

    Attributes:
        meshes: in the order in which it names them.
    """

    def __init__(self, kinds: _Kinds) -> None:
        self.meshes: list[object] = []
        self._kinds = kinds
        self._numbers: dict[int, int] = {}

    def key(self, value: Any) -> Any:
        """What a value looks like, in any rank. Raises :class:`_NotSharedError`."""
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if kind is self._kinds.spec:
            _check_stateless(value.placements)
            return (
                self._mesh(value.mesh), value.placements, value.tensor_meta, value.shard_order,
                value.use_strided_shard_as_shard_order,
            )  # fmt: skip
        if kind is tuple or kind is list:
            return kind, *[self.key(each) for each in value]
        if kind is dict:
            return kind, *[(name, self.key(each)) for name, each in value.items()]
        raise _NotSharedError

    def _mesh(self, mesh: Any) -> Any:
        number = self._numbers.get(id(mesh))
        if number is not None:
            return number
        if type(mesh) is not self._kinds.mesh:  # a compiler's stand-in for one, which says nothing of itself
            raise _NotSharedError
        self._numbers[id(mesh)] = len(self.meshes)
        self.meshes.append(mesh)
        equal, own = mesh._hash_key(), self._kinds.ranks_own
        return equal[:own] + equal[own + 1 :]

    def number(self, mesh: object) -> int:
        """The place of a mesh among those that it names. Raises :class:`_NotSharedError` of another one."""
        number = self._numbers.get(id(mesh))
        if number is None:
            raise _NotSharedError
        return number


class _Kinds:
    """The classes of what a call consists of."""

    def __init__(self, module: ModuleType) -> None:
        self.spec, self.schema, self.mesh = module.DTensorSpec, module.OpSchema, module.DeviceMesh
        self.ranks_own = self.mesh._hash_key.__code__.co_names.index(_RANKS_OWN)
        """Which part of what makes meshes equal is the rank's own number."""

    def with_meshes(self, value: Any, meshes: Callable[[Any], Any], done: dict[int, Any]) -> Any:
        """A copy of what a call comes to, with other meshes. What is one object stays one."""
        kind = type(value)
        if kind is self.spec:
            made = done.get(id(value))
            if made is None:
                _check_stateless(value.placements)
                made = done[id(value)] = copy.copy(value)
                made.mesh, made._hash = meshes(value.mesh), None
            return made
        if kind is self.schema:
            made = copy.copy(value)
            made.args_schema = self.with_meshes(value.args_schema, meshes, done)
            made.kwargs_schema = self.with_meshes(value.kwargs_schema, meshes, done)
            return made
        if kind is tuple or kind is list:
            return kind([self.with_meshes(each, meshes, done) for each in value])
        if kind is dict:
            return {name: self.with_meshes(each, meshes, done) for name, each in value.items()}
        if kind in _PLAIN:
            return value
        raise _NotSharedError

    def result(self, found: Any, meshes: Callable[[Any], Any], *, ends: bool) -> Any:
        """The same of a whole result; ``ends``: it is for a rank, which compares schemas by a key of their own."""
        made, done = copy.copy(found), dict[int, Any]()
        made.__dict__.pop("mesh", None)  # it is found out when it is asked for
        made.output_spec = self.with_meshes(found.output_spec, meshes, done)
        made.redistribute_schema = self.with_meshes(found.redistribute_schema, meshes, done)
        if made.redistribute_schema is not None:
            if ends:
                made.redistribute_schema._recompute_comparison_key()
            else:
                made.redistribute_schema._comparison_key = None
        return made


def install(patches: Patches, module: ModuleType) -> None:
    """Have ranks find what others have found out."""
    kinds, propagator = _Kinds(module), module.ShardingPropagator
    stock_shapes = propagator._propagate_tensor_meta_non_cached
    stock = propagator.propagate_op_sharding_non_cached

    def shapes(self: object, op_schema: Any) -> Any:
        store = _store()
        if store is None or op_schema.op.namespace != "aten":
            return stock_shapes(self, op_schema)
        try:
            key = (
                op_schema.op, torch.get_default_dtype(), _described(kinds, op_schema.args_schema),
                _described(kinds, op_schema.kwargs_schema),
            )  # fmt: skip
            found = store.shapes[key]
        except (_NotSharedError, TypeError):
            return stock_shapes(self, op_schema)
        except KeyError:
            found = stock_shapes(self, op_schema)
            _keep(store.shapes, key, found)
        return [*found] if type(found) is list else found

    patches.set(propagator, "propagate_op_sharding_non_cached", _shared(kinds, stock))
    patches.set(propagator, "_propagate_tensor_meta_non_cached", shapes)


def _store() -> _SharedShardings | None:
    """What is known on the system of the rank that runs; None outside ranks."""
    device = current_device()
    if device is None:
        return None
    topology = device.simulation.topology
    store = _stores.get(topology)
    if store is None:
        store = _stores[topology] = _SharedShardings()
    return store


def _keep(known: dict[Any, Any], key: object, value: object) -> None:
    if len(known) >= _MOST:
        known.clear()
    known[key] = value


def _described(kinds: _Kinds, value: Any) -> Any:
    """What the shapes of a call's results depend on."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is kinds.spec:
        return value.tensor_meta, value.mesh.device_type
    if kind is tuple or kind is list:
        return kind, *[_described(kinds, each) for each in value]
    if kind is dict:
        return kind, *[(name, _described(kinds, each)) for name, each in value.items()]
    raise _NotSharedError


def _rules(propagator: Any, op: object) -> tuple[Any, Any] | None:
    """torch's own rules for an operator; None if it has none, or what it comes to depends on the rank."""
    if op in propagator.op_to_shape_and_stride_idx or op in propagator.op_to_scalar_shape_adjuster:
        return None
    rules = propagator.op_single_dim_strategy_funcs.get(op), propagator.op_strategy_funcs.get(op)
    given: Sequence[Any] = [getattr(rule, "func", rule) for rule in rules if rule is not None]
    own = given and all(str(getattr(rule, "__module__", "")).startswith(_RULES) for rule in given)
    return rules if own else None


def _shared(kinds: _Kinds, stock: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """What finds out what a call comes to, if no rank has."""

    def propagate(propagator: object, op_schema: Any) -> Any:
        store, rules = _store(), _rules(propagator, op_schema.op)
        if store is None or rules is None:
            return stock(propagator, op_schema)
        call = _CallLayout(kinds)
        device = current_device()
        assert device is not None
        try:
            key = (
                op_schema.op, len(device.sees()), torch.get_default_dtype(), call.key(op_schema.args_schema),
                call.key(op_schema.kwargs_schema),
            )  # fmt: skip
            known = store.shardings.get(key)
        except (_NotSharedError, TypeError):
            return stock(propagator, op_schema)
        if known is not None and all(one is other for one, other in zip(known.rules, rules, strict=True)):
            return kinds.result(known.result, call.meshes.__getitem__, ends=True)
        found = stock(propagator, op_schema)
        try:
            result = kinds.result(found, call.number, ends=False)
        except _NotSharedError:
            return found
        _keep(store.shardings, key, _FoundOut(rules, result))
        return found

    return propagate
