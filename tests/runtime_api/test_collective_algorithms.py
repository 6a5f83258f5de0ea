"""Algorithms in programs: named in ccl.yaml, chosen as the library would, replaced where they cannot serve."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernbench
from kernbench.ccl.config import AUTO, load_ccl_config
from kernbench.ccl.registry import algorithm_module
from kernbench.cost import collective_time

CONFIG = load_ccl_config()
ENTRIES = {name: algorithm_module(entry.module).COLLECTIVE for name, entry in CONFIG.algorithms.items() if name != AUTO}
ALL_REDUCES = sorted(name for name, collective in ENTRIES.items() if collective == "all_reduce")
OTHERS = sorted(name for name, collective in ENTRIES.items() if collective not in ("all_reduce", "send"))


def simulate(program, world, *, system="dgx_h100", nodes=None, ccl=None, enable_data=True, torch_names=False):
    """Run ``program(rank, ctx)``; the records of its collectives, by rank."""
    with kernbench.simulate(system, nodes=nodes, ccl=ccl, enable_data=enable_data) as ctx:
        isolation = "carrier" if torch_names else "greenlet"
        ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=world, isolation=isolation)
        return [op for op in ctx.engine.op_log.operations if op.kind == "collective"]


def seconds(operations) -> float:
    return max(op.end for op in operations) - max(op.start for op in operations)


@pytest.mark.parametrize("system", ["dgx_h100", "sip8"])
@pytest.mark.parametrize("name", ALL_REDUCES)
def test_all_reduce_by_every_algorithm(name, system, tmp_path):
    """The file names it; one that cannot serve on the system is replaced, and the log says so."""
    file = tmp_path / "ccl.yaml"
    file.write_text(f"defaults: {{algorithm: {name}}}\n")
    results = {}

    def program(rank, ctx):
        ctx.distributed.init_process_group()
        x = ctx.full((37,), rank + 1.0)
        ctx.distributed.all_reduce(x)
        results[rank] = x.tolist()

    done = simulate(program, 5, system=system, ccl=str(file))
    assert results == {rank: [15.0] * 37 for rank in range(5)}
    detail = done[0].detail
    impossible = name in ("torus_allreduce", "mesh_allreduce") or (
        ("nvls" in name or "multimem" in name) and system == "sip8"
    )
    assert detail["algorithm"] == ("ring_allreduce" if impossible else name)
    assert ("fallback" in detail) == impossible
    assert seconds(done) > 0


@pytest.mark.parametrize("name", OTHERS)
def test_other_collectives_by_every_algorithm(name, tmp_path):
    """A torch program with every collective; on two nodes of unequal size."""
    import torch.distributed as dist

    file = tmp_path / "ccl.yaml"
    file.write_text(f"collectives: {{{ENTRIES[name]}: {name}}}\n")
    world, found = 6, {}

    def program(rank, ctx):
        dist.init_process_group("gloo")
        mine = torch.arange(3.0) + 10 * rank
        gathered = [torch.empty(3) for _ in range(world)]
        dist.all_gather(gathered, mine)
        part = torch.empty(3)
        dist.reduce_scatter(part, [mine + k for k in range(world)])
        sent, received = torch.arange(float(world)) + 100 * rank, torch.empty(world)
        dist.all_to_all_single(received, sent)
        spread = mine.clone()
        dist.broadcast(spread, src=4)
        total = mine.clone()
        dist.reduce(total, dst=4)
        to_one = [torch.empty(3) for _ in range(world)] if rank == 4 else None
        dist.gather(mine, to_one, dst=4)
        from_one = torch.empty(3)
        dist.scatter(from_one, [torch.full((3,), float(k)) for k in range(world)] if rank == 4 else None, src=4)
        found[rank] = (gathered, part, received, spread, total, to_one, from_one)

    done = simulate(program, world, system="dgx_h100", nodes=2, ccl=str(file), torch_names=True)
    base = np.arange(3.0)
    for rank, (gathered, part, received, spread, total, to_one, from_one) in found.items():
        assert [row.tolist() for row in gathered] == [(base + 10 * k).tolist() for k in range(world)]
        assert part.tolist() == (world * base + 150 + world * rank).tolist()
        assert received.tolist() == [100.0 * k + rank for k in range(world)]
        assert spread.tolist() == (base + 40).tolist()
        assert from_one.tolist() == [rank] * 3
        if rank == 4:
            assert total.tolist() == (world * base + 150).tolist()
            assert [row.tolist() for row in to_one] == [(base + 10 * k).tolist() for k in range(world)]
    used = {op.detail["op"]: op.detail["algorithm"] for op in done}
    assert used[ENTRIES[name]] == name


@pytest.mark.parametrize(
    ("system", "nodes", "world"), [("dgx_h100", 1, 8), ("dgx_a100", 1, 4), ("dgx_h100", 2, 16), ("mi300x", 1, 8)]
)
def test_the_library_s_choice_runs_and_takes_the_closed_form_s_time(system, nodes, world):
    sizes = (256, 1 << 16, 1 << 22, 1 << 28)

    def program(rank, ctx):
        ctx.distributed.init_process_group("nccl")
        for nbytes in sizes:
            ctx.distributed.barrier()
            ctx.distributed.all_reduce(ctx.empty(nbytes // 4))

    done = simulate(program, world, system=system, nodes=nodes, enable_data=False)
    names = {"ring": "ring_allreduce", "tree": "tree_allreduce", "nvls": "nvls_allreduce",
             "nvls_tree": "nvls_tree_allreduce"}  # fmt: skip
    for nbytes in sizes:
        parts = [op for op in done if op.detail["op"] == "all_reduce" and op.nbytes == nbytes]
        expected = collective_time(system, "all_reduce", nbytes, ranks=world, nodes=nodes, kind="kernel")
        assert len(parts) == world
        assert parts[0].detail["algorithm"] == names[expected.algorithm]
        assert parts[0].detail["protocol"] == expected.protocol
        assert seconds(parts) == pytest.approx(expected.seconds, rel=1e-2)  # members leave a barrier one by one


@pytest.mark.parametrize(
    ("variables", "algorithm", "protocol", "noted"),
    [
        ({}, "nvls_allreduce", "simple", False),
        ({"NCCL_ALGO": "^nvls,tree"}, "ring_allreduce", None, False),
        ({"NCCL_ALGO": "ring;allreduce:tree"}, "tree_allreduce", None, False),
        ({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}, "ring_allreduce", "ll128", False),
        ({"NCCL_ALGO": "PAT"}, "nvls_allreduce", "simple", True),
    ],
)
def test_the_users_variables(variables, algorithm, protocol, noted, monkeypatch):
    for key, value in variables.items():
        monkeypatch.setenv(key, value)

    def program(rank, ctx):
        ctx.distributed.init_process_group("nccl")
        ctx.distributed.all_reduce(ctx.empty(1 << 22))

    detail = simulate(program, 8, enable_data=False)[0].detail
    assert detail["algorithm"] == algorithm
    assert protocol in (None, detail["protocol"])
    assert ("fallback" in detail) == noted


def test_sub_groups_choose_for_themselves_and_nothing_breaks():
    """Pairs, a group over unequal nodes, and a rank alone; values are right, what was replaced is noted."""
    results = {}

    def program(rank, ctx):
        dist = ctx.distributed
        dist.init_process_group("nccl")
        groups = [dist.new_group(ranks) for ranks in ([0, 8], [0, 1, 8], [3], [0, 1, 2, 3])]
        for number, group in enumerate(groups):
            if dist.get_rank(group) >= 0:
                x = ctx.full((1 << 18,), rank + 1.0)
                dist.all_reduce(x, group=group)
                results[number, rank] = float(x[5])

    simulate(program, 16, nodes=2)
    assert results == {
        (0, 0): 10.0, (0, 8): 10.0, (1, 0): 12.0, (1, 1): 12.0, (1, 8): 12.0, (2, 3): 4.0,
        **{(3, rank): 10.0 for rank in range(4)},
    }  # fmt: skip


@pytest.mark.parametrize("pair", [("one_shot_kernel", "one_shot_pull"), ("two_shot_kernel", "two_shot_push")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_kernel_and_schedule_agree_to_the_bit(pair, dtype):
    generator = torch.Generator().manual_seed(2)
    inputs = [(torch.randn(2500, generator=generator) * 9).to(dtype) for _ in range(5)]
    results = {}

    def program(rank, ctx, name):
        ctx.distributed.init_process_group("nccl")
        for op in ("sum", "avg", "max"):
            x = ctx.empty(2500, dtype=dtype)
            x.copy_(inputs[rank])
            ctx.distributed.all_reduce(x, op=op, algorithm=name)
            results[name, op, rank] = torch.as_tensor(x).clone()

    times = []
    for name in pair:
        done = simulate(lambda rank, ctx, name=name: program(rank, ctx, name), 5)
        assert {op.detail["algorithm"] for op in done} == {name}
        times.append(seconds(done))
    for op in ("sum", "avg", "max"):
        for rank in range(5):
            left, right = (results[name, op, rank].view(torch.uint8) for name in pair)
            assert torch.equal(left, right)


def test_a_kernel_that_cannot_do_a_reduction_is_replaced():
    def program(rank, ctx):
        ctx.distributed.init_process_group("nccl")
        x = ctx.full((4,), 1 << rank, dtype=torch.int32)
        ctx.distributed.all_reduce(x, op="bor", algorithm="one_shot_kernel")
        assert x.tolist() == [15] * 4

    assert simulate(program, 4)[0].detail["fallback"] == "one_shot_kernel: no reduction bor; ring_allreduce instead"


WAITS_FOREVER = """
import triton
import triton.language as tl
COLLECTIVE, TOPOLOGIES = "all_reduce", ("all_to_all",)

