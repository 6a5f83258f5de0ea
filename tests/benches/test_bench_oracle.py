"""The oracle itself, against closed forms: it must not err with the runtime that it checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernbench.benches.harness.elements import COMBINE, ELEMENT_TYPES, Inputs, Scratch, finish, round_to_bfloat16
from kernbench.benches.harness.oracle import AllReduceOracle, Expressions, count_wrong
from kernbench.ccl.algorithms import ring_allreduce
from kernbench.ccl.schedule import ScheduleBuilder


def oracle(members: int, element: str = "float", op: str = "sum", seed: int = 0) -> tuple[AllReduceOracle, Inputs]:
    inputs = Inputs(seed, ELEMENT_TYPES[element], op)
    return AllReduceOracle(ring_allreduce.build(members), inputs, ELEMENT_TYPES[element], op), inputs


@pytest.mark.parametrize("members", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 5, 64, 1001])
def test_a_ring_folds_chunk_c_from_member_c_on(members: int, count: int) -> None:
    """The order that the ring's module documents, written down without the schedule."""
    check, inputs = oracle(members)
    bounds = ring_allreduce.build(members).chunk_bounds(count)
    expected = np.empty(count, np.float32)
    for chunk in range(members):
        rows = slice(bounds[chunk], bounds[chunk + 1])
        total = inputs.of(chunk, 0, count)[rows]
        for step in range(1, members):
            total = total + inputs.of((chunk + step) % members, 0, count)[rows]
        expected[rows] = total
    for member in range(members):
        assert check.expected(member, count).tobytes() == expected.tobytes()


def test_the_order_of_a_sum_shows() -> None:
    """The inputs are such that another order gives other bits: else the check would prove nothing about it."""
    check, inputs = oracle(8)
    plain = np.sum([inputs.of(rank, 0, 10_000) for rank in range(8)], axis=0, dtype=np.float32)
    assert np.allclose(check.expected(0, 10_000), plain, atol=1e-5)
    assert count_wrong(plain, check.expected(0, 10_000)) > 1000


def test_a_tree_is_followed_too() -> None:
    """Recursive doubling: each member adds in another order, and all end with the same bits."""
    builder = ScheduleBuilder("doubling", 4, chunks=1)
    member = np.arange(4)
    builder.round(member, member ^ 1, 0, reduce=True).round(member, member ^ 2, 0, reduce=True)
    inputs = Inputs(0, ELEMENT_TYPES["float"], "sum")
    check = AllReduceOracle(builder.build(), inputs, ELEMENT_TYPES["float"], "sum")
    a, b, c, d = (inputs.of(rank, 0, 100) for rank in range(4))
    assert all(check.expected(rank, 100) is check.expected(0, 100) for rank in range(4))
    assert check.expected(0, 100).tobytes() == ((a + b) + (c + d)).tobytes()


@pytest.mark.parametrize("fault", ["misses a member", "folds one twice"])
def test_a_schedule_that_is_no_all_reduce_is_found_out(fault: str) -> None:
    builder = ScheduleBuilder("faulty", 3, chunks=1)
    builder.round([1], [0], 0, reduce=True)
    if fault == "folds one twice":
        builder.round([2], [0], 0, reduce=True).round([1], [0], 0, reduce=True)
    check = AllReduceOracle(builder.build(), Inputs(0, ELEMENT_TYPES["int32"], "sum"), ELEMENT_TYPES["int32"], "sum")
    with pytest.raises(ValueError, match="every member exactly once"):
        check.expected(0, 4)


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[~np.isnan(values)]
    halves = np.float32(1.0) + np.arange(64, dtype=np.float32) * np.float32(2.0**-8)  # ties among them
    values = np.concatenate([values, halves, np.array([np.inf, -np.inf, 0.0, -0.0], np.float32)])
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    assert round_to_bfloat16(values.copy()).tobytes() == expected.tobytes()


@pytest.mark.parametrize("element", [name for name, row in ELEMENT_TYPES.items() if not row.is_float])
def test_an_average_of_integers_truncates_toward_zero(element: str) -> None:
    row = ELEMENT_TYPES[element]
    low = 0 if row.numpy.kind == "u" else -100
    total = np.arange(low, 120, dtype=row.numpy)
    expected = [int(value / 7) for value in total.tolist()]
    assert finish("avg", total.copy(), 7, row).tolist() == expected


@pytest.mark.parametrize("op", COMBINE)
@pytest.mark.parametrize("element", ELEMENT_TYPES)
def test_inputs_are_reproducible_and_differ_by_rank_and_seed(element: str, op: str) -> None:
    first, again, other = (Inputs(seed, ELEMENT_TYPES[element], op).of(1, 0, 500) for seed in (3, 3, 4))
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()
    assert first.tobytes() != Inputs(3, ELEMENT_TYPES[element], op).of(2, 0, 500).tobytes()


def test_a_long_buffer_repeats_its_pattern() -> None:
    inputs = Inputs(0, ELEMENT_TYPES["int8"], "sum")
    length = 3 * Inputs.PERIOD + 17
    whole = np.resize(inputs.of(0, 0, Inputs.PERIOD).copy(), length)
    assert inputs.of(0, 0, length).tobytes() == whole.tobytes()
    for begin, end in [(5, 9), (Inputs.PERIOD - 3, Inputs.PERIOD + 4), (2 * Inputs.PERIOD, length)]:
        assert inputs.of(0, begin, end, Scratch()).tobytes() == whole[begin:end].tobytes()


def test_wrong_elements_are_counted_by_their_bits() -> None:
    right = np.zeros(300_000, np.float32)
    result = right.copy()
    result[[0, 7, 299_999]] = [1.0, -0.0, np.nan]
    assert count_wrong(result, right) == 3
    assert count_wrong(result, result.copy()) == 0
    assert count_wrong(right[:10], right) == 300_000


def test_members_that_never_change_keep_their_own_input() -> None:
    builder = ScheduleBuilder("nothing", 2, chunks=2)
    assert Expressions(builder.build()).final.tolist() == [[0, 0], [1, 1]]
