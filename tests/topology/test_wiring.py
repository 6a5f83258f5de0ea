"""Ways over rings, meshes and tori against networkx's shortest paths."""

from __future__ import annotations

from itertools import pairwise, product

import networkx as nx
import pytest

from kernbench.topology.wiring import Wiring, full, grid

GRIDS = [
    (w, h, wrap)
    for w, h in ((1, 1), (2, 1), (3, 1), (8, 1), (9, 1), (2, 2), (3, 2), (4, 4), (5, 3))
    for wrap in (True, False)
]


def _graph(wiring: Wiring, count: int) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(wiring.joints)
    return graph


@pytest.mark.parametrize(("w", "h", "wrap"), GRIDS)
def test_every_way_is_shortest_and_runs_over_joints(w: int, h: int, wrap: bool) -> None:
    wiring = grid(w, h, wrap=wrap)
    graph = _graph(wiring, w * h)
    distance = dict(nx.all_pairs_shortest_path_length(graph))
    for a, b in product(range(w * h), repeat=2):
        path = wiring.path(a, b)
        assert (path[0], path[-1]) == (a, b)
        assert len(path) - 1 == distance[a][b]
        assert all(graph.has_edge(*step) for step in pairwise(path))


@pytest.mark.parametrize(("w", "h", "wrap"), GRIDS)
def test_joints_are_the_grid_that_networkx_builds(w: int, h: int, wrap: bool) -> None:
    expected = nx.grid_2d_graph(h, w, periodic=(wrap and h > 2, wrap and w > 2))  # networkx numbers (row, column)
    pairs = {(y * w + x, v * w + u) for (y, x), (v, u) in expected.to_directed().edges if (y, x) != (v, u)}
    joints = grid(w, h, wrap=wrap).joints
    assert set(joints) == pairs
    assert len(joints) == len(set(joints))


def test_a_ring_of_two_is_one_full_duplex_pair() -> None:
    ring = grid(2, 1, wrap=True)
    assert ring.joints == ((0, 1), (1, 0))
    assert ring.path(0, 1) == (0, 1)
    assert ring.path(1, 0) == (1, 0)


@pytest.mark.parametrize(
    ("a", "b", "path"),
    [
        (0, 4, (0, 1, 2, 3, 4)),  # half way round an even ring: growing numbers
        (4, 0, (4, 5, 6, 7, 0)),
        (1, 6, (1, 0, 7, 6)),
        (7, 1, (7, 0, 1)),
    ],
)
def test_ring_ways_take_the_shorter_side(a: int, b: int, path: tuple[int, ...]) -> None:
    assert grid(8, 1, wrap=True).path(a, b) == path


def test_dimension_order_goes_along_the_row_first() -> None:
    assert grid(4, 4, wrap=False).path(0, 10) == (0, 1, 2, 6, 10)
    assert grid(4, 4, wrap=True).path(0, 15) == (0, 3, 15)


def test_full_joins_everyone_directly() -> None:
    wiring = full(5)
    assert len(wiring.joints) == 20
    assert wiring.path(3, 1) == (3, 1)
