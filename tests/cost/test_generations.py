"""Constants of a generation are a file that a device names: no code knows a device."""

from pathlib import Path

import pytest

from kernbench.cost import collective_time, gemm_time, memory_bound_time
from kernbench.cost.generations import GENERATIONS, TRANSPORTS, by_age, generation_of
from kernbench.errors import ConfigError
from kernbench.topology import load_device, load_system, shipped_devices, shipped_systems
from kernbench.topology.shipped import config_root
from kernbench.validation.refit import Knob, constants

OF = {
    "a100_sxm": "ampere", "a40": "ampere", "b200": "blackwell", "gb200": "blackwell", "gh200": "hopper",
    "h100_sxm": "hopper", "h200": "hopper", "mi210": "cdna", "mi300x": "cdna", "mi355x": "cdna", "sip": "hopper",
}  # fmt: skip


@pytest.mark.parametrize("name", shipped_devices())
def test_every_shipped_device_names_its_generation_which_its_target_would_give_too(name: str) -> None:
    device = load_device(name)
    if name in OF:
        assert device.generation == OF[name]
    row = generation_of(device)
    assert row.name == device.generation
    assert generation_of(device.model_copy(update={"generation": None})) is row
    protocols = {"ll", "ll128", "simple"}
    assert set(row.collectives.base) == set(row.collectives.hop) == protocols
    assert 0 < row.collectives.base["ll"] < 1e-4  # seconds, though the file has microseconds
    assert 1e9 < row.collectives.p2p_channel < 1e12  # bytes/s, though the file has GB/s


def test_a_follower_comes_after_whom_it_follows_and_a_plugin_s_transport_is_libfabric_s_with_a_tuner() -> None:
    order = by_age()
    assert [(row.name, row.like) for row in GENERATIONS.read_all().values() if row.like] == [
        ("blackwell", "hopper"),
        ("cdna", "ampere"),
    ]
    assert order.index("hopper") < order.index("blackwell")
    base, plugin = TRANSPORTS["libfabric"], TRANSPORTS["efa"]
    assert base.step["ring", "simple"] == 5.68e-6
    assert plugin == base.model_copy(
        update={"name": "efa", "bulk": (), "tuned": True, "description": plugin.description}
    )


def copied(tmp_path: Path, device: str, system: str) -> tuple[Path, Path]:
    """A device's file under another name, and a system with it."""
    text = (config_root() / "devices" / f"{device}.yaml").read_text()
    (tmp_path / "other_gpu.yaml").write_text(text.replace(f"name: {device}", "name: other_gpu"))
    (tmp_path / "other.yaml").write_text(
        f"extends: {system}\nsystem: {{name: other, sips: {{device: other_gpu.yaml}}}}\n"
    )
    return tmp_path / "other_gpu.yaml", tmp_path / "other.yaml"


@pytest.mark.parametrize(("device", "system"), [("h100_sxm", "dgx_h100"), ("b200", "dgx_b200"), ("mi300x", "mi300x")])
def test_a_device_under_another_name_has_the_same_times(device: str, system: str, tmp_path: Path) -> None:
    other, whole = copied(tmp_path, device, system)
    assert load_device(other).name == "other_gpu"
    for size in (1, 4096, 1 << 20, 1 << 28):
        for collective in ("all_reduce", "all_gather", "all_to_all"):
            assert collective_time(whole, collective, size, ranks=8) == collective_time(
                system, collective, size, ranks=8
            )
    assert gemm_time(other, 4096, 1000, 512) == gemm_time(device, 4096, 1000, 512)
    assert memory_bound_time(other, "softmax", (64, 4096), dtype="float16") == memory_bound_time(
        device, "softmax", (64, 4096), dtype="float16"
    )


def test_a_generation_of_one_s_own_is_a_file_beside_the_device(tmp_path: Path) -> None:
    """Its kernels start so much later, in seconds, as the file says in microseconds; the rest is the base's."""
    (tmp_path / "mine.yaml").write_text("extends: hopper\ngeneration: {gemm: {start: 12.4}}\n")
    device = tmp_path / "gpu.yaml"
    device.write_text("extends: h100_sxm\ndevice: {generation: mine.yaml}\n")
    base, mine = gemm_time("h100_sxm", 128, 128, 64), gemm_time(device, 128, 128, 64)
    assert mine.seconds - base.seconds == pytest.approx(10e-6, rel=0.05)
    inline = tmp_path / "system.yaml"
    inline.write_text("extends: dgx_h100\nsystem: {sips: {device: {extends: h100_sxm, generation: mine.yaml}}}\n")
    assert generation_of(load_system(inline).device).gemm.start == 12.4 * 1e-6
    assert generation_of(load_system(inline).device).collectives == GENERATIONS["hopper"].collectives


def test_a_generation_that_is_not_there_or_not_right_is_named_with_its_line(tmp_path: Path) -> None:
    device = tmp_path / "gpu.yaml"
    device.write_text("extends: h100_sxm\ndevice:\n  generation: hoper\n")
    with pytest.raises(ConfigError, match=r"gpu.yaml:3: device.generation: .*did you mean 'hopper'"):
        load_device(device)
    (tmp_path / "mine.yaml").write_text("extends: hopper\ngeneration:\n  gemm: {begin: 1}\n")
    device.write_text("extends: h100_sxm\ndevice: {generation: mine.yaml}\n")
    with pytest.raises(ConfigError, match=r"mine.yaml:3: generation.gemm.begin: unknown key"):
        gemm_time(device, 128, 128, 64)


def test_every_shipped_system_s_fabric_has_its_transport() -> None:
    for name in shipped_systems():
        fabric = load_system(name).fabric
        assert fabric is None or TRANSPORTS[fabric.transport].name == fabric.transport


def test_constants_that_are_set_for_a_while_leave_no_row_behind_that_was_first_read_meanwhile() -> None:
    TRANSPORTS.clear()  # as before anything has asked for them
    share = TRANSPORTS["verbs"].tree_share
    TRANSPORTS.clear()
    with constants({Knob("transport", "verbs", "tree_share", 0.95, key=0): 0.5}):
        assert TRANSPORTS["verbs"].tree_share[0] == 0.5
    assert TRANSPORTS["verbs"].tree_share == share
