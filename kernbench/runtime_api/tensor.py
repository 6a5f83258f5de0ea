"""Tensors of a context.

A :class:`Tensor` is a ``torch.Tensor``: any torch function takes it. What is added is *when*: an operation on it is
enqueued on the stream of the SIP that its rank drives, and looking at a value first drains what the value depends on.

Looking is a closed list, :data:`_HOST_READ_BARRIERS`. Everything else that torch can do with a tensor either reads its
metadata, makes a view, or is an operation of the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kernbench.runtime_api.current import current_context

_HOST_READ_BARRIERS: tuple[str, ...] = (
    "numpy", "data", "item", "tolist", "cpu", "is_nonzero", "equal", "allclose", "storage", "untyped_storage",
    "__getitem__", "__repr__", "__str__", "__format__", "__bool__", "__float__", "__int__", "__index__", "__complex__",
    "__array__", "__iter__", "__contains__", "__dlpack__", "__reduce_ex__", "__deepcopy__",
)  # fmt: skip
"""Every entry point through which the host looks at a value. Closed: a test compares it with torch's own list."""

HOST_COPIES = frozenset(_HOST_READ_BARRIERS) - {
    "data", "storage", "untyped_storage", "__getitem__", "__iter__", "__str__", "__deepcopy__",
}  # fmt: skip
"""Those that bring values to the host. The others make a view, and work without values too."""

COMPARED_ON_DEVICE = frozenset({"equal", "allclose", "is_nonzero", "__contains__"})
"""Those of them that bring a verdict, not the tensor."""

FRESH = frozenset({"empty_like", "new_empty", "empty", "new_empty_strided"})
"""Operations whose result is memory that nobody has written."""

_METADATA = frozenset(
    {
        "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "is_contiguous",
        "data_ptr", "is_complex", "is_floating_point", "is_signed", "is_inference", "is_conj", "is_neg", "is_pinned",
        "is_shared", "is_same_size", "is_set_to", "get_device", "has_names", "__len__", "__hash__", "requires_grad_",
        "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "is_coalesced", "dense_dim", "sparse_dim",
        "__set__", "__delete__", "_is_view", "_version", "__setstate__", "nbytes", "itemsize", "backward",
    }
)  # fmt: skip

# reshape, flatten, ravel and contiguous may copy: they are operations, which cost nothing when they end as views
_VIEWS = frozenset(
    {
        "view", "view_as", "t", "transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "detach", "expand",
        "expand_as", "squeeze", "unsqueeze", "narrow", "select", "chunk", "split", "split_with_sizes", "tensor_split",
        "unbind", "unflatten", "diagonal", "unfold", "alias", "as_strided", "as_subclass", "broadcast_to", "real", "imag",
        "mT", "mH", "T", "H", "adjoint", "hsplit", "vsplit", "dsplit", "values", "indices", "__get__", "view_as_real",
        "view_as_complex",
    }
)  # fmt: skip

META, VIEW, READ, COPY, COMPUTE = range(5)
_BASE = torch.Tensor.__torch_function__
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_kinds: dict[Any, int] = {torch.Tensor.data.__get__: READ}  # type: ignore[attr-defined]


def _classify(func: Any) -> int:
    name = getattr(func, "__name__", "")
    if name in _HOST_READ_BARRIERS:
        kind = READ
    elif name in _VIEWS:
        kind = VIEW
    elif name in _METADATA:
        kind = META
    elif name == "copy_":
        kind = COPY
    else:
        kind = COMPUTE
    _kinds[func] = kind
    return kind


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor without the subclass: operations on it are neither recorded nor drained for."""
    if type(tensor) is Tensor:
        result: torch.Tensor = _BASE(torch.Tensor.as_subclass, (), (tensor, torch.Tensor))
        return result
    return tensor


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The storage of a tensor, without looking at its values."""
    if type(tensor) in _PLAIN:
        return tensor.untyped_storage()
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage()


def tensors_in(args: Any, kwargs: Any = None) -> Iterator[torch.Tensor]:
    """Every tensor in nested arguments."""
    for value in args:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())
    if kwargs:
        yield from tensors_in(kwargs.values())


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill fresh memory with what shows: NaN for floats, the largest value for integers, True for booleans."""
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.fill_(float("nan"))
    return tensor.fill_(torch.iinfo(tensor.dtype).max)


class Tensor(torch.Tensor):
    """A tensor in a SIP's memory. Made by a context (``ctx.zeros`` ...), not by its constructor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = _kinds.get(func)
        if kind is None:
            kind = _classify(func)
        if kind <= VIEW:
            return super().__torch_function__(func, types, args, kwargs or {})
        ctx = current_context()
        if ctx is None or ctx._inside_kernel:
            return super().__torch_function__(func, types, args, kwargs or {})
        if kind == READ:
            ctx._before_host_read(tensors_in(args, kwargs), getattr(func, "__name__", "").replace("__get__", "data"))
            return super().__torch_function__(func, types, args, kwargs or {})
        if kind == COPY:
            ctx._before_copy(args[0], args[1])
        ctx._before_compute(tensors_in(args, kwargs))
        with ctx._operation_of_its_own():
            result = super().__torch_function__(func, types, args, kwargs or {})
        if func.__name__ in FRESH and not result.is_meta:
            poison(plain(result))
        ctx._record_compute(func, args, kwargs, result)
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

    def __reduce_ex__(self, protocol: Any) -> Any:
        _look_at(self, "__reduce_ex__")
        return plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        _look_at(self, "__deepcopy__")
        return self.clone()


def _look_at(tensor: torch.Tensor, name: str) -> None:
    ctx = current_context()
    if ctx is not None and not ctx._inside_kernel:
        ctx._before_host_read((tensor,), name)
