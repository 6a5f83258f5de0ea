"""Two users of one communicator, or of its signals; collectives that do not fit: found, and nothing where they are right."""

from __future__ import annotations

import pytest

import kernbench
from tests.order.communicator_programs import (
    gather_of_columns,
    order_of_collectives_decided_by_data,
    signals_of_two_groups_that_collide,
    two_streams_on_one_communicator,
)
from tests.order.test_streams import races_of


def test_two_streams_on_one_communicator() -> None:
    found = races_of(two_streams_on_one_communicator, False).found
    assert {race.second.name for race in found} == {"fill_.Scalar"}
    assert races_of(two_streams_on_one_communicator, True).found == []


def test_signals_that_collide_are_found_under_other_schedules() -> None:
    """One takes what was meant for the other only if they come in that order."""
    schedules = [f"random:{seed}" for seed in range(1, 5)]
    found = [races_of(signals_of_two_groups_that_collide, False, schedule=each).found for each in schedules]
    assert {race.kind for races in found for race in races} == {"read after write", "write after read"}
    for schedule in ("default", *schedules):
        assert races_of(signals_of_two_groups_that_collide, True, schedule=schedule).found == []


def test_collectives_in_an_order_that_data_decide() -> None:
    assert races_of(order_of_collectives_decided_by_data, True).found == []
    with pytest.raises(kernbench.SpawnException, match="does not match between ranks 0 and 1"):
        races_of(order_of_collectives_decided_by_data, False)


def test_a_gather_of_columns() -> None:
    assert races_of(gather_of_columns, True).found == []
    with pytest.raises(kernbench.SpawnException, match="Tensors must be contiguous: gather"):
        races_of(gather_of_columns, False)
