"""What torch's CUDA kernels allocate while they run, besides results: bytes of each piece, by shapes.

Sizes follow from torch's sources (torch 2.11: aten/src/ATen/native/cuda), and are an H100's to the byte where tests say so.
Operands are taken as contiguous. Not here, so that peaks lack it: pieces of a few KB, and partial sums of the gradients of
convolutions' filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, prod
from typing import Any

from kernbench.cost.convolution_shapes import Convolution, is_channels_last, layout_copies
from kernbench.cost.cuda_kernels import SORTED_BY_A_BLOCK
from kernbench.cost.operands import Operand, Operands
from kernbench.cost.recurrent_shapes import recurrent_workspace
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES

Scratch = Callable[[Operands, Operands, Sequence[Any], DeviceSpec], Iterable[float]]

_FP32 = 4
_INT64 = 8
_FEW_ROWS = 128
_LONG_ROW = 1_000_000
_THREADS = 512
_WARP = 32


def like_result(given: Operands, made: Operands, args: Sequence[object], device: DeviceSpec) -> Iterable[float]:
    """A gradient of softmax: the products of gradient and result."""
    return [made[0].nbytes] if made else []


def log_sum_exp(given: Operands, made: Operands, args: Sequence[object], device: DeviceSpec) -> Iterable[float]:
    """Exponentials of all, and the largest of each row."""
    return [prod(given[0].shape) * _itemsize(made[0]), made[0].nbytes] if given and made else []


def sampled(given: Operands, made: Operands, args: Sequence[object], device: DeviceSpec) -> Iterable[float]:
    """One sample of each row, or several that are not put back: a random number for each weight."""
    replaces = len(args) > 2 and bool(args[2])
    once = bool(made) and prod(made[0].shape) * given[0].shape[-1] == prod(given[0].shape)
    return [given[0].nbytes] if once or not replaces else []


def sorted_rows(given: Operands, made: Operands, args: Sequence[object], device: DeviceSpec) -> Iterable[float]:
    """Keys and indices once more for each pass: of whole rows where they are few or long, by row otherwise."""
    keys = given[0]
    dim = next((each for each in args[1:] if type(each) is int), -1) if keys.shape else 0
    length = keys.shape[dim] if keys.shape else 1
    rows = prod(keys.shape) // max(length, 1)
    if length <= SORTED_BY_A_BLOCK:
        return []
    size = _itemsize(keys)
    if rows == 1 or length >= _LONG_ROW:
        return [length * _INT64, length * (size + _INT64)]
    if rows < _FEW_ROWS:
        return [2 * rows * length * _INT64, rows * length * size, rows * length * (size + _INT64)]
    return [rows * length * _INT64, rows * length * (size + _INT64)]


def distances(given: Operands, made: Operands, args: Sequence[object], device: DeviceSpec) -> Iterable[float]:
    """Euclidean distances of more than 25 points are a product of the points with their squares beside them."""
    if len(given) < 2 or (len(args) > 2 and args[2] != 2.0) or max(each.shape[-2] for each in given[:2]) <= 25:
        return []
    return [prod(each.shape[:-1]) * (each.shape[-1] + 2) * _itemsize(each) for each in given[:2]]


def flash_gradient(given: Operands, made: Operands, args: Sequence[Any], device: DeviceSpec) -> Iterable[float]:
    """The queries' gradient in 32 bits, and a sum for each query; results and their gradient once more unless tokens come
    before heads in memory."""
    gradient, query, key = given[:3]
    batch, heads, tokens, width = query.shape
    rows = batch * heads * _up(tokens, 128)
    pieces: list[float] = [rows * _FP32, rows * _up(width, 32 if width <= 128 else 64) * _FP32]
    if key.shape[1] != heads:
        pieces += 2 * [batch * key.shape[2] * heads * width * _itemsize(key)]
    for tensor in (args[0], args[4]):
        stride = tensor.stride()
        if tokens > 1 and heads > 1 and stride[1] > stride[2]:
            pieces.append(gradient.nbytes)
    return pieces


def efficient_gradient(given: Operands, made: Operands, args: Sequence[object], device: DeviceSpec) -> Iterable[float]:
    """The queries' gradient in 32 bits, in tiles that each have a lock, and a sum for each query. UNVERIFIED for heads wider
    than 64."""
    batch, heads, tokens, width = given[1].shape
    tile = 64 if width <= 64 else 128
    tiles = ceil(tokens / tile) * ceil(width / tile)
    size = 0 if _itemsize(given[1]) >= _FP32 else batch * heads * tiles * (16 + tile * tile * _FP32)
    return [size, batch * heads * tokens * _FP32]


def layout_copies_of(given: Operands, made: Operands, args: Sequence[object], device: DeviceSpec) -> Iterable[float]:
    """A convolution of images with channels first: image, result and filters with channels last, in the workspace of cuDNN [H].
    The passes of a gradient take it one after the other."""
    if device.target.backend != "cuda" or len(given) < 2 or not made:
        return []
    first = len(given[0].shape) > 2 and len(given) > 2 and len(given[2].shape) > 2  # a gradient has one more
    image, weight = given[first : first + 2]
    result = given[0] if first else made[0]
    what = Convolution.of(image.shape, weight.shape, result.shape, is_channels_last(args, gradient=first))
    return [] if what is None else [sum(layout_copies(what, _itemsize(image)))]


def recurrent_states(given: Operands, made: Operands, args: Sequence[object], device: DeviceSpec) -> Iterable[float]:
    """What cuDNN takes for the states of recurrent layers."""
    return [recurrent_workspace(given)]


def reduced(itemsize: int = 0) -> Scratch:
    """A reduction that several blocks share for each result: what each has found, and a counter (Reduce.cuh).

    Args:
        itemsize: bytes of what is accumulated; 0: as wide as the values, and at least 32 bits.
    """

    def scratch(given: Operands, made: Operands, args: Sequence[object], device: DeviceSpec) -> Iterable[float]:
        if not given or not made or not prod(given[0].shape):
            return []
        accumulated = itemsize or max(_FP32, int(_itemsize(given[0])))
        return _reduction(given[0].shape, _dims(given[0], made[0], args), accumulated, device)

    return scratch


def _dims(given: Operand, made: Operand, args: Sequence[object]) -> set[int]:
    """The dimensions that are reduced."""
    rank = len(given.shape)
    if not rank:
        return set()
    for each in args[1:]:
        if isinstance(each, list | tuple) and each and all(type(dim) is int for dim in each):
            return {dim % rank for dim in each}
    if prod(made.shape) > 1:
        for each in args[1:]:
            if type(each) is int and -rank <= each < rank and prod(made.shape) * given.shape[each] == prod(given.shape):
                return {each % rank}
    return set(range(rank))


def _reduction(shape: Sequence[int], dims: set[int], itemsize: int, device: DeviceSpec) -> list[float]:
    inputs = prod(shape[dim] for dim in dims)
    outputs = prod(shape) // inputs
    last = max((dim for dim, size in enumerate(shape) if size > 1), default=0)
    along = last in dims or outputs == 1
    vector = 1
    if along:
        width, height = inputs, outputs
        if inputs >= 128:
            width //= 4
    else:
        run = prod(shape[max(dims) + 1 :])
        vector = next(each for each in (4, 2, 1) if run % each == 0)
        width, height = outputs // vector, inputs
    most = _THREADS // vector
    widest, highest = min(_power(width), most), min(_power(height), most)
    block_width = min(widest, _WARP)
    block_height = min(highest, most // block_width)
    block_width = min(widest, most // block_height)
    step = block_width if along else 1
    outputs_per_block = 1 if along else block_width
    if ceil(inputs / step) < min(block_height * 16, 256):
        return []  # each warp has results of its own
    step *= block_height
    grid = ceil(outputs // vector / outputs_per_block)
    values = ceil(inputs / step)
    target = device.pes * (device.pe.max_threads // (block_width * block_height))
    if values < 256 or grid > target:
        return []
    blocks = max(min(ceil(target / grid), ceil(values / 16)), ceil(values / 256))
    if blocks == 1:
        return []
    size = itemsize * outputs * blocks * (1 if along else block_width * vector)
    return [size, 4 * grid]


def _power(number: int) -> int:
    """The largest power of two up to a number."""
    return 1 << (max(number, 1).bit_length() - 1)


def _up(number: int, to: int) -> int:
    return -(-number // to) * to


def _itemsize(operand: Operand) -> float:
    return operand.values * ITEM_BYTES[operand.format]
