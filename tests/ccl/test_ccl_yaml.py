"""``ccl.yaml``: layers, and errors that name file, key path and the nearest key, all at once."""

from __future__ import annotations

import pytest

import kernbench
from kernbench.ccl.collectives import shared_runner
from kernbench.ccl.config import KEYS, load_ccl_config
from kernbench.collective_kinds import COLLECTIVES
from kernbench.errors import ConfigError
from kernbench.topology import resolve_topology

CONTRACT = {
    "module", "topology", "buffer_kind", "backpressure", "n_slots", "slot_size", "vc_chunk_size",
    "ipcq_credit_size_bytes", "n_elem", "world_size",
}  # fmt: skip


@pytest.fixture
def in_directory(tmp_path, monkeypatch):
    """Write a ``ccl.yaml`` and work in its directory."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "ccl.yaml").write_text(text)

    return write


def test_the_keys_are_the_contracts():
    assert set(KEYS) == CONTRACT


def test_the_working_directory_overrides_key_by_key(in_directory):
    shipped = load_ccl_config().select("ring_allreduce")
    in_directory("defaults: {n_slots: 9, slot_size: 128}\nalgorithms: {ring_allreduce: {slot_size: 1024}}")
    own = load_ccl_config()
    entry = own.select("ring_allreduce")
    assert (entry.n_slots, entry.slot_size) == (9, 1024)
    assert own.select("ring_broadcast").slot_size == 128
    assert entry.model_copy(update={"n_slots": shipped.n_slots, "slot_size": shipped.slot_size}) == shipped


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("defaults: {world_size: 6}", 6),
        ("defaults: {world_size: 6}\nalgorithms: {ring_allreduce: {world_size: 5}}", 5),
        ("defaults: {n_slots: 2}", 8),
    ],
)
def test_world_size_comes_from_the_entry_else_defaults_else_the_sips(in_directory, text, expected):
    in_directory(text)
    with kernbench.simulate() as ctx:
        assert ctx.distributed.get_world_size() == expected


def test_an_override_changes_the_timeline(in_directory):
    def run():
        with kernbench.simulate(enable_data=False) as ctx:
            ctx.multiprocessing.spawn(lambda rank: ctx.distributed.all_reduce(ctx.empty(1 << 16)), nprocs=4)
            return ctx.now()

    before = run()
    in_directory("defaults: {n_slots: 1}")
    assert run() > before


def test_all_problems_at_once_with_key_path_and_nearest_key(in_directory):
    in_directory(
        "defaults: {n_slot: 4, slot_size: -1}\n"
        "algorithm: {}\n"
        "algorithms: {ring_allreduce: {buffer_kind: ddr, backpressure: 3}, mine: {n_slots: two}}"
    )
    with pytest.raises(ConfigError) as caught:
        load_ccl_config()
    text = str(caught.value)
    assert "ccl.yaml:2: algorithm: unknown key" in text
    assert "ccl.yaml:1: defaults.n_slot: unknown key (did you mean 'n_slots'?)" in text
    assert "ccl.yaml:1: defaults.slot_size: " in text
    assert "ccl.yaml:3: algorithms.ring_allreduce.buffer_kind: " in text
    assert "'tcm', 'sram' or 'hbm', found 'ddr'" in text
    assert "ccl.yaml:3: algorithms.ring_allreduce.backpressure: " in text
    assert "ccl.yaml:3: algorithms.mine.n_slots: " in text
    assert "algorithms.mine.module: " in text
    assert len(text.splitlines()) == len(set(text.splitlines()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [", "broken YAML"),
        ("- 1", "a list; expected a mapping"),
        ("defaults: 3", "defaults: expected a mapping, found 3"),
        ("algorithms: {x: 3}", "algorithms.x: expected a mapping"),
        ("defaults: {algorithm: nccl}", "defaults.algorithm: no entry 'nccl'"),
    ],
)
def test_broken_files(in_directory, text, message):
    in_directory(text)
    with pytest.raises(ConfigError, match=message):
        load_ccl_config()


def test_an_algorithm_that_is_not_there_names_those_that_are(ctx):
    with pytest.raises(kernbench.SpawnException, match=r"no algorithm 'ring_allredcue' .did you mean 'ring_allreduce'"):
        ctx.multiprocessing.spawn(lambda rank: ctx.distributed.all_reduce(ctx.ones(1), algorithm="ring_allredcue"))


def test_an_algorithm_for_another_collective_or_topology_is_refused(ctx, in_directory):
    def worker(rank):
        ctx.distributed.all_reduce(ctx.ones(1), algorithm="ring_broadcast")

    with pytest.raises(kernbench.SpawnException, match="implements broadcast, not all_reduce"):
        ctx.multiprocessing.spawn(worker, nprocs=2)
    in_directory("algorithms: {ring_allreduce: {topology: torus_2d}}")
    with (
        kernbench.simulate() as other,
        pytest.raises(kernbench.SpawnException, match=r"topology torus_2d.*works on ring_1d"),
    ):
        other.multiprocessing.spawn(lambda rank: other.distributed.all_reduce(other.ones(1)), nprocs=2)


def test_collectives_have_entries_of_their_own(tmp_path):
    file = tmp_path / "ccl.yaml"
    file.write_text("collectives: {broadcast: binomial_broadcast}\nfidelity: closed_form\n")
    config = load_ccl_config(file)
    assert config.fidelity == "closed_form"
    assert config.algorithm_for("broadcast") == "binomial_broadcast"
    assert config.algorithm_for("all_gather") == "ring_allgather"
    assert config.algorithm_for("all_reduce") == config.algorithm_for("barrier") == "ring_allreduce"


def test_auto_is_every_collective_s_until_a_file_says_otherwise(tmp_path):
    system = kernbench.load_system("dgx_h100")
    config = load_ccl_config(system=system)
    assert {config.algorithm_for(name) for name in COLLECTIVES} == {"auto"}
    assert config.select().name == "auto"
    file = tmp_path / "ccl.yaml"
    file.write_text("defaults: {algorithm: two_shot_pull}\n")
    config = load_ccl_config(file, system=system)
    assert config.algorithm_for("all_reduce") == "two_shot_pull"
    assert config.algorithm_for("reduce_scatter") == "auto"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("collectives: {brodcast: ring_broadcast}", "did you mean 'broadcast'"),
        ("collectives: {broadcast: ring_brodcast}", "no entry 'ring_brodcast' under `algorithms` \\(did you mean"),
        ("fidelity: exact", "expected one of auto, stepped, closed_form, found 'exact'"),
        ("algorithms: {auto: {module: x}}", "this name stands for the library's choice"),
        ("algorithm: ring", "unknown key; expected one of defaults, fidelity, collectives, algorithms"),
    ],
)
def test_what_is_wrong_with_the_sections_is_said(text, words, tmp_path):
    file = tmp_path / "ccl.yaml"
    file.write_text(text + "\n")
    with pytest.raises(ConfigError, match=words):
        load_ccl_config(file)


def test_a_configuration_is_shared_until_a_file_says_something_else(in_directory):
    shipped = load_ccl_config()
    assert load_ccl_config() is shipped
    in_directory("defaults: {n_slots: 9}")
    assert load_ccl_config().select().n_slots == 9
    in_directory("defaults: {n_slots: 10}")
    assert load_ccl_config().select().n_slots == 10


def test_simulations_share_small_plans_and_keep_large_ones_to_themselves():
    topology = resolve_topology("sip8", nodes=16).topology_obj
    config = load_ccl_config()
    runner = shared_runner(topology, config)
    assert shared_runner(topology, config) is runner

    def request(members):
        return runner.request(
            op="all_reduce", config=config.select(), sips=tuple(range(members)), root=None, count=64, itemsize=4,
            dtype="fp32",
        )  # fmt: skip

    assert request(8) is request(8)
    assert request(128) is not request(128)
