"""Descriptions: the shipped ones, building on another, references, and what a handle offers."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import kernbench
import kernbench.topology.builder
from kernbench.errors import ConfigError
from kernbench.topology import (
    TopologyHandle,
    load_device,
    load_fabric,
    load_system,
    resolve_topology,
    shipped,
    shipped_devices,
    shipped_fabrics,
    shipped_systems,
)
from kernbench.topology.figures import system_figures
from kernbench.topology.shipped import config_root, find_config


def test_the_default_system(topology: TopologyHandle, spec: Mapping[str, Any]) -> None:
    assert topology.name == "sip8"
    assert topology.path == config_root() / "systems" / "sip8.yaml"
    assert topology.topology_obj.sip_count == spec["system"]["sips"]["count"] == 8
    assert spec["system"]["sips"]["device"] == "sip"  # as written, not resolved
    assert kernbench.topology.builder.resolve_topology is resolve_topology


@pytest.mark.parametrize(
    ("name", "nodes", "sips", "kind", "device", "link_gb", "hbm_tb"),
    [  # data sheets: link payload before protocol, HBM pins
        ("sip8", 1, 8, "ring_1d", "sip", 64, 128 * 8 * 32e-3),
        ("dgx_a100", 1, 8, "switch", "a100_sxm", 300, 2.039),
        ("dgx_h100", 1, 8, "switch", "h100_sxm", 450, 3.35),
        ("dgx_h100_2n", 2, 8, "switch", "h100_sxm", 450, 3.35),
        ("hgx_h200", 1, 8, "switch", "h200", 450, 4.8),
        ("dgx_b200", 1, 8, "switch", "b200", 900, 8.0),
        ("gb200_nvl72", 1, 72, "switch", "gb200", 900, 8.0),
        ("gh200_alps", 1, 4, "full", "gh200", 150, 4.0),
        ("mi300x", 1, 8, "full", "mi300x", 64, 5.3),
        ("mi355x", 1, 8, "full", "mi355x", 76.5, 8.0),
        ("aws_p4de", 1, 8, "switch", "a100_sxm", 300, 2.039),
        ("aws_p5", 1, 8, "switch", "h100_sxm", 450, 3.35),
        ("gcp_a3_high", 1, 8, "switch", "h100_sxm", 450, 3.35),
    ],
)
def test_shipped_systems_have_the_figures_of_their_data_sheets(
    name: str, nodes: int, sips: int, kind: str, device: str, link_gb: float, hbm_tb: float
) -> None:
    system = load_system(name)
    assert (system.name, system.nodes, system.sips.count, system.sips.topology) == (name, nodes, sips, kind)
    assert system.device == load_device(device)
    assert system.sips.link is not None
    assert system.sips.link.bandwidth * system.sips.link.lanes == pytest.approx(link_gb * 1e9)
    assert system.device.hbm.bandwidth == pytest.approx(hbm_tb * 1e12)


def test_no_shipped_system_is_forgotten() -> None:
    assert set(shipped_systems()) >= {"sip8", "dgx_a100", "dgx_h100", "hgx_h200", "mi300x", "dgx_h100_2n"}
    assert set(shipped_devices()) >= {
        "a100_sxm",
        "h100_sxm",
        "h200",
        "b200",
        "gb200",
        "mi300x",
        "mi355x",
        "mi210",
        "sip",
    }
    assert set(shipped_fabrics()) == {"ndr400", "hdr200", "roce200", "roce400", "efa", "slingshot11", "tcpx"}


@pytest.mark.parametrize("name", shipped_systems())
def test_every_shipped_system_can_have_nodes(name: str) -> None:
    graph = resolve_topology(name, nodes=3).topology_obj
    assert graph.sip_count == 3 * graph.sips_per_node
    assert [graph.node_of(sip) for sip in (0, graph.sips_per_node, graph.sip_count - 1)] == [0, 1, 2]
    assert list(graph.sips_of(1)) == list(range(graph.sips_per_node, 2 * graph.sips_per_node))


@pytest.mark.parametrize("name", shipped_fabrics())
def test_a_fabric_delivers_less_to_more_nodes(name: str) -> None:
    fabric = load_fabric(name)
    assert fabric.name == name
    two, four, eight = (fabric.payload_bandwidth(nodes) for nodes in (2, 4, 8))
    assert two == pytest.approx(fabric.bandwidth * (1 - fabric.protocol_overhead))
    assert four / two == pytest.approx(eight / four) == pytest.approx(1 - fabric.congestion)


@pytest.mark.parametrize(
    ("name", "gigabits"),
    [
        ("dgx_h100", 3200),
        ("dgx_a100", 1600),
        ("gh200_alps", 800),
        ("aws_p4de", 400),
        ("aws_p5", 3200),
        ("gcp_a3_high", 800),
    ],
)
def test_nodes_have_the_network_of_their_instance(name: str, gigabits: int) -> None:
    graph = resolve_topology(name, nodes=2).topology_obj
    fabric = graph.system.fabric
    assert fabric is not None
    payload = gigabits * 1e9 / 8 * (1 - fabric.protocol_overhead)
    assert system_figures(graph).node_bandwidth == pytest.approx(payload)


def test_another_fabric_for_the_same_system() -> None:
    graph = resolve_topology("dgx_h100", nodes=2, fabric="tcpx").topology_obj
    assert graph.route(0, 8).bandwidth == pytest.approx(25e9 * 0.85)


def test_extends_merges_key_by_key(tmp_path: Path) -> None:
    path = tmp_path / "wide.yaml"
    path.write_text("extends: dgx_h100\nsystem:\n  sips: {link: {lanes: 36}, switch: null, topology: full}\n")
    handle, base = resolve_topology(path), load_system("dgx_h100")
    system = handle.topology_obj.system
    assert (handle.name, system.description) == ("wide", "built on dgx_h100")
    assert system.sips.link is not None
    assert base.sips.link is not None
    assert system.sips.link == base.sips.link.model_copy(update={"lanes": 36})
    assert system.sips.device == base.sips.device
    assert not system.sips.reduces_in_switch
    assert base.sips.reduces_in_switch
    assert handle.topology_obj.spec["system"]["sips"]["count"] == 8


def test_a_device_inline_on_the_basis_of_another(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_text("system:\n  sips: {count: 1, device: {extends: h100_sxm, name: big, hbm: {size: 1 TiB}}}\n")
    device, base = load_system(path).device, load_device("h100_sxm")
    assert device.hbm.size == 2**40
    assert device == base.model_copy(update={"name": "big", "hbm": base.hbm.model_copy(update={"size": 2**40})})


def test_files_name_each_other_by_relative_path(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "chip.yaml").write_text("extends: mi210\ndevice: {}\n")
    (tmp_path / "parts" / "net.yaml").write_text("fabric: {latency: 1 us, bandwidth: 10 GB/s}\n")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "system:\n  sips: {count: 1, device: parts/chip.yaml}\n  fabric: parts/net.yaml\n  nics: {count: 1}\n"
    )
    system = load_system(path)
    assert (system.device.name, system.fabric.name if system.fabric else None) == ("chip", "net")


def test_yaml_anchors_and_merge_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "system:\n  sips: {count: 2, device: sip, link: &l {bandwidth: 1 GB/s, latency: 1 us}}\n"
        "  nics: {count: 1}\n  fabric: {<<: *l, latency: 2 us, name: slow}\n"
    )
    fabric = load_system(path).fabric
    assert fabric is not None
    assert (fabric.bandwidth, fabric.latency) == (1e9, 2e-6)


def test_descriptions_are_immutable_and_travel() -> None:
    system = load_system("sip8")
    with pytest.raises(ValidationError, match="frozen"):
        system.sips.count = 9  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(system)) == system


def test_shipped_files_have_the_name_they_are_found_by() -> None:
    assert [load_system(name).name for name in shipped_systems()] == shipped_systems()
    assert [load_device(name).name for name in shipped_devices()] == shipped_devices()
    assert find_config("systems", "sip8").name == "sip8.yaml"


def test_what_a_system_says_about_ccl_reads_as_a_mapping() -> None:
    assert dict(load_system("dgx_h100").ccl) == {
        "algorithm": "auto",
        "buffer_kind": "sram",
        "backpressure": "poll",
        "n_slots": 8,
        "slot_size": 65536,
    }
    assert not load_system("sip8").ccl


def _documented() -> str:
    return (Path(__file__).parents[2] / "docs" / "systems.md").read_text(encoding="utf-8")


_EXAMPLES = [text.split("```")[0] for text in _documented().split("```yaml\n")[1:]]


@pytest.mark.parametrize("block", [block for block in _EXAMPLES if "\nsystem:" in block])
def test_the_systems_of_the_documentation_load(tmp_path: Path, block: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(block)
    assert resolve_topology(path).topology_obj.sip_count in (4, 32)


def test_the_device_of_the_documentation_has_its_generation_beside_it(tmp_path: Path) -> None:
    for block in _EXAMPLES:
        if "\nsystem:" not in block:  # its first line names the file
            (tmp_path / block.split()[1].rstrip(":")).write_text(block)
    device = load_device(tmp_path / "my_gpu.yaml")
    assert (device.name, device.generation) == ("my_gpu", str(tmp_path / "my_generation.yaml"))


@pytest.mark.parametrize("inside_package", [True, False])
def test_configuration_files_are_found_in_a_wheel_and_in_a_source_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside_package: bool
) -> None:
    package = tmp_path / "kernbench"
    configs = (package if inside_package else tmp_path) / "configs"
    package.mkdir()
    monkeypatch.setattr(shipped, "__file__", str(package / "topology" / "shipped.py"))
    with pytest.raises(ConfigError, match="configuration files are missing"):
        config_root.__wrapped__()
    configs.mkdir()
    assert config_root.__wrapped__() == configs


def test_a_graph_is_shared_until_its_file_says_something_else(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: sip8\nsystem: {sips: {count: 4}}\n")
    first = resolve_topology(file).topology_obj
    assert resolve_topology(file).topology_obj is first
    assert resolve_topology(file, nodes=2).topology_obj.sip_count == 8
    file.write_text("extends: sip8\nsystem: {sips: {count: 2}}\n")
    assert resolve_topology(file).topology_obj.sip_count == 2
    assert first.sip_count == 4
    file.write_text("extends: sip8\nsystem: {sips: {count: 6}, sips: {count: 2}}\n")
    with pytest.raises(ConfigError, match="sips"):  # the same data, and a key that stands twice
        resolve_topology(file)
