"""Tensors of a context.

A :class:`Tensor` is a ``torch.Tensor`` in a SIP's memory, as one made with ``device="cuda"`` in a rank is: the same recorder
sees what is computed with it, at the same cost. What is added is that it *tells of looks*. Launches that write it may be kept
until a value is read, so that one drain runs the same kernel of many ranks; looking at a value first drains what the value
depends on.

Looking is a closed list, :data:`_HOST_READ_BARRIERS`. Everything else that torch can do with a tensor either reads its
metadata, makes a view, or is an operation of the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch

from kernbench.scheduler.carrier import has_own_thread
from kernbench.simulation.active_simulation import current_simulation
from kernbench.simulation.host_reads import COPIES
from kernbench.simulation.host_reads import ENTRY_POINTS as _HOST_READ_BARRIERS
from kernbench.simulation.memory.tensor_queries import plain, poison, tensors_in
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.hollow.assumed_numbers import marked
from kernbench.torch_backend.hollow.host_looks import NUMBERS, is_assumed, text, visible

_FRESH = frozenset({"empty_like", "new_empty", "empty", "new_empty_strided"})
"""Operations whose result is unwritten memory."""

_UNTOUCHED = frozenset(
    {
        # metadata
        "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "is_contiguous",
        "data_ptr", "is_complex", "is_floating_point", "is_signed", "is_inference", "is_conj", "is_neg", "is_pinned",
        "is_shared", "is_same_size", "is_set_to", "get_device", "has_names", "__len__", "__hash__", "requires_grad_",
        "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "is_coalesced", "dense_dim", "sparse_dim",
        "__set__", "__delete__", "_is_view", "_version", "__setstate__", "nbytes", "itemsize", "__get__", "as_subclass",
        # views: what copies if it must (reshape, flatten, contiguous) is an operation
        "view", "view_as", "t", "transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "detach", "expand",
        "expand_as", "squeeze", "unsqueeze", "narrow", "select", "chunk", "split", "split_with_sizes", "tensor_split",
        "unbind", "unflatten", "diagonal", "unfold", "alias", "as_strided", "broadcast_to", "real", "imag", "mT", "mH", "T",
        "H", "adjoint", "hsplit", "vsplit", "dsplit", "values", "indices", "view_as_real", "view_as_complex",
    }
)  # fmt: skip
"""What neither reads nor writes values: kept launches need not run for it."""

_Base: Any = torch.Tensor
_GRAD = _Base.grad.__get__
"""What torch gives as a plain tensor."""

UNTOUCHED, READ, COPY, COMPUTE = range(4)
_kinds: dict[Any, int] = {_Base.data.__get__: READ}


def _classify(func: object) -> int:
    name = getattr(func, "__name__", "")
    if name in _HOST_READ_BARRIERS:
        kind = READ
    elif name in _UNTOUCHED:
        kind = UNTOUCHED
    else:
        kind = COPY if name == "copy_" else COMPUTE
    _kinds[func] = kind
    return kind


class Tensor(torch.Tensor):
    """A tensor in a SIP's memory. Made by a context (``ctx.zeros`` ...), not by its constructor."""

    tells_of_looks = True

    @classmethod
    def __torch_function__(cls, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kind = _kinds.get(func)
        if kind is None:
            kind = _classify(func)
        simulation = None if kind == UNTOUCHED else current_simulation()
        if simulation is None or simulation.hosts.inside_kernel:
            result = super().__torch_function__(func, types, args, kwargs or {})
            return result if func != _GRAD or result is None else result.as_subclass(cls)
        host = simulation.hosts.current()
        if kind == READ:
            name = getattr(func, "__name__", "").replace("__get__", "data")
            simulation.host_reads.before(tensors_in(args, kwargs), name)
            if name in _SHOWN and is_assumed(simulation, args[0]):
                return _assumed(simulation, func, name, args, kwargs)
            if name != "__getitem__":  # which also is a view, or a kernel that gathers
                with host.as_one():
                    if name == "cpu":  # a copy, as from a GPU
                        return plain(args[0]).detach().clone()
                    return super().__torch_function__(func, types, args, kwargs or {})
        if kind == COPY:
            simulation.host_reads.before_copy(args[1])
            if not isinstance(args[0], Tensor):  # to the host, which is not to wait inside of torch's own code
                simulation.host_reads.finish_stream(host.stream)
        simulation.values.before_use(tensors_in(args, kwargs))
        host.uses_gpu = True
        with nullcontext() if has_own_thread() else simulation.torch_recorder.recording():
            result = super().__torch_function__(func, types, args, kwargs or {})
        if func.__name__ in _FRESH and simulation.engine.enable_data:
            with host.as_one():
                poison(plain(result))
        return result

    # torch does not offer these to __torch_function__ by name, or not before it has looked at the values

    def __iter__(self) -> Iterator[Any]:
        _look_at(self, "__iter__")
        return super().__iter__()

    def __str__(self) -> str:
        return repr(self)

    def __format__(self, spec: str) -> str:
        _look_at(self, "__format__")
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __reduce_ex__(self, protocol: object) -> Any:
        _look_at(self, "__reduce_ex__")
        return plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        _look_at(self, "__deepcopy__")
        return self.clone()


_SHOWN = COPIES - {"equal", "allclose", "cpu", "__reduce_ex__"}
"""Looks at which an assumed value must say so."""


def _assumed(simulation: Simulation, func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What a look at a tensor shows whose values were not computed."""
    seen = visible(simulation, args[0], name.strip("_"))
    with simulation.hosts.current().as_one():
        if name == "__repr__":
            return text(args[0], lambda: repr(plain(args[0])))
        found = func(seen, *args[1:], **(kwargs or {}))
    return marked(found) if name in NUMBERS else found


def _look_at(tensor: torch.Tensor, name: str) -> None:
    simulation = current_simulation()
    if simulation is not None and not simulation.hosts.inside_kernel:
        simulation.host_reads.before((tensor,), name)


__all__ = ["_HOST_READ_BARRIERS", "Tensor"]
