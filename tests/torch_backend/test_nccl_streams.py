"""Messages of NCCL: one communicator and one stream for a pair, the group's for batches, and a buffer to send into."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.simulation.matching.message_runs import SLOTS, slot_bytes
from kernbench.topology import resolve_topology

SMALL, LARGE = 256, (256 << 20) // 4
"""Elements of fp32: what NCCL's buffers hold many times, and what none of them holds."""

BEYOND = (8 << 20) // 4
"""Twice what one holds."""

Program = Callable[[int, int], None]
Ends = dict[tuple[int, str], list[float]]


def run(
    program: Program,
    n: int,
    *,
    ranks: int = 2,
    eager: bool = False,
    backend: str = "nccl",
    isolation: str = "carrier",
    system: str = "dgx_h100",
    enable_data: bool = True,
) -> tuple[dict[int, BaseException], Ends]:
    """Run ``program(rank, n)``: what has failed, and when the operations of communicators ended, by rank and name."""

    def worker(rank: int) -> None:
        options: dict[str, Any] = {"device_id": torch.device("cuda", rank)} if eager else {}
        torch.cuda.set_device(rank)
        dist.init_process_group(backend, **options)
        program(rank, n)

    ends: Ends = {}
    with kernbench.simulate(system, world_size=ranks, enable_data=enable_data) as ctx:
        try:
            ctx.multiprocessing.spawn(worker, nprocs=ranks, isolation=isolation)
        except kernbench.SpawnException as failure:
            return dict(failure.errors), ends
        for op in ctx.engine.op_log.operations:
            if op.kind == "collective" and op.rank is not None and op.end is not None:
                ends.setdefault((op.rank, op.name), []).append(op.end)
    return {}, ends


