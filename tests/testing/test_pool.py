"""The pool of resources: what it grants, to whom, in which order, and what a crash leaves behind."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from kernbench.errors import ConfigError
from kernbench.testing.pool import OVERTAKINGS, Capacity, ResourceError, ResourcePool, ResourceRequest, workers_that_fit
from kernbench.testing.sizes import parse_size

GB = 10**9
PORTS = (27900, 64)


def pool(directory: Path, *, devices: int = 2, memory: int = 10 * GB) -> ResourcePool:
    return ResourcePool(directory, Capacity((memory,) * devices, PORTS))


def test_memory_of_a_device_is_shared_until_it_is_full(tmp_path: Path) -> None:
    mine, other = pool(tmp_path), pool(tmp_path)
    first = mine.acquire(ResourceRequest(1, 6 * GB))
    second = other.acquire(ResourceRequest(1, 6 * GB))
    assert {first.devices, second.devices} == {(0,), (1,)}
    third = other.acquire(ResourceRequest(2, 4 * GB))
    assert third.devices == (0, 1)
    with pytest.raises(ResourceError, match=r"1 device with 1 GB each did not come free within 0 s; 3 tests hold"):
        mine.acquire(ResourceRequest(1, 1 * GB), timeout=0)
    other.release(second)
    assert mine.acquire(ResourceRequest(1, 6 * GB), timeout=0).devices == second.devices


def test_ports_differ_and_are_free(tmp_path: Path) -> None:
    one, two = pool(tmp_path), pool(tmp_path)
    with socket.create_server(("127.0.0.1", PORTS[0])):
        first, second = one.acquire(ResourceRequest(ports=3)), two.acquire(ResourceRequest(ports=3))
    assert PORTS[0] not in first.ports
    assert len({*first.ports, *second.ports}) == 6


def test_what_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="3 devices with 1 GB each asked for, but the devices have 10 GB, 10 GB"):
        pool(tmp_path).acquire(ResourceRequest(3, GB))
    with pytest.raises(ResourceError, match="65 ports asked for, but the pool has 64"):
        pool(tmp_path).acquire(ResourceRequest(ports=65))


def test_a_waiting_request_is_overtaken_a_bounded_number_of_times(tmp_path: Path) -> None:
    one, two, three = (pool(tmp_path) for _ in range(3))
    held = one.acquire(ResourceRequest(1, 10 * GB))
    with two._state() as state:  # a request waits for both devices
        state["queue"].append({"id": "large", "owner": two.owner, "overtaken": 0})
    for _ in range(OVERTAKINGS):
        with three.granted(ResourceRequest(1, GB), timeout=0):
            pass
    with pytest.raises(ResourceError):
        three.acquire(ResourceRequest(1, GB), timeout=0)
    one.release(held)
    with two._state() as state:
        assert two._try(state, "large", ResourceRequest(2, 10 * GB)) is not None


def _hold_and_die(directory: Path, wait: bool) -> None:
    mine = pool(directory)
    mine.acquire(ResourceRequest(2, 10 * GB, 4))
    if wait:
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_the_dead_held_is_granted_again(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(tmp_path, False))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert pool(tmp_path).acquire(ResourceRequest(2, 10 * GB, PORTS[1]), timeout=0).devices == (0, 1)
    assert len(list(tmp_path.glob("lease-*"))) <= 2


def test_closing_gives_everything_back(tmp_path: Path) -> None:
    mine = pool(tmp_path)
    mine.acquire(ResourceRequest(2, 10 * GB, 1))
    mine.close()
    mine.close()
    assert pool(tmp_path).acquire(ResourceRequest(2, 10 * GB), timeout=0)


# -- stress ----------------------------------------------------------------------------------------------------------

_DEVICES, _STRESS_PORTS = 4, (28900, 24)


def _worker(directory: Path, index: int, tests: int) -> None:
    """Takes and returns resources at random. Each thing held is locked in a second way, which shows what is held twice."""
    rng = random.Random(index)
    mine = ResourcePool(directory / "pool", Capacity((10 * GB,) * _DEVICES, _STRESS_PORTS))
    for _ in range(tests):
        request = ResourceRequest(rng.randint(0, _DEVICES), 10 * GB, rng.randint(0, 3))
        with mine.granted(request, timeout=300) as grant:
            handles = [_lock(directory / f"{kind}-{at}") for kind, held in
                       (("device", grant.devices), ("port", grant.ports)) for at in held]  # fmt: skip
            time.sleep(rng.random() * 0.004)
            for handle in handles:
                os.close(handle)
        with (directory / "done").open("a") as done:
            done.write("x")
    mine.close()


def _lock(path: Path) -> int:
    """Lock a file; a process that has just been killed needs a moment to let go of its own."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR)
    for _ in range(50):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            return handle
    (path.parent / "violations").open("a").write(f"{path.name} is held twice\n")
    return handle


def _stress(directory: Path, workers: int, tests: int, kills: int) -> None:
    directory.joinpath("done").touch()
    context, rng = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn"), random.Random(7)
    each = -(-tests // workers)
    living = [context.Process(target=_worker, args=(directory, at, each)) for at in range(workers)]
    for process in living:
        process.start()
    everyone = list(living)
    for at in range(kills):
        time.sleep(0.05 + rng.random() * 0.1)
        victim = rng.choice([process for process in living if process.is_alive()] or living)
        victim.kill()
        living.remove(victim)
        replacement = context.Process(target=_worker, args=(directory, workers + at, each))
        replacement.start()
        living.append(replacement)
        everyone.append(replacement)
    for process in everyone:
        process.join(300)
    assert all(process.exitcode == 0 for process in living)
    assert not (directory / "violations").exists()
    assert (directory / "done").stat().st_size >= tests
    last = ResourcePool(directory / "pool", Capacity((10 * GB,) * _DEVICES, _STRESS_PORTS))
    assert last.acquire(ResourceRequest(_DEVICES, 10 * GB, _STRESS_PORTS[1]), timeout=0).devices == tuple(
        range(_DEVICES)
    )


def test_stress(tmp_path: Path) -> None:
    _stress(tmp_path, workers=5, tests=100, kills=5)


@pytest.mark.skipif(os.environ.get("KERNBENCH_STRESS") != "full", reason="KERNBENCH_STRESS=full runs it")
@pytest.mark.timeout(900)
def test_stress_in_full(tmp_path: Path) -> None:
    _stress(tmp_path, workers=24, tests=500, kills=24)


# -- small things ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "size"), [("2GB", 2 * GB), ("1.5 MiB", 3 << 19), (7, 7), ("12", 12)])
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


def test_wrong_sizes() -> None:
    with pytest.raises(ConfigError, match="'2 lots'"):
        parse_size("2 lots")


def test_workers_that_fit() -> None:
    assert workers_that_fit(Capacity((16 * GB, 9 * GB)), 5 * GB) == 4
    assert workers_that_fit(Capacity((4 * GB,)), 5 * GB) == 1
