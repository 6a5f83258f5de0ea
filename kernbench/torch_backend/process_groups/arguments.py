"""The arguments of a process group's methods, which torch gives in several forms: as tensors or lists of lists of them, and as
option objects or plain values."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from kernbench.ccl.libraries import Library
from kernbench.ccl.reduce_op import ReduceOp, multiplied
from kernbench.errors import KernbenchError
from kernbench.simulation.memory.tensor_queries import plain
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.values.collective_cells import Cells, wholes
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, block_of, is_described
from kernbench.torch_backend.hollow.stand_ins import is_unknown
from kernbench.torch_backend.modes import plain_torch

Tensors = Sequence[torch.Tensor]


_GLOO_TAKES_ONE = {
    "reduce": "ProcessGroupGloo::reduce: requires a single-element tensor list",
    "gather": "ProcessGroupGloo::gather: requires a single-element input tensor list",
    "scatter": "ProcessGroupGloo::scatter: requires a single-element output tensor list",
    "reduce_scatter": "reduce_scatter only supports 1 output",
    "message": "ProcessGroupGloo::send takes a single tensor",
}
"""What torch 2.13's gloo says of another number of tensors, by operation; of messages that are received, too."""


def one_tensor(tensors: Any, op: str = "", backend: str = "") -> torch.Tensor:
    """The tensor of a call that takes a list with one entry per local device, of which a rank has one.

    Raises of none torch's NotImplementedError; of another number RuntimeError with gloo's words where the ``backend`` is gloo
    and its ``op`` takes one, else ValueError. (Gloo's all_reduce, broadcast and all_gather take several; here they do not.)
    """
    if isinstance(tensors, torch.Tensor):
        return plain(tensors)
    if not len(tensors):
        raise NotImplementedError(
            "There were no tensor arguments to this function (e.g., you passed an empty list of Tensors), but no fallback "
            f"function is registered for schema c10d::{op or 'the operation'}_"
        )
    if len(tensors) != 1:
        if backend == "gloo" and op in _GLOO_TAKES_ONE:
            raise RuntimeError(f"{_GLOO_TAKES_ONE[op]}, and was given {len(tensors)}")
        raise ValueError(f"expected one tensor per rank, found {len(tensors)}: a rank drives one device")
    first = tensors[0]
    return plain(first) if isinstance(first, torch.Tensor) else one_tensor(first)


def tensor_list(lists: Any) -> list[torch.Tensor]:
    """The tensors of a call that takes a list of lists, or a list."""
    if lists and not isinstance(lists[0], torch.Tensor):
        lists = lists[0]
    return list(map(plain, lists))


def parts_of(inputs: Tensors, outputs: Tensors) -> list[tuple[Tensors, Tensors]] | None:
    """Inputs and outputs of a call once for each of the tensors that they hold, where they are of a class that only holds
    others (``__tensor_flatten__``): torch dispatches a collective to such a class, which calls it with each of what it holds.

    None for other tensors. Raises :class:`KernbenchError` if only some are of such a class, or hold others than the first.
    """
    tensors: tuple[Any, ...] = (*wholes(inputs), *wholes(outputs))
    if not any(type(tensor) not in PLAIN and _holds_others(type(tensor)) for tensor in tensors):
        return None
    held = [tensor.__tensor_flatten__()[0] if _holds_others(type(tensor)) else [] for tensor in tensors]
    if any(names != held[0] for names in held):
        kinds = sorted({type(tensor).__name__ for tensor in tensors})
        raise KernbenchError(
            f"a collective of {' and '.join(kinds)}: tensors that hold others have to be given together, and hold the same"
        )
    return [([getattr(each, name) for each in inputs], [getattr(each, name) for each in outputs]) for name in held[0]]


def _holds_others(cls: type) -> bool:
    """Not DTensor, which says itself what a call with it means, and not fake tensors, which have nothing inside."""
    return (
        hasattr(cls, "__tensor_flatten__")
        and not cls.__module__.startswith("torch.distributed.")
        and not is_described(cls)
    )


def cells_of(tensor: torch.Tensor, size: int) -> Tensors:
    """The parts of a flat tensor that have ``size`` elements each."""
    if type(tensor) not in PLAIN:
        return tensor.split(size)
    # the host is charged for cutting it as if the parts were made here, which is one view
    return Cells(tensor.split(tensor.numel())[0], size, _parts)


def _parts(tensor: torch.Tensor, size: int) -> Tensors:
    """Parts of a tensor, which are no operations of the program."""
    with plain_torch(), torch.no_grad():
        return tensor.split(size)


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def require_contiguous(op: str, tensors: Tensors) -> bool:
    """NCCL moves memory, whatever strides say. Raises ValueError, as its groups do, if a tensor on a GPU is not contiguous.

    Returns whether one is channels-last, which they take: its memory has another order than its elements (:func:`in_memory`).
    """
    reordered = False
    for tensor in tensors:
        if tensor.is_contiguous() or block_of(tensor) is None:
            continue
        if not is_channels_last(tensor):
            raise ValueError(
                f"Tensors must be contiguous: {op} was given one of shape {tuple(tensor.shape)} and strides {_strides(tensor)}"
                "; give it tensor.contiguous()"
            )
        reordered = True
    return reordered


def in_memory(tensors: Tensors) -> Tensors:
    """What NCCL moves of tensors: of channels-last ones a flat view of their memory. (Torch flattens a list of tensors into
    one with the strides that they have, too.)"""
    if type(tensors) is Cells:  # of a tensor that is flat
        return tensors
    return [
        _memory_of(tensor) if is_channels_last(tensor) and block_of(tensor) is not None else tensor
        for tensor in tensors
    ]


