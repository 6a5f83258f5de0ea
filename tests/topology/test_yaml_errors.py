"""Wrong files: every problem at once, each with file, line, key path, what was found and what was expected."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from kernbench.errors import ConfigError
from kernbench.topology import load_device, load_fabric, load_system, resolve_topology

Load = Callable[..., object]


def complaints(path: Path, text: str, load: Load = load_system) -> list[str]:
    """The complaints about a file with that text, without the heading; the path shortened to its name."""
    path.write_text(textwrap.dedent(text))
    with pytest.raises(ConfigError) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    if len(lines) > 1:
        assert lines.pop(0) == f"{len(lines)} problems in {path}:"
    return [line.strip().replace(str(path), path.name) for line in lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


def test_all_problems_at_once_in_the_order_of_the_file(path: Path) -> None:
    found = complaints(
        path,
        """\
        system:
          sips:
            count: eight
            device: h100_sx
            topolgy: ring_1d
            topology: torus
            link: {bandwidth: -5 GB/s, latency: 3 GB, lanes: 2.5}
            count: 8
          nics: 3
          fabrik: ndr400
          ipcq: {queues: 0, n_slots: 4}
        """,
    )
    expected = [
        ("mine.yaml:4: system.sips.device: ", "no shipped device is called 'h100_sx'; did you mean 'h100_sxm'?"),
        ("mine.yaml:5: system.sips.topolgy: ", "unknown key; expected one of count, device, topology,"),
        ("mine.yaml:6: system.sips.topology: ", "'torus'; expected ring_1d, torus_2d, mesh_2d_no_wrap, full or switch"),
        ("mine.yaml:7: system.sips.link.bandwidth: ", "'-5 GB/s'; expected more than 0"),
        ("mine.yaml:7: system.sips.link.lanes: ", "2.5; expected a whole number"),
        (
            "mine.yaml:7: system.sips.link.latency: ",
            "'3 GB', whose unit is not one of s, ms, us, ns; expected a duration",
        ),
        ("mine.yaml:8: system.sips.count: ", "repeated key; it stands in line 3 already; expected each key once"),
        ("mine.yaml:9: system.nics: ", "3; expected a mapping with the keys count"),
        ("mine.yaml:10: system.fabrik: ", "unknown key; expected one of name,"),
        ("mine.yaml:11: system.ipcq.n_slots: ", "unknown key; expected one of queues,"),
        ("mine.yaml:11: system.ipcq.queues: ", "0; expected at least 1"),
    ]
    assert len(found) == len(expected)
    for line, (where, what) in zip(found, expected, strict=True):
        assert line.startswith(where + what)
    assert "did you mean `topology`?" in found[1]
    assert "did you mean torus_2d?" in found[2]
    assert "did you mean `fabric`?" in found[8]
    assert "it belongs at system.ccl.n_slots" in found[9]


_SIPS = "sips: {{count: {count}, device: sip, topology: {kind}, link: {{bandwidth: 1 GB/s, latency: 1 us}}{more}}}"


@pytest.mark.parametrize(
    ("count", "kind", "more", "complaint"),
    [
        (8, "torus_2d", ", w: 3, h: 3", "system.sips.topology: w x h = 3 x 3 = 9; expected a grid of 8 SIPs"),
        (8, "mesh_2d_no_wrap", ", w: 8, h: 2", "8 SIPs, as system.sips.count says: 1 x 8, 2 x 4, 4 x 2, 8 x 1"),
        (8, "torus_2d", ", w: 4", "system.sips.h: missing; expected the grid's `h`: topology torus_2d needs w and h"),
        (8, "ring_1d", ", w: 8", "system.sips.w: 8 with topology ring_1d; expected `w` only with torus_2d and"),
        (8, "full", ", switch: {}", "system.sips.switch: a switch with topology full; expected topology: switch"),
        (0, "ring_1d", "", "system.sips.count: 0; expected at least 1"),
        (True, "ring_1d", "", "system.sips.count: true; expected a whole number"),
    ],
)  # fmt: skip
def test_joined_sips_that_do_not_fit(path: Path, count: object, kind: str, more: str, complaint: str) -> None:
    (found,) = complaints(path, "system:\n  " + _SIPS.format(count=str(count).lower(), kind=kind, more=more))
    assert complaint in found


@pytest.mark.parametrize(
    ("rest", "complaint"),
    [
        ("nics: {count: 3}", "mine.yaml:3: system.nics.count: 3; expected a divisor or a multiple of the 8 SIPs"),
        ("nodes: 2", "system.fabric: missing; expected the fabric that joins them, as there are 2 nodes"),
        ("nodes: 2", "system.nics: missing; expected the NICs of each node, as there are 2 nodes"),
        ("ipcq: {queues: 129}", "system.ipcq.queues: 129; expected at most one queue per PE, of which there are 128"),
        ("fabric: ndr40", "mine.yaml:3: system.fabric: no shipped fabric is called 'ndr40'; did you mean 'ndr400'?"),
        ("fabric: {latency: 1 us}", "system.fabric.bandwidth: missing; expected bytes per second of one NIC"),
        ("ccl: {backpressure: wait}", "mine.yaml:3: system.ccl.backpressure: 'wait'; expected sleep or poll"),
        ("ccl: {slots: 3}", "system.ccl.slots: unknown key; expected one of algorithm, buffer_kind,"),
        ("hbm: 5", "system.hbm: unknown key; expected one of name, description, nodes, sips, host, storage, ipcq, ccl, nics, "
                   "fabric (it belongs at system.sips.device.hbm)"),
    ],
)  # fmt: skip
def test_parts_that_do_not_go_together(path: Path, rest: str, complaint: str) -> None:
    text = f"system:\n  {_SIPS.format(count=8, kind='ring_1d', more='')}\n  {rest}\n"
    assert any(complaint in line for line in complaints(path, text))


def test_a_link_is_needed_from_two_sips_on(path: Path) -> None:
    (found,) = complaints(path, "system:\n  sips: {count: 2, device: sip}\n")
    assert found == (
        "mine.yaml:2: system.sips.link: missing; expected the link that joins 2 SIPs: bandwidth and latency"
    )
    path.write_text("system:\n  sips: {count: 1, device: sip}\n")
    assert load_system(path).sips.link is None


def test_one_wrong_value_does_not_hide_what_rules_find(path: Path) -> None:
    found = complaints(
        path,
        """\
        system:
          sips: {count: 8, device: sip, topology: torus_2d, w: 3, h: 3, link: {bandwidth: 0, latency: 1 us}}
        """,
    )
    assert [line.split(": ")[1] for line in found] == ["system.sips.link.bandwidth", "system.sips.topology"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "mine.yaml:1: the file is empty; expected a mapping of keys to values"),
        ("# nothing\n", "mine.yaml:1: the file is empty; expected a mapping of keys to values"),
        ("[1, 2]\n", "mine.yaml:1: a list; expected a mapping of keys to values"),
        ("dgx\n", "mine.yaml:1: 'dgx'; expected a mapping of keys to values"),
        ("system:\n  sips: [\n", "mine.yaml:3: broken YAML: while parsing a flow node"),
        ("system:\n\tsips: 1\n", "mine.yaml:2: broken YAML: while scanning for the next token"),
        (
            "system: !!python/object:os.system {}\n",
            "mine.yaml:1: system: tag tag:yaml.org,2002:python/object:os.system; expected plain data",
        ),
        ("a: 1\n---\nb: 2\n", "mine.yaml:2: broken YAML: expected a single document"),
        ("system: 3\n", "mine.yaml:1: system: 3; expected a mapping with the keys name,"),
        ("system: &a\n  sips: *a\n", "mine.yaml:2: system.sips: an alias that contains itself"),
        ("system:\n  3: 4\n", "mine.yaml:2: system: key 3; expected a key that is text"),
        ("sytem: {}\n", "mine.yaml:1: sytem: unknown key; expected one of system (did you mean `system`?)"),
    ],
)
def test_text_that_is_no_description(path: Path, text: str, complaint: str) -> None:
    assert any(line.startswith(complaint) for line in complaints(path, text))


def test_a_file_that_is_no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"mine\.yaml:1: cannot be read .*expected a readable YAML text file"):
        load_system(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"system file .*dgx-h100\.yaml does not exist; did you mean 'dgx_h100'\? Shipped"
    ):
        load_system(tmp_path / "dgx-h100.yaml")
    with pytest.raises(ConfigError, match="is a directory, not a file"):
        load_system(tmp_path)


@pytest.mark.parametrize(
    ("load", "name", "nearest"),
    [(load_system, "sip9", "sip8"), (load_device, "H100_SXM5", "h100_sxm"), (load_fabric, "roce", "roce400")],
)
def test_a_name_that_is_not_shipped(load: Load, name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"is called '{name}'; did you mean '{nearest}'\\? Shipped .*{nearest}"):
        load(name)


def test_errors_in_a_device_file_name_that_file(tmp_path: Path, path: Path) -> None:
    device = tmp_path / "chip.yaml"
    device.write_text(
        "extends: sip\ndevice:\n  pes: 100\n  clock: fast\n  cubes: {io_die: {x: 9}}\n  pe: {tcm_per_block: 2 MiB}\n"
    )
    system = "system:\n  sips: {count: 1, device: ./chip.yaml}\n"
    found = [line.removeprefix(f"{tmp_path}/") for line in complaints(path, system)]
    assert found == [
        "chip.yaml:3: device.pes: 100; expected 4 x 4 cubes of 8 PEs = 128",
        "chip.yaml:4: device.clock: 'fast'; expected a frequency such as '1.83 GHz' (a plain number is in hertz)",
        "chip.yaml:5: device.cubes.io_die.x: 9; expected a cube of the mesh: 0 to 3",
        "chip.yaml:6: device.pe.tcm_per_block: 2 MiB; expected at most the PE's TCM, 1 MiB",
    ]
    with pytest.raises(ConfigError, match="4 problems"):
        load_device(device)


def test_a_device_file_without_a_device(tmp_path: Path, path: Path) -> None:
    (tmp_path / "chip.yaml").write_text("devise: {}\n")
    found = complaints(path, "system:\n  sips: {count: 1, device: chip.yaml}\n")
    assert any("device: missing; expected one mapping `device`" in line for line in found)
    assert any("devise: unknown key; expected one mapping `device`" in line for line in found)


def test_an_inline_device_is_checked_where_it_stands(path: Path) -> None:
    (found,) = complaints(
        path,
        """\
        system:
          sips:
            count: 1
            device:
              extends: h100_sxm
              hbm: {copy_efficiency: 1.2}
        """,
    )
    assert found == "mine.yaml:6: system.sips.device.hbm.copy_efficiency: 1.2; expected at most 1"


def test_extends_of_itself_and_of_nothing(tmp_path: Path, path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("extends: mine.yaml\nsystem: {}\n")
    found = complaints(path, "extends: other.yaml\nsystem: {}\n")
    assert any("extends itself, by way of mine.yaml -> other.yaml" in line for line in found)
    found = complaints(path, "extends: sip9\nsystem: {}\n")
    assert any(
        "mine.yaml:1: extends: no shipped system is called 'sip9'; did you mean 'sip8'?" in line for line in found
    )
    found = complaints(path, "extends: [sip8]\nsystem: {}\n")
    assert any("mine.yaml:1: extends: found a list" in line for line in found)


def test_what_is_wrong_in_a_base_names_the_base(tmp_path: Path, path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("system:\n  sips: {count: 2, device: sip, link: {bandwidth: 1 GB/s, latency: soon}}\n")
    (found,) = complaints(path, "extends: base.yaml\nsystem: {nodes: 1}\n")
    assert found.startswith(f"{base}:2: system.sips.link.latency: 'soon'; expected a duration")


@pytest.mark.parametrize("nodes", [0, -1, 1.5, True, "2"])
def test_nodes_that_are_no_number_of_nodes(nodes: object) -> None:
    with pytest.raises(ConfigError, match="expected a whole number from 1 to"):
        resolve_topology("sip8", nodes=nodes)  # type: ignore[arg-type]


def test_several_nodes_need_a_fabric(system_file: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="system mine has no nics: it cannot have 2 nodes"):
        resolve_topology(system_file(), nodes=2)


def test_a_world_that_does_not_fit_is_told_what_would(system_file: Callable[..., Path]) -> None:
    graph = resolve_topology("dgx_h100", nodes=2).topology_obj
    graph.require_world(16)
    with pytest.raises(ConfigError, match=r"world_size 17 .* 2 nodes x 8 SIPs = 16 .* use nodes=3, which holds 24"):
        graph.require_world(17)
    with pytest.raises(ConfigError, match="give the system `nics` and a `fabric`"):
        resolve_topology(system_file()).topology_obj.require_world(9)
