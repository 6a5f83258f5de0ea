"""What atomic updates wait for one another, of clocks that are known."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.cost.contention import Contention, turn_clocks, visit_clocks, way_clocks
from kernbench.topology import load_device


def test_one_word_after_another():
    """One word updated 2^22 times by floats, on one H100: 7.38 ms; by integers: 3.10."""
    device, number = load_device("h100_sxm"), 1 << 22
    for floating, measured in ((True, 7.38e-3), (False, 3.10e-3)):
        clocks = float(visit_clocks(np.array([32]), floating)[0]) * number / 32
        found = Contention(0.0, clocks, number * turn_clocks(floating)).seconds(device)
        assert found == pytest.approx(measured, rel=0.05)


def test_spread_updates_wait_on_the_way_only():
    """2^22 words in a sector each, over 1 MiB: 0.071 ms."""
    way = float(way_clocks(np.array([4]))[0]) * (1 << 22)
    assert Contention(way).seconds(load_device("h100_sxm")) == pytest.approx(71e-6, rel=0.05)


def test_two_instructions_add_up():
    one, other = Contention(1.0, 2.0, 3.0), Contention(10.0, 20.0, 30.0)
    assert one.beside(other) == Contention(11.0, 22.0, 33.0)
