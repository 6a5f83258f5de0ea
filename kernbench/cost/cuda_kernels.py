"""What torch's own CUDA kernels launch, read and write, where that is not once every operand and every result.

Facts are those of torch 2.13 built for CUDA 13. [I] its headers, ``torch/include/ATen/native/cuda``; [K] its kernels,
``aten/src/ATen/native/cuda`` of github.com/pytorch/pytorch. What depends on the device besides is in
:mod:`kernbench.cost.row_kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from kernbench.cost.operands import Operand, Operands, nbytes_of

# -- lists of tensors [I] MultiTensorApply.cuh ---------------------------------------------------------------------------

_CHUNK = 65536  # elements that one block of a kernel over lists passes over
_MOST_CHUNKS = 2240  # blocks of one launch
_MOST_TENSORS = (770, 448, 336, 252, 210)  # tensors of one launch, by the number of lists


def list_launches(given: Operands, made: Operands) -> int:
    """Kernels of an operator over lists of tensors (``_foreach_add_``): ``made`` is one list, ``given`` one or several.

    A launch takes so many tensors and so many chunks; lists whose formats differ are passed over tensor by tensor.
    """
    count = len(made) or len(given)
    depth = max(1, len(given) // max(count, 1))
    if depth > 1 and len({given[at * count].format for at in range(depth)}) > 1:
        return count
    return packed(given[:count], depth)


def reduced_list_launches(given: Operands, made: Operands) -> int:
    """As :func:`list_launches`, of a reduction of each tensor: a last kernel adds up what the chunks gave."""
    return packed(given, 1) + 1


def step_launches(given: Operands, made: Operands) -> int:
    """Kernels of a fused optimizer step."""
    count = _stepped(given)
    return packed(given[:count], max(1, (len(given) - _counters(given)) // count))


def _counters(given: Operands) -> int:
    return sum(not operand.shape for operand in given)


def _stepped(given: Operands) -> int:
    """Parameters of a fused step: of each there are gradients, states and (Adam) a counter, ``[]``; else as lists repeat."""
    tensors = len(given) - (counters := _counters(given))
    shapes = [operand.shape for operand in given[:tensors]]
    for lists in (4, 5, 3, 2):
        count = tensors // lists
        alike = tensors % lists == 0 and all(shapes[:count] == shapes[at * count :][:count] for at in range(lists))
        if count and alike and (lists < 4) == (counters < count):
            return count
    return max(tensors, 1)


def packed(tensors: Sequence[Operand], depth: int) -> int:
    """Launches of a kernel over ``depth`` lists like ``tensors``: a tensor that is cut by a full launch is in the next too."""
    launches = chunks = held = 0
    most = _MOST_TENSORS[min(depth, len(_MOST_TENSORS)) - 1]
    for tensor in tensors:
        left = ceil(prod(tensor.shape) / _CHUNK)
        held += left > 0
        while left:
            taken = min(left, _MOST_CHUNKS - chunks)
            left -= taken
            chunks += taken
            if chunks == _MOST_CHUNKS or (held == most and not left):
                launches += 1
                chunks, held = 0, int(left > 0)
    return max(launches + (chunks > 0), 1)


def fused_step(given: Operands, made: Operands) -> float:
    """A fused optimizer step reads parameters, gradients and states, and writes all of them but the gradients.

    Its schema says that gradients are written: they are where they are scaled, which is not counted.
    """
    count = _stepped(given)
    return 2 * nbytes_of(given) - nbytes_of(given[count : 2 * count])


# -- norms [K] layer_norm_kernel.cu --------------------------------------------------------------------------------------


def norm_gradient(given: Operands, made: Operands) -> float:
    """``gradient, input, ..``: one kernel for the input's gradient reads both twice, the second time from a cache, and writes
    it; another reads both for the gradients of the weights, in two steps."""
    return 2 * nbytes_of(given[:2]) + nbytes_of(given[2:]) + nbytes_of(made)


# -- losses [K] Loss.cu, NLLLoss ------------------------------------------------------------------------------------------

_SECTOR = 32  # bytes, the least that memory gives


def _picked(given: Operands) -> float:
    rows = prod(given[0].shape[:-1]) if given and given[0].shape else 1
    return rows * (_SECTOR + 8)


def picked_rows(given: Operands, made: Operands) -> float:
    """A negative log likelihood reads one element of each row, and which."""
    return _picked(given) + nbytes_of(made)


def picked_rows_gradient(given: Operands, made: Operands) -> float:
    """Its gradient: zeros everywhere, then one element of each row."""
    return nbytes_of(made) + _picked(given[1:] or given)


# -- embeddings [K] Embedding.cu, [I] EmbeddingBackwardKernel.cuh ----------------------------------------------------------

_FEW_INDICES = 3072  # up to which one kernel adds the rows up
_SORTED_LAUNCHES = 31  # radix sort of the indices, segments and their prefix sums, partial sums, sums, zeros [H]
_PARTIAL = 10  # rows of a partial sum


def _indices(given: Operands) -> int:
    return prod(given[1].shape) if len(given) > 1 else 0


def embedding_gradient_launches(given: Operands, made: Operands) -> int:
    """Few indices, or bags that keep their largest: zeros, and one kernel; else the indices are sorted and the rows of each
    added up by parts."""
    picked = any(each.shape == given[0].shape for each in given[1:])
    return 2 if picked or _indices(given) <= _FEW_INDICES else _SORTED_LAUNCHES


def embedding_gradient(given: Operands, made: Operands) -> float:
    """``gradient [.., width], indices``: the table is zeroed; rows are read, added up in 32 bits by parts, which are written
    and read again, and written where they belong."""
    rows, width = _indices(given), given[0].shape[-1] if given[0].shape else 1
    different = min(rows, made[0].shape[0]) if made and made[0].shape else rows
    row = width * (given[0].nbytes / max(prod(given[0].shape), 1))
    sums = different * row
    if rows <= _FEW_INDICES:
        return nbytes_of(made) + nbytes_of(given) + 2 * sums
    parts = (different + rows / _PARTIAL) * width * 4 * 2
    sorting = 4 * 2 * 16 * rows  # four passes over keys and places
    return nbytes_of(made) + nbytes_of(given) + parts + sorting + sums


SORTED_BY_A_BLOCK = 4096
"""Elements of a row that one block sorts."""


def sort_launches(given: Operands, made: Operands) -> int:
    """Of rows that fit a block three; of others those of CUB's passes, and of what is done before and after [H]."""
    key = max(given, key=lambda operand: operand.nbytes)
    return 3 if key.shape and key.shape[-1] <= SORTED_BY_A_BLOCK else 20


_BLOCKS_OF_ROWS = (
    (20, 20000), (40, 10000), (80, 8000), (200, 5000), (800, 3000), (4000, 800), (float("inf"), 400),
)  # fmt: skip
"""Rows up to which a row of at least so many elements has several blocks."""


def selection_launches(given: Operands, made: Operands) -> int:
    """Kernels of a ``topk``: those of several blocks for each row if rows are long for their number, and of the sort of what is
    found (aten/src/ATen/native/cuda/TensorTopK.cu)."""
    shape = max(given, key=lambda operand: operand.nbytes).shape or (1,)
    rows, width = prod(shape[:-1]), shape[-1]
    least = next(least for most, least in _BLOCKS_OF_ROWS if rows <= most)
    return 34 if width >= least else 4
