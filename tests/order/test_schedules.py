"""Schedules: the default one changes nothing, others are replayed, what is found is shrunk, correct programs stay clean."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.explore import Trial, Watch, compared, explored, searched, shrunk, ulps
from kernbench.order import Choices, Conflicts, GivenAnswer, MemoryAccess, Strand, schedule_of
from kernbench.precompile import count_compiles
from kernbench.simulation.ranks.locations import Location
from kernbench.trace import write_trace
from tests.order.kernel_programs import one_shot
from tests.order.schedule_programs import gathers, hands_over, leads, reduces, trains

Program = Callable[[int, list[str]], None]


def trial_of(
    program: Program, schedule: str | None, *, world: int = 2, trace: Path | None = None, follow: bool = False
) -> Trial:
    """What a program comes to under a schedule; ``follow``: and where another one may matter."""
    watch, printed = Watch(follow=follow), {rank: list[str]() for rank in range(world)}
    failure = None

    def body(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        program(rank, printed[rank])

    races = "warn" if follow else "off"
    with kernbench.simulate("dgx_h100", schedule=schedule, plugins=[watch], races=races) as ctx:
        try:
            ctx.multiprocessing.spawn(body, nprocs=world)
        except kernbench.SpawnException as error:
            failure = error
        if trace is not None:
            gc.collect()  # tensors in cycles are freed whenever that happens, and the trace tells when
            write_trace(ctx, str(trace))
        found = watch.trial(schedule or "", "", failure)
    found.output = printed
    return found


def runs_of(program: Program, world: int = 2, *, follow: bool = False) -> Callable[[Iterable[str]], Iterator[Trial]]:
    """Runs it under schedules."""
    return lambda schedules: (trial_of(program, schedule, world=world, follow=follow) for schedule in schedules)


@pytest.mark.parametrize("program", [partial(trains, "FSDP2"), reduces, gathers], ids=["fsdp2", "kernels", "messages"])
def test_the_default_schedule_changes_nothing(program: Program, tmp_path: Path) -> None:
    without, default = (
        trial_of(program, schedule, trace=tmp_path / f"{schedule}.json") for schedule in (None, "default")
    )
    assert (without.values, without.output) == (default.values, default.output)
    assert (tmp_path / "None.json").read_bytes() == (tmp_path / "default.json").read_bytes()
    assert default.asked > 10
    assert default.taken == []


@pytest.mark.parametrize("schedule", ["random:4", pytest.param("pct:3:20:5", marks=pytest.mark.long)])
def test_a_schedule_is_replayed_byte_for_byte(schedule: str, tmp_path: Path) -> None:
    first = trial_of(partial(trains, "DDP"), schedule, trace=tmp_path / "first.json")
    stated = schedule_of(choice for choice, _ in first.taken)
    again = trial_of(partial(trains, "DDP"), schedule, trace=tmp_path / "again.json")
    answered = trial_of(partial(trains, "DDP"), stated, trace=tmp_path / "answered.json")
    assert first.taken
    assert first.taken == again.taken == answered.taken
    assert len({(tmp_path / f"{name}.json").read_bytes() for name in ("first", "again", "answered")}) == 1


CORRECT = {"ddp": partial(trains, "DDP"), "reduces": reduces, "leads": leads, "gathers": gathers}


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_program_is_clean_under_30_schedules(name: str) -> None:
    for how in ("random", "pct:3"):
        found, count = explored(runs_of(CORRECT[name]), how, 15)
        assert found is None, found and found.trouble.text
        assert count == 16


WRONG = {
    "reduces": (partial(reduces, exit=False), "difference"),
    "hands_over": (partial(hands_over, ordered=False), "difference"),
    "leads": (partial(leads, atomic=False), "mismatch"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_bug_of_depth_two_is_found_and_shrunk(name: str) -> None:
    program, kind = WRONG[name]
    found, count = explored(runs_of(program), "pct:2", 50)
    assert found is not None
    assert found.trouble.kind == kind
    assert 1 < found.runs == count <= 51
    left, _ = shrunk(runs_of(program), found)
    assert 0 < len(left) <= 3
    replayed = trial_of(program, schedule_of(choice for choice, _ in left))
    trouble = replayed.trouble or compared(found.usual, replayed)
    assert trouble is not None
    assert trouble.same_as(found.trouble)
    for choice in left:  # none can be left out
        fewer = trial_of(program, schedule_of(other for other, _ in left if other != choice[0]))
        without = fewer.trouble or compared(found.usual, fewer)
        assert without is None or not without.same_as(found.trouble)


def test_a_receive_from_any_source_gets_any_message() -> None:
    found, _ = explored(runs_of(partial(gathers, named=False), 4), "random", 20)
    assert found is not None
    assert found.trouble.kind == "difference"
    assert "m0" in {choice.point for choice, _ in found.trial.taken}


@pytest.mark.parametrize(
    ("name", "orders"), [("leads", 2), ("gathers", 1), pytest.param("reduces", 3, marks=pytest.mark.long)]
)
def test_a_small_correct_program_is_exhausted(name: str, orders: int) -> None:
    """Who leads is one of two, and messages from named ranks come in one order; a barrier's words are met in three."""
    found = searched(runs_of(CORRECT[name], follow=True), "exhaustive", 300)
    assert found.exhausted, found.found and found.found.trouble.text
    assert found.distinct == orders <= found.runs
    assert found.alike > 10
    assert str(found).startswith("all orders: ")


@pytest.mark.parametrize("name", WRONG)
def test_every_bug_of_depth_two_is_found_by_going_through_all_orders(name: str) -> None:
    program, kind = WRONG[name]
    found = searched(runs_of(program, follow=True), "exhaustive:2", 50).found
    assert found is not None
    assert found.trouble.kind == ("race" if name == "reduces" else kind)
    assert len(found.trial.taken) <= 2


