"""Routes and link figures against sums and minima worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from kernbench.errors import ConfigError
from kernbench.topology import Topology, TopologyHandle, resolve_topology

NS, US, GB = 1e-9, 1e-6, 1e9
Write = Callable[[str], Path]


def names(topology: Topology, src: int, dst: int) -> list[str]:
    return [topology.links[index].name for index in topology.route(src, dst).links]


def test_sip8_neighbours(topology: TopologyHandle) -> None:
    graph = topology.topology_obj
    route = graph.route(0, 1)
    assert names(graph, 0, 1) == ["sip0.egress", "sip0->sip1", "sip1.ingress"]
    # PE to IO die: crossbar 2 ns; on average over the 4x4 mesh, IO die at cube (1, 0), 1 column + 1.5 rows of
    # (16 + 2) ns; IO die 10 ns. Twice that, and the link's 40 ns.
    assert route.latency == pytest.approx(2 * (2 + 2.5 * 18 + 10) * NS + 40 * NS)
    assert route.bandwidth == 64 * GB


def test_sip8_opposite_side_of_the_ring(topology: TopologyHandle) -> None:
    graph = topology.topology_obj
    assert names(graph, 0, 4) == ["sip0.egress", "sip0->sip1", "sip1->sip2", "sip2->sip3", "sip3->sip4", "sip4.ingress"]
    assert names(graph, 1, 6) == ["sip1.egress", "sip1->sip0", "sip0->sip7", "sip7->sip6", "sip6.ingress"]
    assert graph.route(0, 4).latency == pytest.approx(114 * NS + 4 * 40 * NS)


def test_a_sip_reaches_itself_over_no_link() -> None:
    for name in ("sip8", "dgx_h100", "mi300x"):
        route = resolve_topology(name).topology_obj.route(3, 3)
        assert (route.links, route.latency, route.bandwidth) == ((), 0.0, float("inf"))


def test_switch_systems_go_in_and_out_of_the_switch() -> None:
    graph = resolve_topology("dgx_h100").topology_obj
    route = graph.route(2, 5)
    assert names(graph, 2, 5) == ["sip2->switch0", "switch0->sip5"]
    assert route.latency == pytest.approx((0.25 + 0.1 + 0.25) * US)
    assert route.bandwidth == pytest.approx(18 * 25 * GB * 0.9412)


def test_full_systems_go_direct() -> None:
    graph = resolve_topology("mi300x").topology_obj
    assert names(graph, 7, 2) == ["sip7->sip2"]
    assert graph.route(7, 2).bandwidth == pytest.approx(64 * GB * 0.75)
    assert sum(link.kind == "sip" for link in graph.links) == 8 * 7


def test_between_nodes_by_the_rails() -> None:
    graph = resolve_topology("dgx_h100", nodes=3).topology_obj
    route = graph.route(1, 21)  # local 1 of node 0 to local 5 of node 2
    assert names(graph, 1, 21) == ["nic1->fabric", "fabric->nic21"]
    assert route.latency == pytest.approx(3.5 * US)
    # 400 Gb/s less 3 % protocol, less 0.5 % for each doubling beyond two nodes
    assert route.bandwidth == pytest.approx(50 * GB * 0.97 * 0.995 ** np.log2(3 / 2))


def test_between_nodes_through_io_dies() -> None:
    graph = resolve_topology("sip8", nodes=2).topology_obj
    assert names(graph, 3, 8) == ["sip3.egress", "nic3->fabric", "fabric->nic8", "sip8.ingress"]
    assert graph.route(3, 8).latency == pytest.approx(57 * NS + 3.5 * US + 57 * NS)


def test_sips_share_nics_when_there_are_fewer(system_file: Write) -> None:
    graph = resolve_topology(system_file("nics: {count: 2}\n  fabric: ndr400\n  nodes: 2")).topology_obj
    used = [names(graph, sip, 8)[1] for sip in range(8)]
    assert used == ["nic0->fabric"] * 4 + ["nic1->fabric"] * 4


def test_several_nics_per_sip_are_one_trunk(system_file: Write) -> None:
    graph = resolve_topology(system_file("nics: {count: 32}\n  fabric: efa\n  nodes: 2")).topology_obj
    assert graph.rails == 8
    assert graph.route(0, 8).bandwidth == pytest.approx(4 * 12.5 * GB * 0.88)


def test_a_blocking_switch_is_a_link_of_its_own(system_file: Write) -> None:
    link, switch = "{bandwidth: 100 GB/s, latency: 100 ns}", "{bandwidth: 150 GB/s, latency: 50 ns}"
    path = system_file(sips=f"{{count: 4, device: h100_sxm, topology: switch, link: {link}, switch: {switch}}}")
    graph = resolve_topology(path).topology_obj
    assert names(graph, 0, 3) == ["sip0->switch0", "switch0->switch0.out", "switch0.out->sip3"]
    assert graph.route(0, 3).latency == pytest.approx(250 * NS)
    shared = set(graph.route(0, 3).links) & set(graph.route(1, 2).links)
    assert [graph.links[index].bandwidth for index in shared] == [150 * GB]


def test_two_sips_in_a_ring_reach_each_other_both_ways(system_file: Write) -> None:
    link = "{bandwidth: 64 GB/s, latency: 40 ns}"
    graph = resolve_topology(
        system_file(sips=f"{{count: 2, device: sip, topology: ring_1d, link: {link}}}")
    ).topology_obj
    assert names(graph, 0, 1) == ["sip0.egress", "sip0->sip1", "sip1.ingress"]
    assert names(graph, 1, 0) == ["sip1.egress", "sip1->sip0", "sip0.ingress"]
    assert not set(graph.route(0, 1).links) & set(graph.route(1, 0).links)
    assert sum(each.kind == "sip" for each in graph.links) == 2


@pytest.mark.parametrize(("topology_kind", "hops"), [("torus_2d", 2), ("mesh_2d_no_wrap", 6)])
def test_grids_corner_to_corner(system_file: Write, topology_kind: str, hops: int) -> None:
    link = "{bandwidth: 64 GB/s, latency: 40 ns}"
    path = system_file(sips=f"{{count: 16, device: h100_sxm, topology: {topology_kind}, w: 4, h: 4, link: {link}}}")
    graph = resolve_topology(path).topology_obj
    assert len(graph.route(0, 15).links) == hops
    assert graph.route(0, 15).latency == pytest.approx(hops * 40 * NS)


def test_host_copies(topology: TopologyHandle) -> None:
    graph = topology.topology_obj
    down, up = graph.host_route(5, "h2d"), graph.host_route(5, "d2h")
    assert [graph.links[index].name for index in down.links] == ["host0->sip5", "sip5.ingress"]
    assert [graph.links[index].name for index in up.links] == ["sip5.egress", "sip5->host0"]
    assert down.latency == up.latency == pytest.approx(0.6 * US + 57 * NS)
    assert down.bandwidth == 55 * GB
    with pytest.raises(ValueError, match="h2d"):
        graph.host_route(5, "up")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "nodes"), [("sip8", 1), ("sip8", 3), ("dgx_h100", 2), ("mi300x", 2)])
def test_every_route_is_connected_and_adds_up(name: str, nodes: int) -> None:
    graph = resolve_topology(name, nodes=nodes).topology_obj
    for src, dst in product(range(graph.sip_count), repeat=2):
        route = graph.route(src, dst)
        links = [graph.links[index] for index in route.links]
        ends = [(one.dst, two.src) for one, two in pairwise(links)]
        beside_nic = [pair for pair in ends if pair[0] != pair[1]]
        assert all("nic" in pair[0] or "nic" in pair[1] for pair in beside_nic)
        assert len(beside_nic) <= 2
        if src != dst:
            assert route.latency == pytest.approx(graph.link_latency[list(route.links)].sum())
            assert route.bandwidth == graph.link_bandwidth[list(route.links)].min()
            assert len(set(route.links)) == len(links)


def test_link_table_agrees_with_the_arrays(topology: TopologyHandle) -> None:
    graph = resolve_topology("sip8", nodes=2).topology_obj
    assert [link.index for link in graph.links] == list(range(len(graph.links)))
    np.testing.assert_array_equal(graph.link_bandwidth, [link.bandwidth for link in graph.links])
    np.testing.assert_array_equal(graph.link_latency, [link.latency for link in graph.links])
    assert graph.links[-1] == graph.links[len(graph.links) - 1]
    assert graph.links[2:4] == [graph.links[2], graph.links[3]]
    with pytest.raises(IndexError):
        graph.links[len(graph.links)]
    with pytest.raises(ValueError, match="read-only"):
        graph.link_bandwidth[0] = 1.0


def test_link_names_are_unique() -> None:
    graph = resolve_topology("sip8", nodes=3).topology_obj
    assert len({link.name for link in graph.links}) == len(graph.links)


def test_describe_link(topology: TopologyHandle) -> None:
    graph = topology.topology_obj
    assert graph.describe_link(graph.route(0, 1).links[1]) == "sip0->sip1 (sip link, 64 GB/s, 40 ns)"


@pytest.mark.parametrize("sip", [-1, 8])
def test_a_sip_that_is_not_there(topology: TopologyHandle, sip: int) -> None:
    with pytest.raises(ConfigError, match="SIPs 0 to 7"):
        topology.topology_obj.route(0, sip)
    with pytest.raises(ConfigError, match="SIPs 0 to 7"):
        topology.topology_obj.node_of(sip)
