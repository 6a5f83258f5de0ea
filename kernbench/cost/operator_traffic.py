"""Bytes that operators of torch read and write, from what they are given and make: a function for each way to move them."""

from __future__ import annotations

from math import ceil, log2, prod

from kernbench.cost.cuda_kernels import SORTED_BY_A_BLOCK
from kernbench.cost.operands import Operand, Operands, everything, nbytes_of
from kernbench.topology.dtypes import ITEM_BYTES

_INT64 = 8


def written(given: Operands, made: Operands) -> float:
    """The results are written, and nothing is read."""
    return nbytes_of(made)


def gathered(given: Operands, made: Operands) -> float:
    """Of the first operand, as much is read as is written."""
    return 2 * nbytes_of(made) + nbytes_of(given[1:])


def gathered_by_bag(given: Operands, made: Operands) -> float:
    """Of the first operand, a row for each of the indices that the second holds; the sums are written."""
    width = given[0].nbytes / max(given[0].shape[0], 1) if given and given[0].shape else 0.0
    rows = prod(given[1].shape) if len(given) > 1 else 0
    return rows * width + nbytes_of(given[1:]) + nbytes_of(made)


def gathered_for_first(given: Operands, made: Operands) -> float:
    """Of the second operand, as much is read as the first has."""
    return 2 * nbytes_of(given[:1]) + nbytes_of(given[2:]) + nbytes_of(made)


def scattered(given: Operands, made: Operands) -> float:
    """Of the first operand, as much is read and written as the others bring."""
    return 3 * nbytes_of(given[1:]) if len(given) > 1 else everything(given, made)


def rows_of_elements(given: Operands, made: Operands) -> float:
    """A product of a sparse matrix, of which indices and values are given, and a dense one: a row of that for each element."""
    values = max((prod(each.shape) for each in given if len(each.shape) == 1), default=0)
    width = made[0].nbytes / max(made[0].shape[0], 1) if made and made[0].shape else 0.0
    sparse = sum(each.nbytes for each in given if len(each.shape) == 1 or each.format.startswith("int"))
    return values * width + sparse + nbytes_of(made)


def coalesced(given: Operands, made: Operands) -> float:
    """Indices become keys, which are sorted in eight passes with where they came from; values are gathered once."""
    keys = max((prod(each.shape[1:]) for each in given if each.format.startswith("int")), default=0)
    return nbytes_of(given) + nbytes_of(made) + 8 * 2 * 16 * keys


_SECTOR = 32  # bytes: the least that is read of memory for an element that has no neighbours


def picked_one_by_one(given: Operands, made: Operands) -> float:
    """Each element of the result is somewhere: a sector is read for it, and where it is."""
    return sum(prod(each.shape) for each in made) * _SECTOR + nbytes_of(given[1:]) + nbytes_of(made)


def put_one_by_one(given: Operands, made: Operands) -> float:
    """Each element goes somewhere: a sector is read, changed, written back, and read for the next one of it [H]."""
    count = max((prod(each.shape) for each in given[1:]), default=0)
    return 4 * count * _SECTOR + nbytes_of(given[1:])


def copied_and_put_one_by_one(given: Operands, made: Operands) -> float:
    """The first operand is copied, then elements are put into the copy."""
    return nbytes_of(given[:1]) + nbytes_of(made) + put_one_by_one(given, made)


def once_more_read(given: Operands, made: Operands) -> float:
    """Statistics first, then the result."""
    return everything(given, made) + nbytes_of(given[:1])


def as_log_of_sum(given: Operands, made: Operands) -> float:
    """Of the operand: read for the largest; the difference, which is broadcast, counts twice; exponentials; their sum."""
    return 8 * nbytes_of(given[:1])


def copied_and_scattered(given: Operands, made: Operands) -> float:
    """The first operand is copied, then rows are put into the copy."""
    return nbytes_of(given[:1]) + nbytes_of(made) + scattered(given, made)


def first_result_copied(given: Operands, made: Operands) -> float:
    """The first result is read and written."""
    return 2 * nbytes_of(made[:1])


def read_as_written(given: Operands, made: Operands) -> float:
    """As much is read as is written."""
    return 2 * nbytes_of(made or given)


def _in_rows(operand: Operand, longest: int) -> bool:
    return bool(operand.shape) and operand.shape[-1] <= longest


def by_sorting(given: Operands, made: Operands) -> float:
    """A radix sort passes over keys and indices once for each byte of a key; rows that fit a block, once (CUB, torch)."""
    key = max(given, key=lambda operand: operand.nbytes)
    passes = 1.0 if _in_rows(key, SORTED_BY_A_BLOCK) else max(1.0, key.values * ITEM_BYTES[key.format])
    return passes * everything(given, made)


def selected(given: Operands, made: Operands) -> float:
    """A radix selection reads its input once for each byte of a key."""
    key = max(given, key=lambda operand: operand.nbytes)
    return key.nbytes * max(1.0, key.values * ITEM_BYTES[key.format]) + nbytes_of(made)


def drawn(given: Operands, made: Operands) -> float:
    """Weights are passed over eight times: checked, summed, divided by random numbers that are written first [H]."""
    return 8 * nbytes_of(given[:1]) + nbytes_of(made)


def twice_read(given: Operands, made: Operands) -> float:
    """Counted first, then written."""
    return 2 * nbytes_of(given) + nbytes_of(made)


def _elements_and_tests(given: Operands, made: Operands) -> tuple[int, int]:
    """How many elements an ``isin`` looks for, and among how many: one where it is a number."""
    elements = prod(made[0].shape) if made else 0
    if len(given) > 1:
        return elements, prod(given[1].shape)
    return elements, 1 if not given or given[0].shape == made[0].shape else prod(given[0].shape)


def _compares_each(elements: int, tests: int) -> bool:
    """Whether each element is compared with each that it may be, and nothing sorted (ATen/native/TensorCompare.cpp)."""
    return tests < int(10.0 * elements**0.145)


def looked_for(given: Operands, made: Operands) -> float:
    """The comparisons of all pairs, a byte each, are written and reduced; past torch's limit elements and tests are sorted,
    once each and once together, with an index each, and passed over once for each byte of a key [H]."""
    elements, tests = _elements_and_tests(given, made)
    if len(given) < 2 and tests == 1:
        return everything(given, made)
    if _compares_each(elements, tests):
        return nbytes_of(given) + 2 * elements * tests + 4 * nbytes_of(made)
    passes = max(1.0, given[0].values * ITEM_BYTES[given[0].format])
    return 4 * passes * (nbytes_of(given) + _INT64 * (elements + tests))


def looking_launches(given: Operands, made: Operands) -> int:
    """One kernel for a comparison with a number; pairs are compared, reduced and copied to a result that was filled; sorts are
    of two sets of distinct values and of both together [H]."""
    elements, tests = _elements_and_tests(given, made)
    if len(given) < 2 and tests == 1:
        return 1
    return 4 if _compares_each(elements, tests) else 110


def transformed(given: Operands, made: Operands) -> float:
    """A Fourier transform passes over its data once for each factor of up to 4096 of its length."""
    length = max([2, *(operand.shape[-1] for operand in (*given, *made) if operand.shape)])
    return ceil(log2(length) / 12) * everything(given, made)
