"""What ``simulate`` makes of its arguments: a handle is as good as the name it came from, and nothing is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.errors import ConfigError
from kernbench.topology import resolve_topology
from kernbench.topology.shipped import config_root


def reduced(system: Any, world: int, **options: Any) -> tuple[float, str, list[float]]:
    """Seconds of an all-reduce, the system's size, and the values."""
    values: list[float] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank % torch.cuda.device_count())
        x = torch.full((1 << 16,), float(rank), device="cuda")
        dist.all_reduce(x)
        values.append(x[0].item())

    with kernbench.simulate(system, **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=world)
        return ctx.now(), repr(ctx.topology), values


@pytest.mark.parametrize("nodes", [None, 1, 2])
def test_a_handle_has_the_nodes_that_its_name_would_have(nodes: int | None) -> None:
    world = 8 * (nodes or 1)
    by_name = reduced("dgx_h100", world, nodes=nodes)
    assert by_name[2] == [sum(range(world))] * world
    for handle in (resolve_topology("dgx_h100"), resolve_topology("dgx_h100", nodes=nodes or 1)):
        assert reduced(handle, world, nodes=nodes) == by_name


def test_a_handle_of_two_nodes_keeps_them_unless_told_otherwise() -> None:
    handle = resolve_topology("dgx_h100", nodes=2)
    with kernbench.simulate(handle) as ctx:
        assert (len(ctx.sips), ctx.topology) == (16, handle.topology_obj)
    with kernbench.simulate(handle, nodes=1, world_size=8) as ctx:
        assert len(ctx.sips) == 8
    with (
        pytest.raises(ConfigError, match="world_size 9 does not fit"),
        kernbench.simulate(handle, nodes=1, world_size=9),
    ):
        pass
    with kernbench.simulated_gpu(handle, nodes=3) as ctx:
        assert ctx.topology.nodes == 3


def test_the_same_graph_for_the_same_nodes() -> None:
    handle = resolve_topology("dgx_h100")
    assert handle.with_nodes(None) is handle is handle.with_nodes(1)
    assert handle.with_nodes(4).topology_obj is handle.with_nodes(4).topology_obj


def test_what_joins_no_nodes_is_refused_by_handle_and_by_name(tmp_path: Path) -> None:
    file = tmp_path / "alone.yaml"
    file.write_text("extends: dgx_h100\nsystem: {fabric: null, nics: null}\n")
    texts = []
    for system in (file, resolve_topology(file)):
        with pytest.raises(ConfigError) as caught, kernbench.simulate(system, nodes=2):
            pass
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_paths_are_taken_as_text_is() -> None:
    ccl = config_root() / "ccl.yaml"
    with kernbench.simulate(config_root() / "systems" / "dgx_h100.yaml", ccl=ccl) as one:
        found = one.topology.system.name, one.ccl_config
    with kernbench.simulate("dgx_h100", ccl=str(ccl)) as other:
        assert found == (other.topology.system.name, other.ccl_config)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("system", 3, "a name, the path of a YAML file, or a handle"),
        ("system", resolve_topology().topology_obj, "a Topology is a handle's topology_obj"),
        ("world_size", 0, "a whole number from 1 on"), ("world_size", "4", "a whole number from 1 on"),
        ("nodes", 0, "a whole number from 1 on"), ("nodes", True, "a whole number from 1 on"),
        ("stop_after_steps", "2", "a whole number from 1 on"), ("seed", "7", "a whole number"),
        ("enable_data", "no", "True or False"), ("exact_dtype", "yes", "True or False"), ("correlation_id", 3, "a text"),
        ("ranks", 0, "'all', 'auto', or the ranks to run"), ("ccl", 3, "the path of a ccl.yaml"),
        ("options", [("a", 1)], "a mapping"), ("stragglers", [(1, 2.0)], "a mapping of ranks to factors"),
        ("host_effects", "none", "HostEffects"), ("seed", 1 << 40, "of at most 40 bits"),
        ("stragglers", {"3": 2.0}, "a mapping of ranks to factors"),
        ("stragglers", {3: "slow"}, "a mapping of ranks to factors"),
        ("stragglers", {True: 2.0}, "a mapping of ranks to factors"), ("devices", 1.5, "the index of a SIP"),
        ("devices", True, "the index of a SIP"), ("devices", None, "the index of a SIP"), ("plugins", 3, "a list of plugins"),
        ("plugins", "package.module", "a list of plugins"), ("log_limit", 1.5, "or None for all"),
        ("log_limit", "9", "or None for all"), ("jitter", "0.1", "a share"), ("jitter", True, "a share"),
        ("jitter", None, "a share"), ("schedule", 3, "random:SEED"),
    ],
)  # fmt: skip
def test_what_an_argument_cannot_be(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=") as caught, kernbench.simulate(**{name: value}):
        pass
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stragglers": {99: 2}}, "straggler 99 is not one of 8 ranks"),
        ({"stragglers": {-1: 2}}, "straggler -1 is not one of 8 ranks"),
        ({"stragglers": {2: 2}, "world_size": 2}, "straggler 2 is not one of 2 ranks"),
        ({"stragglers": {2: 2}, "devices": [5, 6]}, "straggler 2 is not one of 2 ranks"),
        ({"ranks": "foo", "enable_data": False}, "ranks 'foo': expected auto, all, or ranks"),
        ({"ranks": "", "enable_data": False}, "ranks '': expected auto, all, or ranks"),
        ({"ranks": "0,8", "enable_data": False}, "rank 8 is not one of a world of 8"),
        ({"ranks": "6-99999999999", "enable_data": False}, "rank 8 is not one of a world of 8"),
        ({"ranks": "3-1", "enable_data": False}, "3-1 are none; the lower rank comes first"),
    ],
)
def test_ranks_that_no_world_has_are_refused_before_anything_runs(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught, kernbench.simulate("dgx_h100", **options):
        pass
    assert words in str(caught.value)


def test_a_stated_world_holds_no_larger_one() -> None:
    def worker(rank: int) -> None:
        pass

    with kernbench.simulate("dgx_h100", world_size=2) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        with pytest.raises(ConfigError, match="3 ranks are more than the world_size=2"):
            ctx.multiprocessing.spawn(worker, nprocs=3)
        ctx.multiprocessing.spawn(worker, nprocs=2)


@pytest.mark.parametrize("seed", [1 - (1 << 40), -1, (1 << 40) - 1])
def test_any_seed_that_is_taken_gives_ranks_different_numbers(seed: int) -> None:
    drawn: list[float] = []
    with kernbench.simulate("dgx_h100", seed=seed) as ctx:
        ctx.multiprocessing.spawn(lambda rank: drawn.append(torch.rand(1).item()), nprocs=2)
    assert len({*drawn}) == 2
