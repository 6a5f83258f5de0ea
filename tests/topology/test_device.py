"""Devices: rates by number format, memories as one PE meets them, the mesh of cubes."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.errors import ConfigError
from kernbench.topology import CubeMesh, load_device, shipped_devices
from kernbench.topology.dtypes import canonical_dtype

NS = 1e-9


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("torch.float16", "fp16"),
        ("half", "fp16"),
        ("f16", "fp16"),
        ("bfloat16", "bf16"),
        ("float32", "fp32"),
        ("torch.float8_e4m3fn", "fp8"),
        ("fp8e5", "fp8"),
        ("uint8", "int8"),
        ("torch.bool", "int8"),
        ("tf32", "tf32"),
    ],
)
def test_dtypes_by_any_name(spelling: str, name: str) -> None:
    assert canonical_dtype(spelling) == name


def test_numpy_dtypes() -> None:
    assert canonical_dtype(np.dtype("float64")) == "fp64"
    with pytest.raises(ValueError, match="unknown dtype 'complex64'"):
        canonical_dtype("complex64")


@pytest.mark.parametrize(
    ("device", "dtype", "matrix", "vector"),
    [
        ("h100_sxm", "float16", 989e12, 133.8e12),
        ("h100_sxm", "float32", 67e12, 67e12),  # true fp32 has no engine
        ("h100_sxm", "tf32", 494.5e12, 67e12),
        ("a100_sxm", "fp8", 312e12, 19.5e12),  # no fp8 engine: computes in fp16
        ("mi300x", "float32", 163.4e12, 163.4e12),
        ("mi210", "tf32", 45.3e12, 22.6e12),  # no tf32: true fp32
        ("b200", "int64", 37e12, 37e12),
    ],
)
def test_rates_and_what_stands_in_for_a_missing_one(device: str, dtype: str, matrix: float, vector: float) -> None:
    spec = load_device(device)
    assert spec.matrix_rate(dtype) == pytest.approx(matrix)
    assert spec.vector_rate(dtype) == pytest.approx(vector)


@pytest.mark.parametrize("name", shipped_devices())
def test_figures_are_consistent(name: str) -> None:
    device = load_device(name)
    assert device.pe.tcm_per_block <= device.pe.tcm.size < device.hbm.size
    assert device.pe.max_threads % device.target.warp_size == 0
    assert device.matrix_rate("bf16") > device.vector_rate("fp32") >= device.vector_rate("fp64")
    assert device.hbm_copy_bandwidth < device.hbm.bandwidth
    assert device.hbm.channel_bandwidth * device.hbm.channels == pytest.approx(device.hbm.bandwidth)


@pytest.mark.parametrize("name", shipped_devices())
def test_memories_get_slower_from_tcm_to_hbm(name: str) -> None:
    tcm, sram, hbm = (load_device(name).memory_port(kind) for kind in ("tcm", "sram", "hbm"))
    assert tcm.bandwidth > sram.bandwidth > hbm.bandwidth
    assert tcm.latency < sram.latency < hbm.latency
    assert tcm.size < sram.size < hbm.size


def test_memory_ports_of_the_generic_accelerator() -> None:
    device = load_device("sip")
    assert device.memory_port("tcm").bandwidth == 512e9
    assert device.memory_port("sram").bandwidth == pytest.approx(2048e9 / 8)  # eight PEs share a cube's SRAM
    assert device.memory_port("hbm").bandwidth == pytest.approx(8 * 32e9 * 0.8)  # eight channels at efficiency 0.8
    with pytest.raises(ConfigError, match="expected tcm, sram or hbm"):
        device.memory_port("l1")  # type: ignore[arg-type]


def test_a_device_without_sram_or_l2() -> None:
    bare = load_device("sip").model_copy(update={"cubes": None})
    with pytest.raises(ConfigError, match="use tcm or hbm"):
        bare.memory_port("sram")


@pytest.fixture
def mesh() -> CubeMesh:
    cubes = load_device("sip").cubes
    assert cubes is not None
    return CubeMesh(cubes)


def test_ways_between_cubes(mesh: CubeMesh) -> None:
    assert len(mesh.links) == 2 * (2 * 4 * 3) + 2  # 24 joints and the IO die's, both directions
    route = mesh.route(0, 15)
    assert [mesh.links[index].dst for index in route.links] == ["cube1", "cube2", "cube3", "cube7", "cube11", "cube15"]
    assert route.latency == pytest.approx((2 + 6 * (16 + 2)) * NS)  # own crossbar, six hops
    assert route.bandwidth == 256e9
    assert mesh.route(5, 5).links == ()
    assert mesh.route(5, 5).latency == pytest.approx(2 * NS)


def test_ways_to_the_io_die(mesh: CubeMesh) -> None:
    assert mesh.io_cube == 1
    out, back = mesh.to_io(14), mesh.from_io(14)
    assert [mesh.links[index].dst for index in out.links] == ["cube13", "cube9", "cube5", "cube1", "io"]
    assert [mesh.links[index].src for index in back.links] == ["io", "cube1", "cube2", "cube6", "cube10"]
    assert out.latency == pytest.approx(back.latency) == pytest.approx((2 + 4 * 18 + 10) * NS)
    hops = [abs(cube % 4 - 1) + cube // 4 for cube in range(16)]
    assert mesh.egress_latency == pytest.approx((2 + sum(hops) / 16 * 18 + 10) * NS)