def in_one_piece(op: str, tensor: torch.Tensor, backend: str) -> torch.Tensor:
    """A tensor that a group cuts into parts; of a channels-last one on a GPU a flat view of its memory, unless gloo moves it.

    Raises ValueError, as torch's groups do, of other strides.
    """
    if tensor.is_contiguous() or backend == "gloo" or not require_contiguous(op, (tensor,)):
        return tensor
    return _memory_of(tensor)


def _memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of as many elements as a tensor has, from its first one on."""
    with plain_torch(), torch.no_grad():
        return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


_STRIDED_MESSAGE = (
    "Detected non-contiguous tensor in P2P operations. It is user responsibility to guarantee that source and destination "
    "tensors have the same contiguity format."
)
"""What torch's groups of NCCL say of a message; here with the program's line, once for each."""

_said: dict[str, dict[Any, Any]] = {}
"""What Python keeps of the warnings of a module, by file."""


_strides = torch.Tensor.stride
_NOT_DENSE = "Tensors for P2P must be non-overlapping and dense"
"""What they say of one that they refuse."""


def memory_of_message(op: str, tensor: torch.Tensor) -> torch.Tensor:
    """What NCCL sends of a tensor, and where it receives: the memory from its first element on, whatever strides say.

    That is the tensor itself where it is contiguous or of the host; else a flat view of as many elements, with the warning of
    torch's groups. Raises ValueError, as they do, of one with gaps between its elements (a slice of columns), or whose
    elements overlap (``expand``).
    """
    if tensor.is_contiguous() or block_of(tensor) is None:
        return tensor
    if not _is_dense(tensor):
        raise ValueError(
            f"{_NOT_DENSE}: {op} was given one of shape {tuple(tensor.shape)} and strides {_strides(tensor)}; give it "
            "tensor.contiguous()"
        )
    if not is_channels_last(tensor):
        place = user_location()
        said = _said.setdefault(place.file, {})
        warnings.warn_explicit(_STRIDED_MESSAGE, UserWarning, place.file, place.line, registry=said)
    return _memory_of(tensor)


_GLOO_MOVES_MEMORY = frozenset({"all_reduce", "broadcast", "reduce", "scatter"})
"""What gloo does with the memory from a tensor's first element on, whatever strides say (pytorch 192920); others it copies."""


def require_dense_for_gloo(op: str, tensors: Tensors) -> None:
    """Raises ValueError of a tensor with gaps between its elements, or whose elements overlap, where gloo, which asks nothing,
    would take what lies between them for elements."""
    if op not in _GLOO_MOVES_MEMORY:
        return
    for tensor in tensors:
        if tensor.layout is torch.strided and not (tensor.is_contiguous() or _is_dense(tensor)):
            raise ValueError(
                f"{op} of gloo was given a tensor of shape {tuple(tensor.shape)} and strides {_strides(tensor)}: it would take "
                "the memory from the first element on, whatever the strides say, and results would be wrong; give it "
                "tensor.contiguous()"
            )


def require_contiguous_message(op: str, tensor: torch.Tensor) -> None:
    """Raises RuntimeError in gloo's words, which are the same for both sides, of a tensor that is not contiguous."""
    if not tensor.is_contiguous():
        raise RuntimeError(
            f"input tensor has to be contiguous: {op} was given one of shape {tuple(tensor.shape)} and strides "
            f"{_strides(tensor)}; give it tensor.contiguous()"
        )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements are all of a piece of memory, each once."""
    expected = 1
    for stride, size in sorted(each for each in zip(_strides(tensor), tensor.shape, strict=True) if each[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether it is contiguous with channels last, and not as it is."""
    if tensor.is_contiguous():
        return False
    form = _CHANNELS_LAST.get(tensor.dim())
    return form is not None and tensor.is_contiguous(memory_format=form)


class SumOfMultiples(NamedTuple):
    """NCCL's ``PREMUL_SUM``: what is summed up are the tensors times a factor, a number or a tensor of one."""

    factor: Any

    def of(self, tensors: Tensors, library: Library) -> Tensors:
        """What is summed up; of unknown values the tensors themselves.

        Raises TypeError, with torch's words, of a type that NCCL does not multiply.
        """
        for tensor in tensors:
            if library in ("nccl", "rccl") and tensor.dtype not in _MULTIPLIED:
                raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")
        with plain_torch():
            return [tensor if is_unknown(tensor) else multiplied(tensor.data, self.factor) for tensor in tensors]


def reduction_of(opts: Any) -> ReduceOp | SumOfMultiples:
    """The reduction of options, of a torch ``ReduceOp``, or sum."""
    if type(opts) is ReduceOp:
        return opts
    wanted = getattr(opts, "reduceOp", opts)
    if wanted is None or isinstance(wanted, timedelta):
        return ReduceOp.SUM
    return _parsed(getattr(wanted, "op", wanted)) or SumOfMultiples(wanted.__getstate__()[1])


@functools.cache
def _parsed(op: object) -> ReduceOp | None:
    return None if op == dist.ReduceOp.PREMUL_SUM else ReduceOp.parse(op)


_MULTIPLIED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def root_of(opts: Any) -> int:
    """The root's number in the group, of options or given as it is; by default 0, as C++ has it."""
    return 0 if opts is None else int(getattr(opts, "rootRank", opts))


def timeout_of(opts: object) -> timedelta | None:
    """The timeout that a program gave in options, None if it gave none."""
    timeout = getattr(opts, "timeout", None)
    return timeout if isinstance(timeout, timedelta) and timeout > _NO_TIME else None


_NO_TIME = timedelta(0)
