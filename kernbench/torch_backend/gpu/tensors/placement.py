"""Which tensors are on a simulated GPU.

A tensor that a program has put on ``cuda`` is a CPU tensor whose storage is noted to be on a SIP
(:mod:`kernbench.simulation.memory.storages`). Operations on such tensors give such tensors.

A subclass that wraps tensors (DTensor, AsyncCollectiveTensor) is where they are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernbench.simulation.memory.storages import NOTE, Block, DeviceMemory, Stored
from kernbench.simulation.memory.tensor_queries import nbytes_of, storage_of, tells_of_looks
from kernbench.simulation.order.shadow_memory import forget
from kernbench.simulation.values.assumptions import mean_of
from kernbench.torch_backend.modes import plain_torch
from kernbench.torch_backend.relies_on import Reliance

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that have a storage of their own."""


def _keeps_attributes(untyped_storage: Any) -> bool:
    tensor = torch.zeros(1)
    untyped_storage(tensor).kernbench_seen = True
    view = tensor.view(-1)
    del tensor
    return bool(untyped_storage(view).kernbench_seen)


RELIES_ON = (
    Reliance("torch._C.TensorBase.untyped_storage", "its Python object, with attributes, lives as long as the storage",
             holds=_keeps_attributes),
    Reliance("torch._C.TensorBase.numpy", "it shares the memory, whatever class of Python the tensor has",
             holds=lambda numpy: numpy(made := torch.zeros(1)).ctypes.data == made.data_ptr()),
    Reliance("torch._C._functorch", "what a transform has wrapped has no storage of its own", has=(
        "is_functorch_wrapped_tensor", "get_unwrapped", "maybe_get_level", "peek_interpreter_stack",
        "pop_dynamic_layer_stack", "push_dynamic_layer_stack", "is_batchedtensor",
    )),
    Reliance(
        "torch.distributed.tensor.DTensor.__tensor_flatten__", "it names the attributes of a wrapper that are tensors",
        parameters=("self",),
    ),
)  # fmt: skip


_untyped_storage: Any = torch._C.TensorBase.untyped_storage
_functorch: Any = torch._C._functorch


def _storage(tensor: torch.Tensor) -> Any:
    """A tensor's storage. Its class is not asked: it may tell of looks, of which this is none, or refuse (lazy parameters)."""
    return _untyped_storage(tensor) if type(tensor) in PLAIN else storage_of(tensor)


def block_of(tensor: torch.Tensor) -> Block | None:
    """The block of a tensor's storage, None if it is not on a simulated GPU."""
    try:
        stored = getattr(_untyped_storage(tensor) if type(tensor) in PLAIN else storage_of(tensor), NOTE, None)
    except (NotImplementedError, RuntimeError):  # sparse tensors and tensors without memory have no storage
        stored = getattr(tensor, NOTE, None) or next(map(block_of, components_of(tensor)), None)
    if type(stored) is Block:
        return stored
    if type(tensor) not in PLAIN:
        return next(filter(None, map(block_of, wrapped_by(tensor))), None)
    return None


def is_on_gpu(value: object) -> bool:
    """Whether it is a tensor on a simulated GPU, or one whose class tells of looks, which is one of the context's."""
    return isinstance(value, torch.Tensor) and (block_of(value) is not None or tells_of_looks(value))


def values_of(tensor: torch.Tensor) -> Any:
    """The memory of a tensor as a numpy array, for what stands for a GPU: it is not the host that looks."""
    with plain_torch():  # no mode sees it: a program's would have torch.Tensor's called, and a recorder charge the host
        return torch._C.TensorBase.numpy(tensor)


class _Flattened(threading.local):
    """The wrappers that a thread takes apart."""

    wrappers: tuple[torch.Tensor, ...] = ()


_flattened = _Flattened()


