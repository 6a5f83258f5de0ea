"""``kernbench systems``: what it prints, as text and as JSON, and the drawings."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from kernbench.cli import app
from kernbench.errors import ConfigError
from kernbench.topology import resolve_topology, shipped_systems
from kernbench.topology.drawing import draw_system


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["systems", *args], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_list_has_a_line_per_system() -> None:
    lines = [line.split() for line in run().splitlines() if line.strip()]
    assert [line[0] for line in lines[2:]] == shipped_systems()
    assert next(line for line in lines if line[0] == "mi300x")[1:6] == ["mi300x", "8", "full", "48", "GB/s"]


def test_the_list_as_json() -> None:
    systems = {each["name"]: each for each in json.loads(run("--json"))}
    assert systems["sip8"]["link_bandwidth"] == 64e9
    assert systems["dgx_h100_2n"]["nodes"] == 2


def test_show_prints_given_and_derived_figures() -> None:
    text = run("show", "dgx_h100", "--nodes", "4", "--fabric", "roce400")
    words = " ".join(text.split())
    for part in (
        "nodes 4",
        "SIPs per node 8 h100_sxm",
        "link 423.5 GB/s each direction; 18 x 25 GB/s, 0.9412 of it payload",
        "fabric roce400",
        "bf16 matrix 989 TFLOP/s vector 133.8 TFLOP/s",
        "HBM 79.1 GiB 3.35 TB/s (2.901 TB/s measured in copies), 348 ns; 160 channels",
        "SIPs 32 4224 PEs",
        "farthest SIP 8 us",
    ):
        assert part in words
    assert max(len(line) for line in text.splitlines()) <= 160
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_show_as_json_is_in_si_units() -> None:
    data = json.loads(run("show", "sip8", "--nodes", "2", "--json"))
    assert data["figures"]["sips"] == 16
    assert data["system"]["sips"]["device"]["hbm"]["bandwidth"] == 128 * 8 * 32e9
    assert data["system"]["sips"]["count"] == 8


def test_show_takes_a_path_and_draws(tmp_path: Path) -> None:
    path, picture = tmp_path / "mine.yaml", tmp_path / "mine.svg"
    path.write_text("extends: sip8\nsystem: {sips: {topology: torus_2d, w: 4, h: 2}}\n")
    text = run("show", str(path), "--svg", str(picture))
    assert "torus_2d 4x2" in text
    assert str(picture) in text
    ElementTree.parse(picture)


def test_errors_are_explained() -> None:
    result = CliRunner().invoke(app, ["systems", "show", "sip9"])
    assert isinstance(result.exception, ConfigError)
    assert "did you mean 'sip8'" in str(result.exception)


def _texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", shipped_systems())
@pytest.mark.parametrize("nodes", [1, 2])
def test_drawings_show_every_sip_and_are_reproducible(name: str, nodes: int) -> None:
    topology = resolve_topology(name, nodes=nodes).topology_obj
    svg = draw_system(topology)
    assert svg == draw_system(resolve_topology(name, nodes=nodes).topology_obj)
    texts = _texts(svg)
    assert [text for text in texts if text.startswith("SIP ")] == [f"SIP {sip}" for sip in range(topology.sip_count)]
    assert sum("non-blocking" in text for text in texts) == (nodes if topology.system.sips.topology == "switch" else 0)


def test_a_drawing_of_many_nodes_shows_the_first_and_the_last() -> None:
    texts = _texts(draw_system(resolve_topology("dgx_h100", nodes=100).topology_obj))
    assert [text for text in texts if text.startswith("node ")] == ["node 0", "node 1", "node 99"]
    assert "…" in texts
    assert "SIP 799" in texts


def test_a_drawing_shows_the_inside_of_a_sip() -> None:
    texts = _texts(draw_system(resolve_topology().topology_obj))
    assert "inside a SIP" in texts
    assert texts.count("8 PEs") == 16
    assert "inside a SIP" not in _texts(draw_system(resolve_topology("mi300x").topology_obj))


def test_joints_are_drawn_once_per_pair() -> None:
    svg = draw_system(resolve_topology("mi300x").topology_obj)
    assert svg.count('class="link"') == 8 * 7 / 2


@pytest.mark.parametrize("name", ["sip8", "dgx_h100_2n"])
def test_the_pictures_of_the_documentation_are_current(name: str) -> None:
    picture = Path(__file__).parents[2] / "docs" / "images" / f"{name}.svg"
    assert picture.read_text(encoding="utf-8") == draw_system(resolve_topology(name).topology_obj)
