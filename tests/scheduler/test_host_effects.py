"""What a run does to its process, and the switches for it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys

import pytest
import torch.distributed as dist

import kernbench
from kernbench.errors import ConfigError
from kernbench.scheduler import HostEffects, RankScheduler
from kernbench.scheduler.host_effects import VARIABLE

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's calls")


_of_process, _affinity = signal.getsignal, getattr(os, "sched_getaffinity", None)
"""The process's, and not what a rank sees by these names."""


def observed() -> dict[str, bool]:
    """Which effects hold now, asked of the system itself."""
    return {
        "one_core": len(_affinity(0)) == 1,
        "batch": os.sched_getscheduler(0) == os.SCHED_BATCH,
        "frozen_heap": gc.get_freeze_count() > 0,
        "ctrl_c": _of_process(signal.SIGINT) is not signal.default_int_handler,
    }


NOTHING = dict.fromkeys(observed(), False)


@pytest.fixture(autouse=True)
def plain_process(ctrl_c, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    if observed() != NOTHING:
        pytest.skip("this process has one core, or its heap is frozen, before anything runs")


def inside(effects: HostEffects | None, isolation: str) -> dict[str, bool]:
    scheduler = RankScheduler(effects=effects)
    seen = []
    scheduler.start([lambda: seen.append(observed())], isolation=isolation)
    with scheduler.at_work():
        scheduler.run_ready()
    assert observed() == NOTHING, "all is undone"
    return seen[0]


@pytest.mark.parametrize("name", list(NOTHING))
@pytest.mark.parametrize("isolation", ["carrier", "greenlet"])
def test_each_effect_has_its_switch(name, isolation):
    threads_alone = {"one_core", "batch"}
    on = {each for each in NOTHING if isolation == "carrier" or each not in threads_alone}
    assert inside(HostEffects(**{name: False}), isolation) == {each: each in on - {name} for each in NOTHING}


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", set(NOTHING)), ("on", set(NOTHING)), ("off", set()), ("one_core, ctrl_c", {"one_core", "ctrl_c"})],
)
def test_the_environment_says_which(monkeypatch, value, expected):
    monkeypatch.setenv(VARIABLE, value)
    assert inside(None, "carrier") == {each: each in expected for each in NOTHING}


def test_a_word_that_is_no_effect_is_named(monkeypatch):
    monkeypatch.setenv(VARIABLE, "off,one_core")
    with pytest.raises(ConfigError, match="no effect is called 'off'; expected on, off, or of one_core"):
        kernbench.simulate().__enter__()


def test_simulate_takes_them_before_the_environment(monkeypatch):
    monkeypatch.setenv(VARIABLE, "off")
    seen = []
    with kernbench.simulate(host_effects=HostEffects(batch=False)) as ctx:
        ctx.multiprocessing.spawn(lambda rank: seen.append(observed()), nprocs=1)
    assert seen == [{"one_core": True, "batch": False, "frozen_heap": True, "ctrl_c": True}]
    with kernbench.simulate(host_effects=HostEffects.none()) as ctx:
        ctx.multiprocessing.spawn(lambda rank: seen.append(observed()), nprocs=2)
    assert seen[1:] == [NOTHING, NOTHING]


def test_cores_that_a_rank_chooses_are_its_own() -> None:
    """As a launcher binds each process to the cores near its GPU; the simulation keeps to its one core."""
    everything = sorted(_affinity(0))
    seen: list[set[int]] = [set(), set()]
    started: list[set[int]] = [set(), set()]

    def worker(rank: int) -> None:
        os.sched_setaffinity(0, {everything[rank % len(everything)]})
        dist.barrier()
        seen[rank] = os.sched_getaffinity(os.getpid())
        program = "import os; print(sorted(os.sched_getaffinity(0)))"
        started[rank] = set(
            eval(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout)
        )
        assert len(_affinity(0)) == 1
        with pytest.raises(OSError, match="Invalid argument"):
            os.sched_setaffinity(0, {1 << 14})

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(
            lambda rank: (dist.init_process_group(rank=rank, world_size=2), worker(rank)), nprocs=2
        )
    assert seen == started == [{everything[rank % len(everything)]} for rank in range(2)]
    assert _affinity(0) == set(everything)


def test_ranks_and_what_they_start_have_all_cores() -> None:
    """A loader's workers and a compiler's are not kept to the core that the ranks take turns on."""
    everything = _affinity(0)
    seen = []

    def worker(rank: int) -> None:
        assert len(_affinity(0)) == 1
        seen.append(os.sched_getaffinity(0))
        program = "import os; print(sorted(os.sched_getaffinity(0)))"
        seen.append(set(eval(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout)))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, repr(_affinity(0)).encode())
            os._exit(0)
        os.waitpid(child, 0)
        seen.append(eval(os.read(reader, 1000)))
        for end in (reader, writer):
            os.close(end)
        assert len(_affinity(0)) == 1

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert seen == [everything] * 3
    assert _affinity(0) == everything
