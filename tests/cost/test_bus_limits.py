"""Limits of busbw: closed forms from the links' figures, and no model is faster."""

from __future__ import annotations

import pytest

from kernbench.collective_kinds import KINDS
from kernbench.cost import collective_time
from kernbench.cost.bus_limits import busbw_limit
from kernbench.topology import Topology, resolve_topology


def _system(name: str, nodes: int = 1) -> Topology:
    return resolve_topology(name, nodes=nodes).topology_obj


def _port(topology: Topology, kind: str) -> float:
    return next(link.bandwidth for link in topology.node_links if link.kind == kind)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_behind_a_switch_a_members_port_is_the_limit(ranks: int) -> None:
    """nccl-tests' factors make busbw what each port carries."""
    topology = _system("dgx_a100")
    port = _port(topology, "sip")
    for name, kind in KINDS.items():
        if not kind.runs_as and (name != "send" or ranks == 2):
            assert busbw_limit(topology, name, range(ranks)) == pytest.approx(port), name


def test_a_switch_that_reduces_halves_what_an_all_reduce_sends() -> None:
    topology = _system("dgx_h100")
    port = _port(topology, "sip")
    assert busbw_limit(topology, "all_reduce", range(8)) == pytest.approx(port * 2 * 7 / 8)
    assert busbw_limit(topology, "reduce_scatter", range(8)) == pytest.approx(port)


def test_between_nodes_the_nics_are_the_limit() -> None:
    """One member on each of four nodes has one NIC; 8 members of a node have all: all-to-all sends half of 16 parts outside."""
    topology = _system("dgx_h100", nodes=4)
    nic = _port(topology, "nic")
    assert busbw_limit(topology, "all_reduce", [0, 8, 16, 24]) == pytest.approx(nic)
    assert busbw_limit(topology, "all_to_all", range(16)) == pytest.approx(8 * nic * 15 / (8 * 8))
    assert busbw_limit(topology, "broadcast", range(16)) == pytest.approx(8 * nic)
    both = _port(topology, "sip") + nic  # a member reaches its node through the switch, the others through its NIC
    assert busbw_limit(topology, "all_gather", range(16)) == pytest.approx(min(both, 8 * nic * 15 / 8))


def test_joined_to_each_other_members_have_a_link_for_each() -> None:
    topology = _system("mi300x")
    link = _port(topology, "sip")
    assert busbw_limit(topology, "all_reduce", range(8)) == pytest.approx(7 * link)
    assert busbw_limit(topology, "all_reduce", range(4)) == pytest.approx(3 * link)
    assert busbw_limit(topology, "send", [2, 5]) == pytest.approx(link)


def test_nothing_is_known_of_what_crosses_no_link() -> None:
    topology = _system("dgx_h100")
    assert busbw_limit(topology, "all_reduce", [0]) is None
    assert busbw_limit(topology, "all_reduce", [0, 0]) is None
    assert busbw_limit(topology, "barrier", range(8)) is None


@pytest.mark.parametrize(("name", "nodes"), [("dgx_h100", 1), ("dgx_h100", 2), ("dgx_h100", 8), ("mi300x", 1), ("dgx_a100", 2),
                                             ("dgx_b200", 2), ("aws_p5", 2), ("gh200_alps", 2)])  # fmt: skip
def test_no_model_is_faster_than_the_links(name: str, nodes: int) -> None:
    topology = _system(name, nodes)
    ranks = nodes * topology.sips_per_node
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"):
        modelled = collective_time(name, collective, 1 << 32, ranks=ranks, nodes=nodes, kind="kernel").busbw
        limit = busbw_limit(topology, collective, range(ranks))
        assert limit is not None
        assert 0.3 * limit < modelled <= limit, (collective, modelled, limit)
