"""collective_time: what is chosen, what it takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernbench.cost import COLLECTIVES, collective_time
from kernbench.cost.collective_choice import candidates
from kernbench.cost.collective_world import build_world, resolve_system
from kernbench.errors import ConfigError
from kernbench.topology import resolve_topology

SIZES = 2.0 ** np.arange(3, 34)

# github.com/stas00/ml-engineering @744d01e18b79, network/README.md: 8 GiB all-reduce, busbw in GB/s
NVLS_TABLE = [
    ("hgx_h200", 4, "ring", 363.3),
    ("hgx_h200", 5, "nvls", 414.2),
    ("hgx_h200", 6, "nvls", 435.6),
    ("hgx_h200", 8, "nvls", 473.1),
    ("dgx_b200", 5, "ring", 677.8),
    ("dgx_b200", 6, "nvls", 778.2),
    ("dgx_b200", 8, "nvls", 838.0),
]


@pytest.mark.parametrize(("system", "ranks", "algorithm", "busbw"), NVLS_TABLE)
def test_in_switch_reduction_is_chosen_as_measured(system, ranks, algorithm, busbw):
    estimate = collective_time(system, "all_reduce", 8 << 30, ranks=ranks)
    assert estimate.algorithm == algorithm
    assert estimate.busbw / 1e9 == pytest.approx(busbw, rel=0.03)


@pytest.mark.parametrize(("ranks", "tolerance"), [(2, 0.05), (3, 0.03), (4, 0.03)])
def test_large_rings_reach_the_same_however_many_ranks(ranks, tolerance):
    """NCCL's rings on an H100's NVLink: 360 to 370 GB/s (nccl-tests issue 212, and the table above)."""
    estimate = collective_time("dgx_h100", "all_reduce", 4 << 30, ranks=ranks)
    assert estimate.algorithm == "ring"
    assert estimate.busbw / 1e9 == pytest.approx(365, rel=tolerance)


@pytest.mark.parametrize(
    ("nodes", "ranks", "nics"), [(2, 4, 2), (2, 2, 1), (4, 32, 8)], ids=["two_gpus", "one_gpu", "eight_gpus"]
)
def test_nodes_use_the_nics_of_their_ranks(nodes, ranks, nics):
    world = build_world(resolve_system("dgx_h100"), ranks=ranks, nodes=nodes)
    assert world.nics == nics
    # a ring delivers what the NICs do
    large = collective_time("dgx_h100", "all_reduce", 64 << 30, ranks=ranks, nodes=nodes, algorithm="ring/simple")
    assert large.busbw == pytest.approx(min(world.net, 366e9), rel=0.06)


def test_two_gpus_on_direct_joints_have_one_joint():
    two = collective_time("mi300x", "all_reduce", 8 << 30, ranks=2).busbw
    eight = collective_time("mi300x", "all_reduce", 8 << 30, ranks=8).busbw
    assert eight / two == pytest.approx(312.9 / 47.7, rel=0.2)  # published: GB/s of two and of eight


@pytest.mark.parametrize(("ranks", "nbytes"), [(2, 4096), (4, 4096), (8, 4096), (8, 32768), (8, 1 << 20)])
def test_a_kernel_over_symmetric_memory_starts_as_serving_frameworks_kernels_do(ranks, nbytes):
    """3.7 to 7.8 us are measured up to 32 KiB of one that reads the peers' buffers; reading their sum is no slower."""
    found, shot = (
        collective_time("dgx_h100", "all_reduce", nbytes, ranks=ranks, algorithm=name, kind="kernel")
        for name in ("multimem", "one_shot")
    )
    assert found.protocol == "multicast"
    assert 3.5e-6 < found.seconds < max(8e-6, nbytes / 100e9)
    assert found.seconds <= shot.seconds * (1.001 if ranks > 2 else 1.1)
    with pytest.raises(ConfigError, match="possible"):
        collective_time("mi300x", "all_reduce", nbytes, ranks=ranks, algorithm="multimem")


# Largest size in bytes that H200s reduce in one shot, as a serving framework's table has it for its push kernels.
ONE_SHOT = {3: 512 << 10, 4: 384 << 10, 5: 256 << 10, 6: 192 << 10, 7: 192 << 10, 8: 160 << 10}


