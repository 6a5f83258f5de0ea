"""Quantities: text with units against arithmetic, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.topology.units import BANDWIDTH, DURATION, FREQUENCY, RATE, SIZE, Quantity, QuantityError


@pytest.mark.parametrize(
    ("quantity", "text", "expected"),
    [
        (BANDWIDTH, "450 GB/s", 450e9),
        (BANDWIDTH, "450GB/s", 450e9),
        (BANDWIDTH, "400 Gb/s", 50e9),
        (BANDWIDTH, "200 Gbps", 25e9),
        (BANDWIDTH, "1 GiB/s", 2**30),
        (BANDWIDTH, "3.35 TB/s", 3.35e12),
        (BANDWIDTH, 12, 12.0),
        (BANDWIDTH, "1e9", 1e9),
        (SIZE, "80 GiB", 80 * 2**30),
        (SIZE, "141 GB", 141e9),
        (SIZE, "228 KiB", 228 * 1024),
        (SIZE, "1_024 B", 1024),
        (DURATION, "1.2 us", 1.2e-6),
        (DURATION, "1.2 µs", 1.2e-6),
        (DURATION, "40 ns", 40e-9),
        (DURATION, 0, 0.0),
        (RATE, "989 TFLOP/s", 989e12),
        (RATE, "989 TFLOPS", 989e12),
        (RATE, "1979 TOP/s", 1979e12),
        (RATE, "524.3 TFLOP/s", 524.3e12),  # exactly the float that a reader would write
        (FREQUENCY, "1830 MHz", 1.83e9),
    ],
)
def test_parses_to_si(quantity: Quantity, text: object, expected: float) -> None:
    assert quantity.parse(text) == expected


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        (BANDWIDTH, "450 GB"),
        (BANDWIDTH, "fast"),
        (BANDWIDTH, "450 gb/s"),
        (DURATION, "3 GB"),
        (SIZE, "80 GHz"),
        (SIZE, True),
        (SIZE, None),
        (SIZE, [1]),
        (RATE, "inf"),
        (RATE, math.inf),
        (RATE, math.nan),
        (BANDWIDTH, ""),
        (BANDWIDTH, "1.2.3 GB/s"),
    ],
)
def test_refuses_with_an_example_of_what_was_expected(quantity: Quantity, value: object) -> None:
    with pytest.raises(QuantityError, match="such as") as caught:
        quantity.parse(value)
    assert quantity.example in str(caught.value)


@given(st.floats(min_value=1e-9, max_value=1e18, allow_nan=False))
def test_formatting_and_parsing_agree(value: float) -> None:
    assert BANDWIDTH.parse(BANDWIDTH.format(value, digits=12)) == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        (BANDWIDTH, 450e9, "450 GB/s"),
        (BANDWIDTH, 3.35e12, "3.35 TB/s"),
        (DURATION, 1e-6, "1 us"),
        (DURATION, 0.0, "0 ns"),
        (DURATION, 1.5e-7, "150 ns"),
        (RATE, 989e12, "989 TFLOP/s"),
    ],
)
def test_formats_in_the_largest_fitting_unit(quantity: Quantity, value: float, text: str) -> None:
    assert quantity.format(value) == text