def wrapped_by(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a wrapper consists of; none for others, and none while it says which: it may ask itself where it is."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    outer = _flattened.wrappers
    if flatten is None or any(each is tensor for each in outer):
        return []
    _flattened.wrappers = (*outer, tensor)
    try:
        names = flatten(tensor)[0]
        return [part for part in (getattr(tensor, name, None) for name in names) if isinstance(part, torch.Tensor)]
    finally:
        _flattened.wrappers = outer


def components_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The indices and values that a sparse tensor of C++ consists of, or what a transform of :mod:`torch.func` has wrapped;
    none for others."""
    names = _COMPONENTS.get(tensor.layout, ())
    if not names:
        return [_functorch.get_unwrapped(tensor)] if is_wrapped_by_transform(tensor) else []
    with plain_torch():
        return [getattr(torch._C.TensorBase, name)(tensor) for name in names]


def is_wrapped_by_transform(tensor: torch.Tensor) -> bool:
    """Whether a tensor is what a transform of :mod:`torch.func` shows of one, and has no memory of its own."""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor))


def is_batch(tensor: torch.Tensor) -> bool:
    """Whether a tensor is what ``torch.vmap`` shows of a batch of them."""
    return bool(_functorch.is_batchedtensor(tensor))


@contextmanager
def beneath_transform(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """What a transform has wrapped; for the length of a block this transform, and those within it, do not see operations."""
    level, layers = _functorch.maybe_get_level(tensor), []
    while (top := _functorch.peek_interpreter_stack()) is not None and top.level() >= level:
        layers.append(_functorch.pop_dynamic_layer_stack())
    try:
        yield _functorch.get_unwrapped(tensor)
    finally:
        while layers:
            _functorch.push_dynamic_layer_stack(layers.pop())


def is_sparse(tensor: torch.Tensor) -> bool:
    """Whether a tensor consists of indices and values."""
    return tensor.layout in _COMPONENTS


_ROWS, _COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_COMPONENTS = {
    torch.sparse_coo: ("_indices", "_values"), torch.sparse_csr: _ROWS, torch.sparse_bsr: _ROWS, torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
}  # fmt: skip
"""Methods that give what is stored, by layout."""


def stored_in(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with a storage that a tensor consists of: itself, unless it is a wrapper."""
    if type(tensor) in PLAIN or not (parts := wrapped_by(tensor)):
        return [tensor]
    return [stored for part in parts for stored in stored_in(part)]


def is_described(cls: type) -> bool:
    """Whether tensors of this class say what a tensor would be, and hold no data: fake and functional tensors."""
    return cls.__module__.startswith("torch._subclasses.")


def place(tensor: torch.Tensor, memory: DeviceMemory | None) -> None:
    """Put a tensor's storage on a SIP, or (None) back on the host."""
    try:
        storage = _storage(tensor)
        nbytes = storage.nbytes()
    except (NotImplementedError, RuntimeError):
        storage, nbytes = tensor, 0
        for part in components_of(tensor):
            place(part, memory)
    put(storage, nbytes, memory)


def place_result(tensor: torch.Tensor, memory: DeviceMemory) -> None:
    """Put what an operation has made on a SIP, unless it is on one."""
    if type(tensor) in PLAIN:
        try:
            storage = _untyped_storage(tensor)
            nbytes = storage.nbytes()
        except (NotImplementedError, RuntimeError):
            pass
        else:
            note = getattr(storage, NOTE, None)
            if type(note) is not Block:
                block = memory.hold(nbytes)
                if note is not None:
                    block.take_over(note)
                    if block.hollow and not note.hollow and not tensor.dtype.is_floating_point:
                        block.stand_in = mean_of(tensor)
                setattr(storage, NOTE, block)
            return
    if block_of(tensor) is None:
        place(tensor, memory)


def recount(tensor: torch.Tensor) -> None:
    """Count a tensor's bytes on a SIP again where a kernel has given its storage another size."""
    if type(tensor) in PLAIN and tensor.layout is torch.strided:
        storage = _untyped_storage(tensor)
        note = getattr(storage, NOTE, None)
        if type(note) is Block and note.nbytes != (nbytes := storage.nbytes()):
            forget(storage)
            note.resize(nbytes)


def put(storage: torch.UntypedStorage, nbytes: int, memory: DeviceMemory | None, *, shared: bool = False) -> None:
    """Put a storage (or a tensor without one), which takes ``nbytes`` there, on a SIP, or (None) back on the host.

    ``shared``: other ranks address it too, each as memory of its own device (symmetric memory).
    """
    note = getattr(storage, NOTE, None)
    if memory is None:
        if note is not None:
            if note.unknown:  # and on the host it is what it was
                on_host = Stored(note.table)
                on_host.hollow, on_host.stand_in, on_host.missing = note.hollow, note.stand_in, note.missing
                setattr(storage, NOTE, on_host)
            else:
                delattr(storage, NOTE)
    elif type(note) is not Block or note.memory is not memory:
        block = memory.hold(nbytes, shared=shared)
        if note is not None:
            block.take_over(note)
        setattr(storage, NOTE, block)


def place_wrapper(tensor: torch.Tensor, memory: DeviceMemory) -> None:
    """Let a wrapper whose parts are not known say that it is on a SIP; it takes no memory there itself."""
    put(_untyped_storage(tensor), 0, memory)


def place_shared(tensor: torch.Tensor, memory: DeviceMemory) -> None:
    """Put a fresh tensor's storage on a SIP where other ranks address it too."""
    put(tensor.untyped_storage(), tensor.untyped_storage().nbytes(), memory, shared=True)


def block_of_storage(storage: torch.UntypedStorage) -> Block | None:
    """The block of a storage, typed or not, None if it is not on a simulated GPU."""
    stored = getattr(getattr(storage, "_untyped_storage", storage), NOTE, None)
    return stored if type(stored) is Block else None


def stored_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of what tensors consist of: of a sparse one its indices and values."""
    return nbytes_of(part for tensor in tensors for part in components_of(tensor) or (tensor,))


def place_storage(storage: torch.UntypedStorage, memory: DeviceMemory) -> None:
    """Put an untyped storage on a SIP."""
    put(storage, storage.nbytes(), memory)