def tensors(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((n,), float(dist.get_rank()), device="cuda"), torch.full((n,), -1.0, device="cuda")


def batch(*calls: tuple[Any, torch.Tensor, int]) -> None:
    for work in dist.batch_isend_irecv([dist.P2POp(*call) for call in calls]):
        work.wait()


# -- programs ------------------------------------------------------------------------------------------------------------


def crossed(rank: int, n: int) -> None:
    """Both receive first, one of them without waiting for it."""
    x, y = tensors(n)
    if rank == 0:
        works = [dist.irecv(y, 1), dist.isend(x, 1)]
        for work in works:
            assert work is not None
            work.wait()
    else:
        dist.recv(y, 0)
        dist.send(y, 0)
    torch.cuda.synchronize()


def both_send(rank: int, n: int) -> None:
    x, y = tensors(n)
    sent, came = dist.isend(x, 1 - rank), dist.irecv(y, 1 - rank)
    assert sent is not None
    assert came is not None
    sent.wait()
    came.wait()
    if n == SMALL:
        assert y.tolist() == [1.0 - rank] * n


def ring_of_both(rank: int, n: int) -> None:
    """Each sends to the next, then receives from the one before, on its current stream."""
    x, y = tensors(n)
    world = dist.get_world_size()
    dist.send(x, (rank + 1) % world)
    dist.recv(y, (rank - 1) % world)
    torch.cuda.synchronize()


def ring_that_waits_at_the_end(rank: int, n: int) -> None:
    x, y = tensors(n)
    world = dist.get_world_size()
    sent, came = dist.isend(x, (rank + 1) % world), dist.irecv(y, (rank - 1) % world)
    assert sent is not None
    assert came is not None
    came.wait()
    sent.wait()
    torch.cuda.synchronize()


def exchanged_in_a_batch(rank: int, n: int) -> None:
    x, y = tensors(n)
    batch((dist.isend, x, 1 - rank), (dist.irecv, y, 1 - rank))
    torch.cuda.synchronize()


def batch_behind_a_batch(rank: int, n: int) -> None:
    """Each direction in a batch of its own: they share the group's stream."""
    x, y = tensors(n)
    calls = [(dist.isend, x, 1 - rank), (dist.irecv, y, 1 - rank)]
    works = [work for call in calls for work in dist.batch_isend_irecv([dist.P2POp(*call)])]
    for work in works:
        work.wait()
    torch.cuda.synchronize()


def batch_of_two(rank: int, n: int) -> None:
    """A group's first call, of two of its members."""
    if rank < 2:
        exchanged_in_a_batch(rank, n)


def batch_of_two_after_a_barrier(rank: int, n: int) -> None:
    dist.barrier()
    batch_of_two(rank, n)


def batch_of_one_and_a_message(rank: int, n: int) -> None:
    """The two sides are on different communicators."""
    x, y = tensors(n)
    dist.barrier()
    if rank == 0:
        batch((dist.isend, x, 1))
    else:
        dist.recv(y, 0)
    torch.cuda.synchronize()


def here(program: Program, text: str) -> str:
    """File and line of a call in a program, as reports write them."""
    lines, first = inspect.getsourcelines(program)
    return f"{__file__.rpartition('/')[2]}:{first + next(at for at, line in enumerate(lines) if text in line)}"


# -- what hangs, and what does not ---------------------------------------------------------------------------------------

HANGS: dict[str, tuple[Program, int, dict[str, Any], str, str]] = {
    "both receive first": (crossed, SMALL, {}, "rank 0 -> rank 1 -> rank 0", "dist.irecv(y, 1)"),
    "both send first": (both_send, LARGE, {}, "rank 0 -> rank 1 -> rank 0", "dist.isend"),
    "a ring of sends": (ring_of_both, LARGE, {"ranks": 3}, "rank 0 -> rank 1 -> rank 2 -> rank 0", "dist.send"),
    "a ring on one communicator": (
        ring_that_waits_at_the_end, LARGE, {"ranks": 3, "eager": True}, "rank 0 -> rank 1 -> rank 2 -> rank 0", "dist.isend",
    ),
    "batches of one direction": (batch_behind_a_batch, LARGE, {}, "rank 0 -> rank 1 -> rank 0", "dist.batch_isend_irecv"),
    "a batch of two of three": (batch_of_two, SMALL, {"ranks": 3}, "rank 2 must call something of the default group", ""),
    "a batch and a message": (batch_of_one_and_a_message, LARGE, {}, "rank 0 -> rank 1 -> rank 0", "dist.recv"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("isolation", "enable_data"), [("carrier", True), ("carrier", False), ("process", True), ("process", False)]
)
@pytest.mark.parametrize("case", HANGS)
def test_hangs_are_deadlocks(case: str, isolation: str, enable_data: bool) -> None:
    program, n, options, says, text = HANGS[case]
    n = min(n, BEYOND) if enable_data else n
    errors, _ = run(program, n, isolation=isolation, enable_data=enable_data, **options)
    assert errors
    for error in errors.values():
        assert isinstance(error, kernbench.DeadlockError)
        assert says in str(error)
        if text:
            assert here(program, text) in str(error)


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize(("program", "n", "options"), [
    (both_send, SMALL, {}),
    (both_send, SMALL, {"eager": True}),
    (ring_of_both, SMALL, {"ranks": 3}),
    (ring_of_both, SMALL, {"ranks": 3, "eager": True}),
    (ring_that_waits_at_the_end, SMALL, {"ranks": 3, "eager": True}),
    (exchanged_in_a_batch, LARGE, {"enable_data": False}),
    (batch_behind_a_batch, SMALL, {}),
    (batch_of_two, SMALL, {"ranks": 3, "eager": True}),
    (batch_of_two_after_a_barrier, SMALL, {"ranks": 3}),
    (crossed, LARGE, {"backend": "gloo", "enable_data": False}),
    (both_send, LARGE, {"backend": "gloo", "enable_data": False}),
], ids=lambda value: getattr(value, "__name__", None))  # fmt: skip
def test_what_runs_on_hardware_runs(program: Program, n: int, options: dict[str, Any], isolation: str) -> None:
    errors, _ = run(program, n, isolation=isolation, **options)
    assert errors == {}


def test_the_buffer_has_eight_slots() -> None:
    """One message more than there are slots, whatever its size, or one byte more than they hold, and the sender waits."""
    topology = resolve_topology("dgx_h100").topology_obj
    size = slot_bytes(topology, (0, 1))
    assert SLOTS * size == 4 << 20  # NCCL_BUFFSIZE

    def many(rank: int, n: int) -> None:
        """``n`` messages each way, the receives behind the sends."""
        x, y = torch.ones(1, device="cuda"), torch.ones(1, device="cuda")
        works = [dist.isend(x, 1 - rank) for _ in range(n)] + [dist.irecv(y, 1 - rank) for _ in range(n)]
        for work in works:
            assert work is not None
            work.wait()
        torch.cuda.synchronize()

    assert run(many, SLOTS)[0] == {}
    assert len(run(many, SLOTS + 1)[0]) == 2
    held = SLOTS * size // 4
    assert run(both_send, held, enable_data=False)[0] == {}
    assert len(run(both_send, held + 1, enable_data=False)[0]) == 2


def test_the_buffer_is_emptied_by_receives() -> None:
    """More than it holds goes through it as long as the receiver takes it out."""

    def stream(rank: int, n: int) -> None:
        x = torch.zeros(SMALL, device="cuda")
        for step in range(3 * SLOTS):
            if rank == 0:
                dist.send(x + step, 1)
            else:
                dist.recv(x, 0)
                assert x[0].item() == step

    assert run(stream, SMALL)[0] == {}


@pytest.mark.parametrize("nodes", [1, 2])
def test_smaller_chunks_between_nodes(nodes: int) -> None:
    topology = resolve_topology("dgx_h100").topology_obj
    per_node = topology.sips_per_node
    if topology.nodes < nodes:
        pytest.skip("one node")
    assert slot_bytes(topology, (0, (nodes - 1) * per_node + 1)) == (512 << 10 if nodes == 1 else 128 << 10)


def test_smaller_chunks_over_a_link_that_says_so(tmp_path: Path) -> None:
    """NCCL's NVL and PCI chunks; the whole buffer is eight of them."""
    pcie = tmp_path / "pcie.yaml"
    pcie.write_text("extends: dgx_h100\nsystem: {name: pcie, sips: {link: {message_chunk: 128 KiB}}}\n")
    assert slot_bytes(resolve_topology(str(pcie)).topology_obj, (0, 1)) == 128 << 10
    held = SLOTS * (128 << 10) // 4
    assert run(both_send, held, enable_data=False, system=str(pcie))[0] == {}
    assert len(run(both_send, held + 1, enable_data=False, system=str(pcie))[0]) == 2


def test_a_sender_may_change_what_has_gone_into_the_buffer() -> None:
    def program(rank: int, n: int) -> None:
        x = torch.full((n,), 7.0, device="cuda")
        if rank == 0:
            dist.send(x, 1)
            x.zero_()
            torch.cuda.synchronize()
            dist.barrier()
        else:
            dist.barrier()
            dist.recv(x, 0)
            assert x.tolist() == [7.0] * n

    assert run(program, SMALL)[0] == {}


# -- times ---------------------------------------------------------------------------------------------------------------


def served_late(seconds: float) -> Program:
    def program(rank: int, n: int) -> None:
        """Rank 0 sends behind a receive that rank 1 serves late."""
        x, y = tensors(n)
        if rank == 0:
            works = [dist.irecv(y, 1), dist.isend(x, 1)]
        else:
            torch.cuda._sleep(int(seconds * 1.98e9))
            works = [dist.isend(x, 0), dist.irecv(y, 0)]
        for work in works:
            assert work is not None
            work.wait()
        torch.cuda.synchronize()

    return program


def late_batch(rank: int, n: int) -> None:
    """A batch whose other side comes late, and an all-reduce behind it."""
    x, y = tensors(n)
    dist.barrier()
    if rank == 1:
        torch.cuda._sleep(int(0.017 * 1.98e9))
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, y, 0) if rank else dist.P2POp(dist.isend, x, 1)]):
        work.wait()
    dist.all_reduce(x)
    torch.cuda.synchronize()