@pytest.mark.parametrize("ranks", ONE_SHOT)
def test_two_shots_pay_from_about_where_they_are_used(ranks):
    sizes = np.arange(1, 4096) * 1024.0
    chosen = collective_time("hgx_h200", "all_reduce", sizes, ranks=ranks, algorithm="/direct").algorithm
    crossover = sizes[np.argmax(chosen == "two_shot")]
    assert 0.5 < crossover / ONE_SHOT[ranks] < 2


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("system", "ranks", "nodes"), [("dgx_a100", 8, 1), ("dgx_h100", 16, 2), ("gh200_alps", 64, 16)]
)
def test_arrays_agree_with_scalars_and_intervals_hold_the_estimate(system, ranks, nodes, collective):
    sizes = np.array([8, 40_000, 3 << 20, 1 << 30])
    many = collective_time(system, collective, sizes, ranks=ranks, nodes=nodes)
    for index, size in enumerate(sizes):
        one = collective_time(system, collective, int(size), ranks=ranks, nodes=nodes)
        assert one.seconds == many.seconds[index]
        assert (one.algorithm, one.protocol) == (many.algorithm[index], many.protocol[index])
        assert 0 < one.low < one.seconds < one.high
        assert one.algbw == pytest.approx(size / one.seconds)


@pytest.mark.parametrize(("system", "ranks", "nodes"), [("dgx_h100", 8, 1), ("dgx_h100", 16, 2), ("mi300x", 8, 1)])
def test_each_algorithm_takes_longer_for_more_bytes(system, ranks, nodes):
    world = build_world(resolve_system(system), ranks=ranks, nodes=nodes)
    for algorithm, protocol in candidates(world, "all_reduce"):
        name = f"{algorithm}/{protocol}"
        seconds = collective_time(system, "all_reduce", SIZES, ranks=ranks, nodes=nodes, algorithm=name).seconds
        assert np.all(np.diff(seconds) >= 0), name


def test_one_node_of_hoppers_takes_longer_for_more_bytes():
    assert np.all(np.diff(collective_time("dgx_h100", "all_reduce", SIZES, ranks=8).seconds) >= 0)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_busbw_is_below_what_the_links_carry(collective):
    estimate = collective_time("dgx_a100", collective, SIZES, ranks=8)
    assert np.all(estimate.busbw < 300e9)  # twelve NVLinks of 25 GB/s


def test_all_reduce_moves_twice_what_all_gather_does():
    times = {
        name: collective_time("dgx_a100", name, 16 << 30, ranks=8).seconds for name in ("all_reduce", "all_gather")
    }
    assert times["all_reduce"] / times["all_gather"] == pytest.approx(2, rel=0.1)


def test_host_sees_more_than_the_kernel_and_more_with_gpus_in_one_process():
    kernel = collective_time("dgx_h100", "all_reduce", 1024, ranks=8, kind="kernel").seconds
    host = collective_time("dgx_h100", "all_reduce", 1024, ranks=8).seconds
    crowded = collective_time("dgx_h100", "all_reduce", 1024, ranks=8, gpus_per_process=8).seconds
    assert kernel < host < crowded


def test_systems_are_named_by_name_path_handle_and_topology(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: dgx_h100\nsystem: {name: mine}\n")
    handle = resolve_topology("dgx_h100")
    seconds = {
        collective_time(system, "broadcast", 1 << 20, ranks=8).seconds
        for system in ("dgx_h100", path, str(path), handle, handle.topology_obj, handle.topology_obj.system)
    }
    assert len(seconds) == 1


def test_nccl_tests_names_are_understood():
    expected = collective_time("dgx_h100", "all_to_all", 1 << 20, ranks=8)
    assert collective_time("dgx_h100", "alltoall_perf", 1 << 20, ranks=8) == expected


def test_a_rank_alone_copies():
    estimate = collective_time("dgx_h100", "all_reduce", 1 << 30, ranks=1)
    assert estimate.seconds == pytest.approx(2 * (1 << 30) / 2.9e12, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"system": "dgx_h1000"}, "did you mean"),
        ({"system": 3}, "expected a shipped name"),
        ({"system": Path("nowhere.yaml")}, "does not exist"),
        ({"collective": "all_reduces"}, "unknown collective"),
        ({"ranks": 9}, "9 ranks per node"),
        ({"ranks": 9, "nodes": 2}, "as many ranks on each node"),
        ({"ranks": 0}, "ranks=0"),
        ({"ranks": 2.5}, "whole number"),
        ({"nodes": -1}, "nodes=-1"),
        ({"nbytes": -1}, "negative"),
        ({"nbytes": [8, float("nan")]}, "non-finite"),
        ({"nbytes": "many"}, "expected a number of bytes"),
        ({"dtype": "float12"}, "unknown dtype"),
        ({"kind": "device"}, "host or kernel"),
        ({"placement": "beside"}, "out or in"),
        ({"algorithm": "nvls/ll"}, "possible: ring/ll"),
        ({"gpus_per_process": 0}, "gpus_per_process"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    call = {"system": "dgx_h100", "collective": "all_reduce", "nbytes": 1024, "ranks": 8} | arguments
    with pytest.raises(ConfigError, match=words):
        collective_time(call.pop("system"), call.pop("collective"), call.pop("nbytes"), **call)
