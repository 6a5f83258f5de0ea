"""Large systems: what is computed, and how much is kept, independent of the number of nodes."""

from __future__ import annotations

import tracemalloc

import numpy as np

from kernbench.topology import Topology, load_system


def test_4096_sips_have_the_links_and_routes_of_one_node_shifted() -> None:
    system = load_system("sip8")
    large, small = Topology(system, nodes=512), Topology(system, nodes=2)
    stride = len(small.links) // 2
    assert large.sip_count == 4096
    assert len(large.links) == 512 * stride == 32768
    node = 300
    near, shifted = small.route(2, 5), large.route(2 + 8 * node, 5 + 8 * node)
    assert shifted.links == tuple(index + node * stride for index in near.links)
    assert (shifted.latency, shifted.bandwidth) == (near.latency, near.bandwidth)
    far = large.route(4, 4095)
    assert [large.links[index].name for index in far.links] == [
        "sip4.egress",
        "nic4->fabric",
        "fabric->nic4095",
        "sip4095.ingress",
    ]
    assert large.link_bandwidth.shape == (32768,)
    np.testing.assert_array_equal(large.link_latency[:stride], large.link_latency[-stride:])


def test_building_keeps_little_memory() -> None:
    system = load_system("sip8")
    tracemalloc.start()
    try:
        topology = Topology(system, nodes=512)
        built, _ = tracemalloc.get_traced_memory()
        for sip in range(4096):
            topology.route(sip, (sip + 1) % 4096)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert built < 200_000  # a graph object per link would take tens of megabytes
    assert used - built < 4096 * 600  # one cached route per SIP


def test_the_cache_of_routes_is_bounded() -> None:
    topology = Topology(load_system("sip8"), nodes=512)
    info = topology.route.cache_info()  # type: ignore[attr-defined]
    assert info.maxsize is not None
    assert info.maxsize < topology.sip_count**2
    assert topology.route(0, 9) is topology.route(0, 9)
