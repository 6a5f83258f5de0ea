"""Matrix products that operators of torch are made of, and operations of those that are none, from shapes."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod, sqrt

from kernbench.cost.operands import Operands, Shape, Shapes
from kernbench.cost.operator import Product


def matmul(left: Shape, right: Shape) -> list[Product]:
    """``left @ right``; a matrix on the right takes all rows of the left as one."""
    if not left or not right:
        return []
    columns = right[-1] if len(right) > 1 else 1
    depth = left[-1]
    if len(right) <= 2:
        return [(1, max(prod(left[:-1]), 1), columns, depth)]
    rows = left[-2] if len(left) > 1 else 1
    return [(max(prod(left[:-2]), prod(right[:-2])), rows, columns, depth)]


def of(first: int, count: int = 1) -> Callable[[Shapes, Shapes], list[Product]]:
    """Of the operand at ``first`` and the next one, ``count`` times."""

    def dims(given: Shapes, made: Shapes) -> list[Product]:
        return count * matmul(given[first], given[first + 1]) if len(given) > first + 1 else []

    return dims


def linear(given: Shapes, made: Shapes) -> list[Product]:
    """``input [..., K]``, ``weight [N, K]``."""
    if len(given) < 2 or not given[0] or not given[1]:
        return []
    return [(1, max(prod(given[0][:-1]), 1), given[1][0], given[0][-1])]


def linear_backward(given: Shapes, made: Shapes) -> list[Product]:
    """``input, gradient [..., N], weight``: the gradients of input and weight."""
    return 2 * linear((given[0], given[2]), made) if len(given) > 2 else []


def packed_linear(given: Shapes, made: Shapes) -> list[Product]:
    """A weight in a layout of its own: the result says how many columns it has."""
    return [(1, max(prod(given[0][:-1]), 1), made[0][-1], given[0][-1])] if given and made and given[0] else []


def two_of_four(dense: int, packed: int) -> Callable[[Shapes, Shapes], list[Product]]:
    """Two of every four elements of the operand at ``packed`` are kept, and matrix engines skip the others: a product half
    as deep [NVIDIA: tensor cores from Ampere on multiply such matrices at twice the dense rate].

    The operand is ``[M, K / 2]``, or a row of ``9/16 M K`` elements with their places. Which way the ``dense`` one lies does
    not say how deep the product is, but sizes do: ``(M N K)^2 = (M N) (N K) (M K)``.
    """

    def products(given: Shapes, made: Shapes) -> list[Product]:
        if len(given) <= max(dense, packed) or not made or not prod(made[0]):
            return []
        kept = given[packed]
        elements = prod(kept) * (2 if len(kept) > 1 else 16 / 9)
        deep = sqrt(prod(given[dense]) * elements / prod(made[0]))
        return [(1, max(prod(made[0][:-1]), 1), made[0][-1], max(round(deep / 2), 1))]

    return products


def addbmm(given: Shapes, made: Shapes) -> list[Product]:
    """A batch of products that are added up: one with a long K."""
    if len(given) < 3 or len(given[1]) != 3:
        return []
    batch, rows, depth = given[1]
    return [(1, rows, given[2][-1], batch * depth)]


def grouped(given: Shapes, made: Shapes) -> list[Product]:
    """Groups of rows, of columns or of K, which offsets tell apart: taken as of equal size."""
    if len(given) < 2:
        return []
    left, right = given[:2]
    if len(left) == 2 and len(right) == 3:
        return [(right[0], ceil(left[0] / right[0]), right[2], left[1])]
    if len(left) == 3 and len(right) == 2:
        return [(left[0], left[1], ceil(right[1] / left[0]), left[2])]
    if len(left) == 2 and len(right) == 2:
        groups = made[0][0] if made and len(made[0]) == 3 else 1
        return [(groups, left[0], right[1], ceil(left[1] / groups))]
    return matmul(left, right)


def convolved(result: Shape, image: Shape, weight: Shape) -> list[Product]:
    """A convolution as the product that its kernel computes: pixels x output channels x filter.

    A transposed one has ``weight [in, out / groups, ...]``, and the pixels are those of its input.
    """
    if len(weight) < 3 or len(result) < 3 or len(image) < 3:
        return []
    pixels = image if weight[0] == image[1] != result[1] else result
    return [(1, prod(pixels) // max(pixels[1], 1), weight[0], prod(weight[1:]))]


def convolution(given: Shapes, made: Shapes) -> list[Product]:
    """Of an image and a weight."""
    return convolved(made[0], given[0], given[1]) if len(given) > 1 and made else []


def convolution_backward(given: Shapes, made: Shapes) -> list[Product]:
    """``gradient, input, weight``: a product for each gradient of the two that is wanted."""
    if len(given) < 3:
        return []
    wanted = sum(len(shape) > 2 for shape in made[:2]) or 2
    return wanted * convolved(given[0], given[1], given[2])


def trilinear_launches(given: Operands, made: Operands) -> int:
    """For each row of the weight a product, and its operands there and back."""
    return 3 * given[1].shape[0] if len(given) > 1 and given[1].shape else 1


# -- operations --------------------------------------------------------------------------------------------------------


def cubic(factor: float) -> Callable[[Shapes, Shapes], float]:
    """``factor * m n min(m, n)`` for each matrix of the first operand."""

    def flops(given: Shapes, made: Shapes) -> float:
        shape = given[0] if given and len(given[0]) > 1 else (1, 1)
        return factor * prod(shape) * min(shape[-2:])

    return flops


def solved(matrix: int, right: int, factor: float = 0.0) -> Callable[[Shapes, Shapes], float]:
    """Right-hand sides against a matrix, ``2 n^2`` for each column; ``factor * n^3`` to factorise it first."""

    def flops(given: Shapes, made: Shapes) -> float:
        if len(given) <= max(matrix, right):
            return 0.0
        side = given[matrix][-1] if given[matrix] else 1
        first = cubic(factor)([given[matrix]], ())
        return first + 2.0 * side * max(prod(given[right]), 1)

    return flops


def trilinear(given: Shapes, made: Shapes) -> float:
    """``x [N, I], weight [O, I, J], y [N, J]``, or a gradient of it: each row of the first operand meets all of the weight."""
    return 2.0 * prod(given[0][:-1]) * max(prod(shape) for shape in (*given, *made))


def distance_operations(given: Shapes, made: Shapes) -> float:
    """A subtraction, a power and a sum for each coordinate of each pair of points."""
    widest = max(given, key=prod, default=(1,))
    points = max((prod(shape) for shape in (*made, *given)), default=1)
    return 3.0 * max(points, 1) * (widest[-1] if widest else 1)
