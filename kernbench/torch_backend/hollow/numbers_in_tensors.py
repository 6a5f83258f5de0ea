"""Numbers that were assumed go back into tensors: ``stats[0] += loss.item()``, ``torch.tensor(loss.item())``.

C++ takes the bare value of a number, and what is computed of it would be known. Where torch's own dispatch of functions sees
such a number (it does where an argument may be a number or a tensor), and where tensors are made of Python's numbers, the
tensors that come out are noted as assumed: their bytes are those that were computed.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.simulation.active_simulation import current_simulation
from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.torch_backend.gpu.tensors.placement import is_described, stored_in
from kernbench.torch_backend.overloads import OpOverload

_TAKE_SIZES = frozenset({
    "view", "reshape", "repeat", "expand", "new_zeros", "new_ones", "new_empty", "split", "split_with_sizes", "tile",
    "unflatten", "as_strided", "tensor_split", "chunk", "unfold", "narrow", "repeat_interleave", "__getitem__",
})  # fmt: skip
"""Functions whose numbers say how large their results are, or where they begin, not what is in them."""


def operate(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """``func(*args, **kwargs)``, one of whose arguments was assumed, and is bare now."""
    result = func(*args, **kwargs)
    name = getattr(func, "__name__", "")
    if name in _TAKE_SIZES:
        return result
    listed = result if isinstance(result, list | tuple) else (result,)
    writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
    assumed(listed_tensors((*listed, *(args[:1] if writes else ()))))
    return result


def assumed(tensors: Any) -> None:
    """Note that the values of ``tensors`` are assumed, in a simulation without data."""
    simulation = current_simulation()
    if simulation is None or simulation.engine.enable_data:
        return
    for tensor in tensors:
        if is_described(type(tensor)):
            continue
        for part in stored_in(tensor):
            if part.is_meta or part.layout is not torch.strided:
                continue
            stored = simulation.storages.note(part)
            stored.stated = False
            if not stored.hollow and stored.stand_in is None:
                stored.stand_in = 0.0
