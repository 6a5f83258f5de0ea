"""Exhaustive search comes to every order of what conflicts, and sleep sets leave out runs, not orders."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.explore import SearchedOrders, searched
from tests.order.schedule_programs import gathers, leads, reduces
from tests.order.test_schedules import runs_of

Uses = list[tuple[str, str]]
"""What one rank does with a store: keys, and ``"add"`` or ``"look"``."""


def uses_keys(uses: list[Uses], rank: int, printed: list[str]) -> None:
    """Each rank uses keys of a store as its arguments say."""
    store = dist.TCPStore("localhost", 29501, is_master=rank == 0)
    for key, how in uses[rank]:
        if how == "add":
            store.add(key, 1)
        else:
            store.check([key])
    dist.barrier()


def orders_of(uses: list[Uses]) -> int:
    """In how many ways those uses can come that conflict: of one key, by two ranks, one of which changes it."""
    every = [[(rank, number, *use) for number, use in enumerate(mine)] for rank, mine in enumerate(uses)]

    def interleaved(at: list[int]) -> Iterator[list[tuple[int, int, str, str]]]:
        if all(n == len(mine) for n, mine in zip(at, every, strict=True)):
            yield []
        for rank, mine in enumerate(every):
            if at[rank] < len(mine):
                for rest in interleaved([n + (other == rank) for other, n in enumerate(at)]):
                    yield [mine[at[rank]], *rest]

    return len(
        {
            frozenset(
                (one, other) for place, one in enumerate(order) for other in order[place + 1 :]
                if one[0] != other[0] and one[2] == other[2] and "add" in (one[3], other[3])
            )
            for order in interleaved([0] * len(uses))
        }
    )  # fmt: skip


def both_ways(uses: list[Uses]) -> tuple[SearchedOrders, SearchedOrders]:
    """What a search comes to, with sleep sets and without."""
    run = runs_of(partial(uses_keys, uses), len(uses), follow=True)
    asleep, awake = (searched(run, "exhaustive", 3000, differences=False, sleep=sleep) for sleep in (True, False))
    return asleep, awake


_use = st.tuples(st.sampled_from("ab"), st.sampled_from(["add", "look"]))


@pytest.mark.long  # seconds
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(
    st.one_of(
        st.lists(st.lists(_use, min_size=1, max_size=3), min_size=2, max_size=2),
        st.lists(st.lists(_use, min_size=1, max_size=2), min_size=3, max_size=3),
    )
)
def test_programs_that_use_a_store_come_to_all_their_orders(uses: list[Uses]) -> None:
    asleep, awake = both_ways(uses)
    assert (asleep.exhausted, awake.exhausted) == (True, True)
    assert asleep.distinct == awake.distinct == orders_of(uses)
    assert asleep.runs + asleep.asleep >= awake.runs >= asleep.runs


@pytest.mark.long  # seconds
@pytest.mark.parametrize(
    ("uses", "orders"),
    [
        ([[("a", "add")] * 2] * 3, 90),
        ([[("b", "add"), ("b", "look")], [("b", "add")] * 2, [("b", "add"), ("b", "look")]], 70),
    ],
)
def test_three_ranks_at_one_key(uses: list[Uses], orders: int) -> None:
    """A rank that has let others go first is asked again when it is its turn; what is equal in the end is not, half way."""
    asleep, awake = both_ways(uses)
    assert asleep.distinct == awake.distinct == orders == orders_of(uses)
    assert asleep.asleep > 20


@pytest.mark.parametrize(
    ("program", "world", "orders"),
    [
        (leads, 3, 6),
        (partial(gathers, named=False), 3, 2),
        pytest.param(reduces, 2, 3, marks=pytest.mark.long),
    ],
    ids=["leads", "gathers", "reduces"],
)
def test_who_leads_whose_message_comes_and_words_of_kernels(program: object, world: int, orders: int) -> None:
    run = runs_of(program, world, follow=True)  # type: ignore[arg-type]
    for sleep in (True, False):
        found = searched(run, "exhaustive", 300, differences=False, sleep=sleep)
        assert found.exhausted
        assert found.distinct == orders


def test_within_a_bound_nothing_sleeps() -> None:
    """What another answer has done may need one more from there than the bound allows."""
    run = runs_of(leads, 3, follow=True)
    asleep, awake = (searched(run, "exhaustive:2", 300, sleep=sleep) for sleep in (True, False))
    assert asleep == awake
    assert asleep.asleep == 0
    assert asleep.beyond > 0