def test_messages_from_anybody_are_gone_through() -> None:
    found = searched(runs_of(partial(gathers, named=False), 3, follow=True), "exhaustive:1", 50).found
    assert found is not None
    assert [choice.point for choice, _ in found.trial.taken] == ["m0"]


def test_what_was_left_out_is_said() -> None:
    run = runs_of(leads, follow=True)
    bounded, cut = searched(run, "exhaustive:0", 50), searched(run, "exhaustive", 1)
    assert (bounded.runs, bounded.exhausted, bounded.beyond > 0, bounded.left) == (1, False, True, 0)
    assert (cut.runs, cut.exhausted, cut.left > 0) == (2, False, True)
    assert "beyond it" in str(bounded)
    assert "were not run" in str(cut)
    with pytest.raises(kernbench.ConfigError, match="exhaustive:2"):
        searched(run, "exhaustive:all", 1)
    watch = Watch(follow=True)
    with (
        pytest.raises(kernbench.ConfigError, match="needs --races"),
        kernbench.simulate("dgx_h100", schedule="default", plugins=[watch]),
    ):
        watch.trial("default", "", None)


def test_a_look_at_a_key_conflicts_with_those_who_change_it() -> None:
    conflicts, place = Conflicts(), Location("a.py", 1, "f")
    one, other = Strand("host", 0, None), Strand("host", 1, None)

    def uses(strand: Strand, *, writes: bool = False, waits: bool = False) -> int:
        strand.n += 1
        conflicts.uses("key", MemoryAccess(strand, strand.n, "key", place), writes=writes, waits=waits)
        return len(conflicts.signature[0])

    assert uses(one, writes=True) == 0
    assert uses(other, waits=True) == 0  # it would have waited
    assert uses(other) == 1
    assert uses(one, writes=True) == 2  # after the last look
    assert uses(other, waits=True) == 3  # which of the values


@pytest.mark.parametrize(("schedule", "segments"), [("default", 1), ("a0.0=1", 1), ("a0.0=1,a0.1=1", 2)])
def test_recorded_memory_is_free_again_or_not_yet(schedule: str, segments: int) -> None:
    """Asked when it is given back, and when memory is asked for: one that is not free by then costs another segment."""

    def takes_again(rank: int, printed: list[str]) -> None:
        size, side = 12 << 20, torch.cuda.Stream()
        x = torch.ones(size, dtype=torch.uint8, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
        x.record_stream(side)
        torch.cuda.synchronize()
        del x
        torch.ones(size, dtype=torch.uint8, device="cuda")
        printed.append(str(torch.cuda.memory_reserved() // size))

    trial = trial_of(takes_again, schedule, world=1)
    assert trial.trouble is None
    assert trial.output == {0: [str(segments)]}


def test_names_of_schedules() -> None:
    stated = Choices("w1.4=2,r.0=1")
    assert [stated.pick("r", "ab"), stated.pick("r", "ab"), stated.pick("r", "a")] == [1, 0, 0]
    assert [stated.pick("w1", "abc") for _ in range(5)] == [0, 0, 0, 0, 2]
    assert schedule_of(stated.taken) == "r.0=1,w1.4=2"
    assert schedule_of([]) == "default"
    assert Choices("r.0=7").pick("r", "ab") == 0  # there is no such option: another program, or another version
    for wrong in ("often", "pct:2", "pct:0:5:1", "random:-1", "x.1=2", "r.1"):
        with pytest.raises(kernbench.ConfigError, match="is no schedule"):
            Choices(wrong)


def test_a_schedule_takes_the_place_of_a_policy_and_needs_ranks_here() -> None:
    with (
        pytest.raises(kernbench.ConfigError, match="a schedule"),
        kernbench.simulate(policy="random", schedule="default"),
    ):
        pass
    with kernbench.simulate(schedule="default") as ctx, pytest.raises(kernbench.ConfigError, match="processes"):
        ctx.multiprocessing.spawn(print, nprocs=1, isolation="process")


def test_priorities_change_as_often_as_the_depth_says() -> None:
    """Of three that could run the same one goes first until it is lowered, twice."""
    choices = Choices("pct:3:30:1")
    first, lowered = [], 0
    for _ in range(30):
        goes = choices.pick("r", (0, 1, 2))
        first.append(goes)
        lowered += choices.pick(f"w{goes}", (goes, (), "everything")) == 2
    assert lowered == 2
    assert len({first[0], first[-1]}) == 2
    assert sum(one != other for one, other in pairwise(first)) == 2


def test_how_far_values_are_apart() -> None:
    one = torch.tensor([1.0, 2.0, -3.0])
    other = torch.tensor([1.0, torch.nextafter(one[1], one[0]).item(), -3.0])
    assert "1 of 3 elements differ; the first is element 1: 2.0" in ulps(one, other)
    assert "by up to 1 ULP" in ulps(one, other)
    assert "by up to 2 ULP" in ulps(torch.tensor([1e-45]), torch.tensor([-1e-45]))
    assert ulps(one, one) == ""
    assert "ULP" not in ulps(torch.tensor([1]), torch.tensor([2]))


def test_answers_are_numbered_by_point() -> None:
    assert str(GivenAnswer("w1", 4, 2)) == "w1.4=2"


def test_compiling_takes_no_virtual_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's compiler times itself where it has a listener, and only when its cache has not the kernel."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    one_shot.device_caches.clear()
    with count_compiles() as compiles:
        for run in ("cold.json", "warm.json"):
            trial_of(reduces, None, trace=tmp_path / run)
    assert compiles.compiled
    assert (tmp_path / "cold.json").read_bytes() == (tmp_path / "warm.json").read_bytes()
