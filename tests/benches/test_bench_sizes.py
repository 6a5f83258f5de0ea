"""Sizes and sweeps."""

from __future__ import annotations

import pytest

from kernbench.benches.harness.sizes import format_size, parse_size, sweep


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0), ("17", 17), ("8B", 8), ("1K", 1024), ("1k", 1024), ("4KiB", 4096), ("1.5M", 1_572_864),
        ("64MB", 67_108_864), ("2G", 2_147_483_648), (" 1 T ", 1_099_511_627_776),
    ],
)  # fmt: skip
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes
    assert parse_size(format_size(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["", "K", "-1", "1X", "1KK", "1.0001K", "1e3", "0x10"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole"):
        parse_size(text)


def test_the_shortest_name_of_a_size() -> None:
    assert [format_size(n) for n in (0, 1000, 1024, 1536, 1 << 20, 3 << 30)] == ["0", "1000", "1K", "1536", "1M", "3G"]


def test_sweeps() -> None:
    assert sweep(1024, 65536, factor=4) == [1024, 4096, 16384, 65536]
    assert sweep(8, 100, factor=3) == [8, 24, 72]
    assert sweep(0, 100, increment=40) == [0, 40, 80]
    assert sweep(4096, 4096, factor=2) == [4096]


@pytest.mark.parametrize(
    ("begin", "end", "options"),
    [(2, 1, {"factor": 2}), (1, 2, {"factor": 1}), (1, 2, {}), (0, 8, {"factor": 2}), (1, 2, {"increment": 0})],
)
def test_sweeps_that_would_not_end_are_refused(begin: int, end: int, options: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        sweep(begin, end, **options)