def test_a_send_behind_a_receive_that_is_served_late_is_late() -> None:
    (late,) = run(served_late(0.017), SMALL)[1][0, "send"]
    (soon,) = run(served_late(0.0), SMALL)[1][0, "send"]
    (gloo,) = run(served_late(0.017), SMALL, backend="gloo")[1][1, "send"]
    assert late > 0.017
    assert soon < 0.001
    assert late - soon == pytest.approx(gloo - soon, rel=0.02)


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_an_all_reduce_behind_a_late_batch_is_late(n: int) -> None:
    ends = run(late_batch, n, enable_data=False)[1]
    assert min(ends[0, "all_reduce"]) > 0.017


def test_a_large_send_ends_with_its_receive_and_a_small_one_before() -> None:
    def program(rank: int, n: int) -> None:
        x, _ = tensors(n)
        if rank == 0:
            dist.send(x, 1)
        else:
            torch.cuda._sleep(int(0.017 * 1.98e9))
            dist.recv(x, 0)
        torch.cuda.synchronize()

    small, large = (run(program, n, enable_data=False)[1] for n in (SMALL, LARGE))
    assert small[0, "send"][0] < 0.001 < 0.017 < small[1, "recv"][0]
    assert 0.017 < large[0, "send"][0] <= large[1, "recv"][0]


