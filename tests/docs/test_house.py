"""The picture of the rooms is that of the imports, and stands as it should (docs/tools/house.py)."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from tests.docs.tools import load_tool

tool = load_tool("house")


def test_the_picture_is_current() -> None:
    rooms = tool.find_rooms()
    assert tool.PICTURE.read_text(encoding="utf-8") == tool.draw(rooms, tool.find_edges(rooms)), "run make house"


def test_what_counts_as_an_import(tmp_path: Path) -> None:
    for folder in ("kernbench/upper", "kernbench/lower", "kernbench/ground"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text(f'"""Room {folder}. More."""\n')
    (tmp_path / "kernbench/upper/a.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import kernbench.upper.b, kernbench.lower.x\n"
        "from ..lower import y\n"
        "if TYPE_CHECKING:\n    from kernbench.ground import unseen\n"
    )
    (tmp_path / "kernbench/lower/x.py").write_text("def f():\n    from kernbench import ground\n    return ground\n")
    (tmp_path / "kernbench/upper/b.py").write_text("from kernbench.upper.a import f\nimport torch, kernbench\n")
    rooms = tool.find_rooms(tmp_path)
    assert rooms["lower"] == "Room kernbench/lower"
    assert tool.find_edges(rooms, tmp_path) == {("upper", "lower"): 2, ("lower", "ground"): 1}


def test_a_circle_is_cut_where_it_is_thinnest() -> None:
    edges = Counter({("a", "b"): 5, ("b", "c"): 3, ("c", "a"): 1, ("c", "d"): 1})
    assert tool.upward(edges) == {("c", "a")}
    assert tool.floors("abcd", set(edges) - {("c", "a")}) == {"a": 3, "b": 2, "c": 1, "d": 0}


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    assert tool.reduced({("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("d", "c")}) == [
        ("a", "b"), ("a", "d"), ("b", "c"), ("d", "c"),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_places_are_the_nearest_in_their_order(seed: int) -> None:
    """Against trying every rising sequence over a grid."""
    draw = random.Random(seed)
    values = [float(draw.randrange(4)) for _ in range(4)]

    def distance(places: tuple[float, ...]) -> float:
        return sum((place - value) ** 2 for place, value in zip(places, values, strict=True))

    grid = [step / 6 for step in range(19)]  # pools of up to four whole numbers have their means in sixths and fourths
    best = min(map(distance, combinations_with_replacement(grid, 4)))
    found = tool._isotonic(values)
    assert found == sorted(found)
    assert distance(tuple(found)) <= best + 1e-9
