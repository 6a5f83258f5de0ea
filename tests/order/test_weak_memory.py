"""Weak memory: a read that nothing orders behind a write sees what was there before, and no other read does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl

import kernbench
from kernbench.order import ByteRegion, MemoryAccess, ReplacedBytes, Strand
from kernbench.order.weak import EarlierBytes
from tests.order.test_pairs_under_schedules import NAMES, PAIRS, Program
from tests.order.test_streams import races_of

OF_READS = [
    "result_of_an_async_collective_read_before_wait",
    "result_of_an_async_collective_read_on_the_host",
    "stream_that_does_not_wait",
    "stream_that_waits_for_an_event_recorded_too_early",
    "host_looks_before_a_copy_has_ended",
    "two_streams_that_write_one_buffer",
    "collective_called_before_its_input_is_there",
    "start_barrier_relaxed",
    "scope_of_one_gpu_only",
    "counters_used_again_without_counting_on",
    "host_writes_while_a_peer_reads",
    "one_staging_slot_for_all_calls",
    "kernel_on_a_stream_that_does_not_wait",
    "kernel_reads_what_a_collective_writes",
    "torch_reads_what_a_kernel_on_another_stream_writes",
    "one_thread_releases_for_all",
    "fence_by_one_lane_only",
]
"""The pairs in which something is read too early, other than in graphs."""


def seen(
    body: Callable[[], Any], *, world: int = 1, isolation: str = "carrier", **options: Any
) -> tuple[dict[int, Any], list[str]]:
    """What a program gives by rank, where memory is weak unless the options say otherwise, and what is said of it."""
    given: dict[int, Any] = {}

    def worker(rank: int) -> None:
        if world > 1:
            dist.init_process_group()
        torch.cuda.set_device(rank)
        given[rank] = body()

    with kernbench.simulate("dgx_h100", **{"memory": "weak", **options}) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=world, isolation=isolation)
        return given, [each for each in ctx.simulation.remarks if each.startswith("Memory was weak")]


@pytest.mark.parametrize("program", PAIRS, ids=NAMES)
def test_what_is_ordered_sees_what_was_written_last(program: Program) -> None:
    _, said = seen(lambda: program(True), world=2)
    assert said == []
    assert races_of(program, True, memory="weak").found == []


@pytest.mark.parametrize("name", OF_READS)
def test_what_is_read_too_early_is_what_was_there_before(name: str) -> None:
    program = PAIRS[NAMES.index(name)]
    _, said = seen(lambda: program(False), world=2)
    assert said


def _on_another_stream() -> list[list[float]]:
    side, x = torch.cuda.Stream(), torch.ones(4, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)
        x[1:3].add_(3)
        fresh = torch.full((4,), 7.0, device="cuda")
    early = [(x + 1).tolist(), (fresh * 0).tolist()]
    torch.cuda.synchronize()
    return [*early, x.tolist(), fresh.tolist()]


def test_values() -> None:
    strong, none = seen(_on_another_stream, memory="strong")
    assert strong[0] == [[3, 6, 6, 3], [0] * 4, [2, 5, 5, 2], [7] * 4]
    assert none == []
    weak, said = seen(_on_another_stream)
    assert weak[0][0] == [2] * 4
    assert all(value != value for value in weak[0][1]), "memory that nobody had written"
    assert weak[0][2:] == strong[0][2:], "in the end all is there"
    assert len(said) == 2
    assert "test_weak_memory.py" in said[0]
    assert "saw what was there before mul_" in said[0]


def test_what_an_operation_writes_stays_though_it_has_read_something_older() -> None:
    def body() -> list[list[float]]:
        side, x = torch.cuda.Stream(), torch.ones(4, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.mul_(10)
        x[:2].add_(1)  # reads and writes a part of what it has not waited for
        torch.cuda.synchronize()
        return [x.tolist()]

    assert seen(body, memory="strong")[0][0] == [[11, 11, 10, 10]]
    assert seen(body)[0][0] == [[2, 2, 10, 10]]


def test_a_collective_reads_what_its_callers_stream_had_not_waited_for() -> None:
    def body() -> list[float]:
        side, x = torch.cuda.Stream(), torch.ones(4, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(dist.get_rank())
        every = torch.empty(8, device="cuda")
        dist.all_gather_into_tensor(every, x)
        values: list[float] = every.tolist()
        return values

    assert seen(body, world=2, memory="strong")[0] == {0: [1] * 4 + [2] * 4, 1: [1] * 4 + [2] * 4}
    assert seen(body, world=2)[0] == {0: [1] * 8, 1: [1] * 8}


@triton.jit
def _adds(x, ADDED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + ADDED)


@triton.jit
def _passes_on(data, flag, out, BLOCK: tl.constexpr, SEM: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        tl.store(data + at, at.to(tl.float32))
        tl.debug_barrier()
        tl.atomic_xchg(flag, 1, sem=SEM)
    else:
        while tl.atomic_add(flag, 0, sem="acquire") == 0:
            pass
        tl.store(out + at, tl.load(data + at))


def test_programs_of_one_launch_see_what_no_release_has_passed_on() -> None:
    def body() -> dict[str, float]:
        sums = {}
        for sem in ("relaxed", "release"):
            data, out = torch.zeros(32, device="cuda"), torch.zeros(32, device="cuda")
            _passes_on[(2,)](data, torch.zeros(1, dtype=torch.int32, device="cuda"), out, 32, sem)
            sums[sem] = out.sum().item()
        return sums

    total = 31 * 32 / 2
    assert seen(body, memory="strong")[0][0] == {"relaxed": total, "release": total}
    assert seen(body)[0][0] == {"relaxed": 0, "release": total}


def test_kernels_of_two_streams_at_looked_up_and_at_strided_places() -> None:
    def body() -> list[float]:
        side, x = torch.cuda.Stream(), torch.zeros(64, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _adds[(4,)](x, 1.0, 16)
        columns = x.view(16, 4)[:, 1].sum().item()
        picked = x[torch.tensor([0, 63], device="cuda")].sum().item()
        _adds[(4,)](x, 1.0, 16)
        torch.cuda.synchronize()
        return [columns, picked, x.sum().item()]

    assert seen(body, memory="strong")[0][0] == [16, 2, 128]
    assert seen(body)[0][0] == [0, 0, 64], "the second kernel has read what was there before the first"


def test_a_schedule_says_which_reads_see_something_older() -> None:
    runs = {}
    for seed in range(1, 9):
        values, _ = seen(_on_another_stream, schedule=f"random:{seed}")
        again, _ = seen(_on_another_stream, schedule=f"random:{seed}")
        assert str(again) == str(values), "a schedule is one run"
        runs[str(values[0][0])] = seed
    assert len(runs) > 1
    stated = {answer: str(seen(_on_another_stream, schedule=f"v0.0={answer}")[0][0][0]) for answer in (0, 1, 2)}
    assert stated == {0: str([3.0, 6.0, 6.0, 3.0]), 1: str([2.0] * 4), 2: str([3.0] * 4)}


def test_a_line_that_is_excused_sees_what_was_written_last() -> None:
    def body() -> list[float]:
        side, x = torch.cuda.Stream(), torch.ones(4, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.mul_(2)  # kernbench: ordered: by something that kernbench does not see
        values: list[float] = (x + 0).tolist()
        return values

    assert seen(body) == ({0: [2] * 4}, [])


def test_races_are_told_or_not() -> None:
    with pytest.raises(kernbench.SpawnException, match="race: read after write"):
        seen(_on_another_stream, races=True)
    with kernbench.simulate("dgx_h100", memory="weak") as ctx:
        ctx.multiprocessing.spawn(lambda rank: _on_another_stream(), nprocs=1)
        assert ctx.simulation.order.races.found == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory": "frail"}, "memory='frail': expected 'strong', 'weak'"),
        ({"memory": "weak", "enable_data": False}, "needs data"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(kernbench.ConfigError, match=said), kernbench.simulate("dgx_h100", **options):
        pass


def test_processes_have_no_weak_memory() -> None:
    with pytest.raises(kernbench.ConfigError, match="use isolation='carrier' with memory='weak'"):
        seen(_on_another_stream, isolation="process")


class _Where:
    """A line of a program."""

    file, line, function = __file__, 1, "body"


def _kept(*regions: tuple[int, int], nbytes: int = 1 << 10) -> tuple[EarlierBytes, list[MemoryAccess]]:
    writes, earlier = [], EarlierBytes(nbytes)
    for number, (lo, hi) in enumerate(regions):
        strand = Strand(f"writer {number}", 0, None)
        writes.append(MemoryAccess(strand, 1, "write", _Where()))
        earlier.add(ReplacedBytes(writes[-1], ByteRegion(lo, hi), number, hi - lo))
    return earlier, writes


def test_what_a_reader_follows_hides_what_was_there_before() -> None:
    earlier, writes = _kept((0, 8), (4, 12), (8, 16))

    def under(*readers: tuple[int, int, int | None]) -> list[int]:
        """What readers of bytes ``lo`` to ``hi`` may see, of whom each comes after one of the writes, or after none."""
        of = [(ByteRegion(lo, hi), lambda write, n=n: n is not None and write is writes[n]) for lo, hi, n in readers]
        return [each.values for each in earlier.under(of)]

    assert under((0, 16, None)) == [2, 1, 0]
    assert under((0, 4, None)) == [0]
    assert under((0, 16, 1)) == [2], "it comes after write 1, not after write 2"
    assert under((0, 4, 0), (12, 16, None)) == [2]
    assert under((0, 6, 1), (12, 16, None)) == [2]


def test_twice_as_many_bytes_are_kept_as_the_storage_has() -> None:
    earlier, _ = _kept(*[(0, 8)] * 5, nbytes=12)
    assert [each.values for each in earlier.under([(ByteRegion(0, 8), lambda write: False)])] == [4, 3, 2]
