"""How long kernels take that bring the elements of a row into order, or add each to those before it (CUB, and torch's own).

What has no other source was measured on an H100 [H], whose lanes and clock a device's are compared with.
"""

from __future__ import annotations

from math import ceil, log2, prod

import numpy as np

from kernbench.cost.cuda_kernels import SORTED_BY_A_BLOCK
from kernbench.cost.estimate import Estimate
from kernbench.cost.memory_bound import OPS, start_of, traffic_time
from kernbench.cost.operands import Operand, Operands, nbytes_of
from kernbench.cost.uncertainty import band_interval
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES

_CLOCK, _PES = 1.83e9, 132
_PASS = {False: 15e-12, True: 12e-12}
"""Seconds of an element in a pass of a radix sort, one for each byte of its key; of all elements as one row without their
places [H]."""
_OF_ROWS = 25e-12
"""The same, of what several rows take besides: places and rows are filled in, rows are sorted, results are picked [H]."""
_LEAST_PASS = 7e-6
"""Seconds of a pass however few the elements are [H]."""
_BLOCK_SORT = {1: 24e-12, 2: 24e-12, 4: 92e-12, 8: 125e-12}
"""Seconds of an element that is sorted in a block, by its bytes [H]."""
_SELECTION, _SELECTED, _SELECTED_ROW = 13e-6, 4.25e-12, 0.42e-6
"""Seconds of a selection, of each byte of it, and of each byte of a key for a row on a PE [H]."""
_SCAN_STEP, _SCAN_SHARE = 1.5e-6, 0.6e-6
"""Seconds in which the threads of a row add up two elements each, and of a PE for each of its blocks [H]."""
_SCAN_THREADS = 512
"""Of a block."""


def _at_pace_of(spec: DeviceSpec) -> float:
    return _PES * _CLOCK / (spec.pes * spec.clock)


def _estimate(seconds: float, moved: float) -> Estimate:
    low, high = band_interval("memory_bound", np.asarray(seconds), np.asarray(seconds))
    return Estimate(seconds, float(low), float(high), "kernel", "", moved / seconds, moved / seconds)


def sort_time(spec: DeviceSpec, given: Operands, *, flat: bool = False) -> Estimate | None:
    """How long it takes to sort the rows of the largest operand.

    Args:
        flat: all elements are one row.
    """
    keys = max(given, key=lambda operand: operand.nbytes, default=None)
    if keys is None or not prod(keys.shape):
        return None
    elements, item = prod(keys.shape), keys.values * ITEM_BYTES[keys.format]
    width = elements if flat or not keys.shape else keys.shape[-1]
    least = 0.0
    if width <= SORTED_BY_A_BLOCK:
        each, least = _BLOCK_SORT[min(size for size in _BLOCK_SORT if size >= min(item, 8))], _LEAST_PASS
    else:
        each, least = _PASS[flat] * item + (_OF_ROWS if width < elements else 0.0), _LEAST_PASS * item
    return _estimate(start_of(spec, False) + least + elements * each * _at_pace_of(spec), 2 * keys.nbytes)


def selection_time(spec: DeviceSpec, given: Operands) -> Estimate | None:
    """How long the largest elements of rows take to find: a radix selection, by the bytes of a key."""
    keys = max(given, key=lambda operand: operand.nbytes, default=None)
    if keys is None or not prod(keys.shape):
        return None
    elements, item = prod(keys.shape), keys.values * ITEM_BYTES[keys.format]
    rows = elements // (keys.shape[-1] if keys.shape else 1)
    passing = elements * _SELECTED * item * _at_pace_of(spec)
    seconds = _SELECTION + passing + rows * _SELECTED_ROW * item * _CLOCK / spec.clock / spec.pes
    return _estimate(start_of(spec, False) + seconds, keys.nbytes)


def scan_time(spec: DeviceSpec, given: Operands, made: Operands, *, outer: bool = False) -> Estimate | None:
    """How long a sum of each element and those before it takes.

    Args:
        outer: along another dimension than the last: a thread for each row then, side by side.
    """
    whole = max((*given, *made), key=lambda operand: prod(operand.shape), default=None)
    if whole is None or not prod(whole.shape):
        return None
    moved = nbytes_of(given) + nbytes_of(made or [whole])
    found = traffic_time(spec, OPS["scan"], whole.shape, moved)
    seconds = 0.0 if outer else _in_steps(whole) * _PES / spec.pes * _CLOCK / spec.clock
    return found if seconds <= found.seconds else _estimate(start_of(spec, False) + seconds, moved)


def _in_steps(whole: Operand) -> float:
    """Seconds on an H100 of the rows of the last dimension: so many threads for each as are left over by the others
    (aten/src/ATen/native/cuda/ScanUtils.cuh). One row alone is CUB's."""
    elements, width = prod(whole.shape), whole.shape[-1] if whole.shape else 1
    rows = elements // width
    if rows == 1:
        return 0.0
    log_threads = min(max((9 + ceil(log2(max(width, 1))) - ceil(log2(rows))) // 2, 4), 9)
    threads = 1 << log_threads
    blocks = ceil(rows / (_SCAN_THREADS // threads))
    return ceil(width / (2 * threads)) * max(_SCAN_STEP, blocks / _PES * _SCAN_SHARE)
