"""Several ranks in words."""

from __future__ import annotations

from collections.abc import Iterable


def spans(ranks: Iterable[int]) -> list[str]:
    """Ranks in order, as ``--ranks`` has them: ``["0", "8-11"]``."""
    found: list[list[int]] = []
    for rank in sorted({*ranks}):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


def named(ranks: Iterable[int]) -> str:
    """``"rank 3"``, ``"ranks 0-6, 8"``."""
    numbers = {*ranks}
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(spans(numbers))
