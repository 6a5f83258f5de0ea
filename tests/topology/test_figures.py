"""Derived figures against brute force over all halves, and against bounds worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from kernbench.topology import Topology, resolve_topology, shipped_systems
from kernbench.topology.figures import bisection_bandwidth, system_figures


def least_cut(topology: Topology) -> float:
    """Least bandwidth of SIP-to-SIP links from one half to the other, over all halves."""
    sips = range(topology.sip_count)
    joints = [link for link in topology.links if link.kind == "sip"]
    number = {f"sip{sip}": sip for sip in sips}
    cuts = [
        sum(link.bandwidth for link in joints if number[link.src] in half and number[link.dst] not in half)
        for half in map(set, combinations(sips, len(sips) // 2))
    ]
    return min(cuts)


@pytest.mark.parametrize(
    ("count", "shape"),
    [
        (2, "topology: ring_1d"),
        (3, "topology: ring_1d"),
        (8, "topology: ring_1d"),
        (8, "topology: torus_2d, w: 4, h: 2"),
        (8, "topology: mesh_2d_no_wrap, w: 4, h: 2"),
        (12, "topology: torus_2d, w: 3, h: 4"),
        (12, "topology: mesh_2d_no_wrap, w: 3, h: 4"),
        (5, "topology: full"),
        (8, "topology: full"),
    ],
)
def test_bisection_is_the_least_cut_in_halves(system_file: Callable[..., Path], count: int, shape: str) -> None:
    link = "link: {bandwidth: 10 GB/s, latency: 1 us}"
    topology = resolve_topology(system_file(sips=f"{{count: {count}, device: h100_sxm, {shape}, {link}}}")).topology_obj
    assert bisection_bandwidth(topology) == pytest.approx(least_cut(topology))


def test_bisection_of_a_switch() -> None:
    assert bisection_bandwidth(resolve_topology("dgx_h100").topology_obj) == pytest.approx(4 * 450e9 * 0.9412)


def test_bisection_of_nodes() -> None:
    per_node = 8 * 50e9 * 0.97 * 0.995
    assert bisection_bandwidth(resolve_topology("dgx_h100", nodes=4).topology_obj) == pytest.approx(2 * per_node)


def test_figures_of_the_default_system() -> None:
    figures = system_figures(resolve_topology().topology_obj)
    assert (figures.sips, figures.pes) == (8, 8 * 128)
    assert figures.hbm_size == 8 * 96 * 2**30
    assert figures.hbm_bandwidth == pytest.approx(8 * 128 * 8 * 32e9)
    assert figures.injection_bandwidth == figures.ring_busbw == 2 * 64e9  # both directions of the ring
    assert figures.one_ring_busbw == 64e9
    assert figures.node_bandwidth is None
    assert figures.nearest_latency == pytest.approx(154e-9)
    assert figures.worst_latency == pytest.approx(274e-9)
    assert figures.most_links == 6


def test_bounds_between_nodes() -> None:
    figures = system_figures(resolve_topology("dgx_a100", nodes=2).topology_obj)
    node = 8 * 25e9 * 0.94
    assert figures.node_bandwidth == pytest.approx(node)
    assert figures.one_ring_busbw == pytest.approx(node / 8)
    assert figures.ring_busbw == pytest.approx(node)
    # Two nodes exchange the data once: S bytes leave a node, while busbw counts 2 * 15/16 * S.
    assert figures.allreduce_busbw == pytest.approx(min(node * 2 * 15 / 16, 300e9 * 0.9412))


def test_a_single_sip_has_nothing_between_sips(system_file: Callable[..., Path]) -> None:
    figures = system_figures(resolve_topology(system_file(sips="{count: 1, device: sip}")).topology_obj)
    assert figures.bisection_bandwidth is figures.ring_busbw is figures.one_ring_busbw is figures.worst_latency is None


# Bus bandwidths that were measured with ring or tree algorithms, large messages (sources in the system files).
@pytest.mark.parametrize(
    ("name", "nodes", "measured_gb"),
    [
        ("mi300x", 1, 312.9),
        ("dgx_h100", 1, 370),
        ("gh200_alps", 1, 339.0),
        ("gh200_alps", 4, 92.5),
        ("dgx_a100", 2, 182.8),
    ],
)
def test_no_measured_busbw_exceeds_its_bound(name: str, nodes: int, measured_gb: float) -> None:
    bound = system_figures(resolve_topology(name, nodes=nodes).topology_obj).allreduce_busbw
    assert bound is not None
    assert 0.5 * bound < measured_gb * 1e9 <= bound


@pytest.mark.parametrize("name", shipped_systems())
def test_figures_of_all_shipped_systems(name: str) -> None:
    figures = system_figures(resolve_topology(name, nodes=2).topology_obj)
    assert figures.one_ring_busbw is not None
    assert figures.ring_busbw is not None
    assert figures.allreduce_busbw is not None
    assert figures.one_ring_busbw <= figures.ring_busbw <= figures.allreduce_busbw
