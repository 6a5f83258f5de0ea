"""How long torch's softmax takes, forward and backward: a warp or a block for each row.

Rows of up to 1024 elements (4 KiB) are held by a warp, read once and written once. A longer row is a block's: it is read once
into registers or shared memory where it fits (48 KiB), else three times (its maximum, its sum, its result), of which the later
reads come from the last cache as far as the rows in flight fit there. The gradient reads both of its operands once or twice.
(github.com/pytorch/pytorch, aten/src/ATen/native/cuda/SoftMax.cu and PersistentSoftmax.cuh.)

A block starts, reduces twice and ends: some time that reading hides only in part. Both figures are from the A100's column
"torch" of Triton's tutorial 02 (the reference tables' triton_tut02_softmax_a100.csv); those rows of 1152 to 12672 fp32 elements
are met within 7 %, but 16 % just above 4096.
"""

from __future__ import annotations

from dataclasses import replace
from math import expm1, prod

from kernbench.cost.estimate import Estimate
from kernbench.cost.memory_bound import OPS, start_of, traffic_time
from kernbench.cost.operands import Operand, Operands, nbytes_of
from kernbench.topology.device import DeviceSpec

_WARP_ROW = 1024  # elements, and
_WARP_BYTES = 4096
_BLOCK_BYTES = 48 << 10  # shared memory of a block without asking for more
_BLOCK = 1.2e-6  # of one row on one PE that nothing hides, at the A100's clock
_BLOCK_CLOCK = 1.41e9
_BLOCK_CLOCK_H100 = 1.83e9
_BESIDE = 0.6  # of the traffic's time is not hidden behind it
_RESIDENT = 2  # blocks of a PE
_GROWTH = 1.5  # how misses grow with what is in flight


def softmax_time(device: DeviceSpec, given: Operands, made: Operands, *, gradient: bool = False) -> Estimate:
    """How long a softmax or its gradient takes.

    Args:
        given: the input; of a gradient, what came back and the result that it is of.
        made: the result.
    """
    whole = max((*made, *given), key=lambda operand: prod(operand.shape))
    moved = nbytes_of(given[: 2 if gradient else 1]) + nbytes_of(made or [whole])
    width = whole.shape[-1] if whole.shape else 1
    row = width * _itemsize(given[0] if given else whole)
    found = traffic_time(device, OPS["softmax"], whole.shape, moved)
    if (width <= _WARP_ROW and row <= _WARP_BYTES) or device.target.backend != "cuda":
        return found
    read = nbytes_of(given[: 2 if gradient else 1])
    if row >= _BLOCK_BYTES:
        again = read if gradient else 2 * read
        found = traffic_time(device, OPS["softmax"], whole.shape, moved + again * _missing(device, row))
    rows = prod(whole.shape[:-1])
    start = start_of(device, False)
    working = rows / device.pes * _BLOCK * _BLOCK_CLOCK / device.clock
    seconds = max(found.seconds, start + working + _BESIDE * max(found.seconds - start, 0.0))
    if seconds == found.seconds:
        return found
    factor = seconds / found.seconds
    return replace(found, seconds=seconds, low=found.low * factor, high=found.high * factor, algorithm="kernel")


def _missing(device: DeviceSpec, row: float) -> float:
    """Share of what is read again that the cache no longer has."""
    cache = device.llc or device.l2
    return min(1.0, (_RESIDENT * device.pes * row / cache.size) ** _GROWTH) if cache else 1.0


def _itemsize(operand: Operand) -> float:
    return operand.nbytes / max(prod(operand.shape), 1)


# -- gradients of tables [K] Embedding.cu, EmbeddingBackwardKernel.cu ------------------------------------------------------

_FEW = 3072  # indices up to which one kernel adds the rows up
_FEW_ROW = 0.031e-6  # of an index, which it takes one after the other
_PICKED = 18e-12  # of an element that goes where the largest of a bag was
_SORTING = 31 * 2.0e-6  # of its small kernels, beside their launches: a radix sort, segments, prefix sums
_ADDED, _SCATTERED = 0.30, 0.27  # of the copy bandwidth: of partial sums, and of what adds these up [H]
_FP32 = 4


def table_gradient_time(device: DeviceSpec, given: Operands, made: Operands) -> Estimate:
    """How long the gradient of a table takes: zeros, then rows are added where they came from.

    Few indices take one kernel; more of them are sorted, and the rows of each added up by parts, in 32 bits.

    Args:
        given: what came back, ``[.., width]``, and the indices.
        made: the table's gradient.
    """
    table, gradient = made[0], given[0]
    found = traffic_time(device, OPS["fill"], table.shape, table.nbytes)
    indices, width = prod(given[1].shape), gradient.shape[-1] if gradient.shape else 1
    rows = table.shape[0] if table.shape else 1
    if any(each.shape == gradient.shape for each in given[1:]):  # of the largest of each bag: where it was
        return _beside(found, prod(gradient.shape) * _PICKED * _BLOCK_CLOCK_H100 / device.clock)
    pace = _BLOCK_CLOCK_H100 / device.clock
    if indices <= _FEW:
        return _beside(found, indices * _FEW_ROW * pace)
    item = _itemsize(gradient)
    different = rows * -expm1(-indices / rows)
    added = indices * width * _FP32 + min(gradient.nbytes, indices * width * item)
    scattered = different * width * (_FP32 + item)
    copy = device.hbm_copy_bandwidth
    return _beside(found, _SORTING * pace + added / (_ADDED * copy) + scattered / (_SCATTERED * copy))


def _beside(found: Estimate, seconds: float) -> Estimate:
    factor = (found.seconds + seconds) / found.seconds
    return replace(found, seconds=found.seconds + seconds, low=found.low * factor, high=found.high * factor)