@triton.jit
def impatient_kernel(signal_table, rank, EXTRA: tl.constexpr):
    own = tl.load(signal_table + rank).to(tl.pointer_type(tl.int32))
    while tl.atomic_add(own, 0, sem="acquire") < 1:
        pass

def run(call):
    impatient_kernel[(1,)](call.signals, call.rank, EXTRA=0)
"""


def test_a_kernel_whose_signal_never_comes_is_a_deadlock_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "impatient.py").write_text(WAITS_FOREVER)
    (tmp_path / "ccl.yaml").write_text("algorithms: {impatient: {module: impatient, topology: all_to_all}}\n")
    monkeypatch.syspath_prepend(tmp_path)

    def program(rank, ctx):
        ctx.distributed.init_process_group("nccl")
        ctx.distributed.all_reduce(ctx.zeros(4), algorithm="impatient")

    with pytest.raises(kernbench.SpawnException) as found:
        simulate(program, 2, ccl=str(tmp_path / "ccl.yaml"))
    error = next(iter(found.value.errors.values()))
    assert isinstance(error, kernbench.DeadlockError)
    assert "impatient_kernel" in str(error)
    assert "impatient.py" in str(error)


def test_the_timeline_does_not_depend_on_data():
    def program(rank, ctx):
        ctx.distributed.init_process_group("nccl")
        for name in ("auto", "two_shot_kernel", "double_binary_tree"):
            ctx.distributed.all_reduce(ctx.zeros(1 << 15), algorithm=name)

    with_data, without = (
        [(op.start, op.end) for op in simulate(program, 8, enable_data=data)] for data in (True, False)
    )
    assert with_data == without


def test_two_collectives_at_once_take_longer_than_the_closed_form_says():
    """Where contention makes the fidelities differ: two groups whose members share the NICs of two nodes."""

    def ends(groups):
        def program(rank, ctx):
            dist = ctx.distributed
            dist.init_process_group("nccl")
            made = [dist.new_group(list(ranks)) for ranks in groups]
            for group in made:
                if dist.get_rank(group) >= 0:
                    dist.all_reduce(ctx.empty(1 << 24), group=group)

        return seconds(simulate(program, 16, system="aws_p4de", nodes=2, enable_data=False))

    # neighbours share a NIC there: SIPs 0 and 1 of each node one, 2 and 3 another
    alone = ends([(0, 8)])
    expected = collective_time("aws_p4de", "all_reduce", 1 << 26, ranks=2, nodes=2, kind="kernel").seconds
    assert alone == pytest.approx(expected, rel=1e-2)
    assert ends([(0, 8), (2, 10)]) == pytest.approx(alone, rel=1e-2)
    assert 1.5 * alone < ends([(0, 8), (1, 9)]) < 2.5 * alone


@pytest.mark.parametrize(("system", "nodes", "world"), [("dgx_h100", 1, 6), ("gh200_alps", 2, 7)])
def test_what_is_uneven_or_empty_works_with_the_library_s_choice(system, nodes, world):
    import torch.distributed as dist

    def program(rank, ctx):
        dist.init_process_group("nccl")
        dist.all_reduce(torch.empty(0))
        sizes = [(rank + k) % 3 for k in range(world)]
        received = torch.empty(sum(sizes))
        dist.all_to_all_single(received, torch.full((sum(sizes),), float(rank)), sizes, sizes)
        assert received.tolist() == [float(k) for k in range(world) for _ in range(sizes[k])]
        gathered = [torch.empty(k + 1) for k in range(world)]
        dist.all_gather(gathered, torch.full((rank + 1,), float(rank)))
        assert [part.tolist() for part in gathered] == [[float(k)] * (k + 1) for k in range(world)]
        part = torch.empty(rank + 1)
        dist.reduce_scatter(part, [torch.ones(k + 1) for k in range(world)])
        assert part.tolist() == [float(world)] * (rank + 1)
        dist.barrier()
        if rank == 0:
            dist.send(torch.full((4,), 7.0), 1)
        elif rank == 1:
            message = torch.empty(4)
            dist.recv(message, 0)
            assert message.tolist() == [7.0] * 4

    done = simulate(program, world, system=system, nodes=nodes, torch_names=True)
    noted = {op.detail.get("fallback") for op in done if op.detail["op"] == "all_reduce"}
    assert noted == {None if nodes == 1 else "nodes of different sizes: chosen as for 8 ranks"}