@pytest.mark.parametrize("program", [exchanged_in_a_batch, ring_of_both, both_send])
def test_times_are_the_same_in_every_way(program: Program) -> None:
    times = [
        run(program, SMALL, isolation=isolation, enable_data=enable_data)[1]
        for isolation in ("carrier", "process")
        for enable_data in (True, False)
    ]
    assert times[0]
    assert all(each == times[0] for each in times)


# -- names ---------------------------------------------------------------------------------------------------------------


def test_messages_of_a_pair_are_numbered() -> None:
    def program(rank: int, n: int) -> None:
        x, y = tensors(n)
        for _ in range(3):
            dist.send(x, 1) if rank == 0 else dist.recv(y, 0)
        if rank == 0:
            dist.recv(y, 1)

    (error, *_) = run(program, SMALL)[0].values()
    assert "recv from rank 1 #0" in str(error)
    assert "send(shape (256,), float32, algorithm direct_send) #2 to rank 1 on the default group" in str(error)


def test_tags_mean_nothing_to_nccl() -> None:
    def program(rank: int, n: int) -> None:
        x = torch.zeros(1, device="cuda")
        if rank == 0:
            dist.send(x + 1, 1, tag=1)
            dist.send(x + 2, 1, tag=2)
        else:
            got = []
            for tag in (2, 1):
                dist.recv(x, 0, tag=tag)
                got.append(x.item())
            assert got == [1.0, 2.0]

    assert run(program, SMALL)[0] == {}


def test_each_communicator_has_its_buffers() -> None:
    """Those of a pair are made in addition to the group's, one for each pair."""
    reserved = {}
    for pairs in (0, 1, 2):

        def program(rank: int, n: int, pairs: int = pairs) -> None:
            x, y = tensors(n)
            dist.barrier()
            dist.all_reduce(x)
            for other in range(1, 1 + pairs):
                if rank == 0:
                    dist.send(x, other)
                elif rank == other:
                    dist.recv(y, 0)
            if rank == 0:
                free, total = torch.cuda.mem_get_info()
                reserved[pairs] = total - free

        assert run(program, SMALL, ranks=3)[0] == {}
    assert reserved[1] - reserved[0] == reserved[2] - reserved[1] == 224 << 20


def send_before_a_sum(rank: int, n: int) -> None:
    """One rank's first call is a message, the other's a collective."""
    x = torch.ones(n, device="cuda")
    if rank == 0:
        dist.send(x, 1)
    dist.all_reduce(x)
    if rank == 1:
        dist.recv(x, 0)


def message_behind_uneven_parts(rank: int, n: int) -> None:
    """The group's first collective exchanges parts that are alike for one rank and not for the other."""
    takes, sends = ([1, 1], [1, 2]) if rank == 0 else ([2, 1], [1, 1])
    x, y = torch.ones(sum(sends), device="cuda"), torch.empty(sum(takes), device="cuda")
    dist.all_to_all_single(y, x, takes, sends)
    dist.send(x[:1].clone(), 1) if rank == 0 else dist.recv(x[:1].clone(), 0)


def send_after_a_sum(rank: int, n: int) -> None:
    """The same when the group has communicated before."""
    dist.all_reduce(torch.ones(n, device="cuda"))
    send_before_a_sum(rank, n)


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize(("program", "options", "hangs"), [
    (ring_of_both, {"ranks": 3}, True),
    (ring_that_waits_at_the_end, {"ranks": 4}, True),
    (ring_of_both, {"ranks": 3, "eager": True}, False),
    (both_send, {}, False),
    (send_before_a_sum, {}, True),
    (send_before_a_sum, {"eager": True}, False),
    (send_after_a_sum, {}, False),
    (message_behind_uneven_parts, {}, False),
], ids=["three", "four", "one communicator", "a pair", "a group", "group from the start", "group before", "parts"])  # fmt: skip
def test_first_messages_in_a_circle_are_remarked(
    program: Program, options: dict[str, Any], hangs: bool, isolation: str
) -> None:
    """Torch's host waits in the first message of a pair, and in a group's first collective, until the others come to theirs."""
    ranks, eager = options.get("ranks", 2), options.get("eager", False)

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", **({"device_id": torch.device("cuda", rank)} if eager else {}))
        program(rank, SMALL)

    with kernbench.simulate("dgx_h100", world_size=ranks) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks, isolation=isolation)
        said = [remark for remark in ctx.simulation.remarks if "the first messages hang" in remark]
    circle = " -> ".join(f"rank {rank % ranks}" for rank in range(ranks + 1))
    assert (len(said), circle in "".join(said)) == ((1, True) if hangs else (0, False))
