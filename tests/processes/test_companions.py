"""Processes of a command that are no ranks and live in its virtual time: clients, servers, schedulers of serving engines."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair
from typing import Any

import pytest

from kernbench.processes.channel import wires
from kernbench.processes.companion import CALL, COMPUTES, HOLLOW, REPORT, SPIN, TIMER, TOLD
from kernbench.processes.joined import Company, Joined
from kernbench.processes.shared_memory import unnamed_file
from kernbench.processes.stillness import Stillness
from kernbench.processes.timekeeper import Timekeeper
from kernbench.sim_engine import GraphEngine
from kernbench.simulation.ranks.serving_requests import Requests
from kernbench.topology import resolve_topology
from kernbench.trace.run_result import read_result

RUN = [sys.executable, "-m", "kernbench", "run", "--no-data", "--system", "dgx_h100", "--no-summary", "--"]
ENVIRON = {name: value for name, value in os.environ.items() if name != "CI"}

# A server's process: it works on the GPU for 20 products, says when it began and ended, and goes on until it hears "".
RANK = """
import time

def products(count):
    import torch
    begin = time.perf_counter()
    for _ in range(count):
        products.x @ products.x
    torch.cuda.synchronize()
    return begin, time.perf_counter()

def begin_rank():
    import torch, torch.distributed as dist
    dist.init_process_group("nccl", "tcp://localhost:29531", rank=0, world_size=1)
    products.x = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)

def work(pipe):
    begin_rank()
    pipe.send("ready")
    while (said := pipe.recv()):
        pipe.send(products(said))
"""

PIPES = """
import multiprocessing as mp, os, sys, threading, time
import aiohttp
from rank import work

if __name__ == "__main__":
    mine, theirs = mp.Pipe()
    server = mp.get_context("spawn").Process(target=work, args=(theirs,))
    server.start()
    mine.recv()
    seen = []
    for pause in (0.5, 0.001):
        time.sleep(pause)
        asked = time.perf_counter()
        mine.send(20)
        in_time = mine.poll(0.01)
        at = time.perf_counter()
        began, ended = mine.recv()
        seen.append((in_time, at - asked, began - asked, ended - asked, time.perf_counter() - asked))
    mine.send(0)
    server.join()
    print(seen)
"""

ENGINE = """
import multiprocessing as mp, time
import aiohttp, kernbench
from rank import work

if __name__ == "__main__":
    mine, theirs = mp.Pipe()
    mp.get_context("spawn").Process(target=work, args=(theirs,)).start()
    mine.recv()
    kernbench.report_request("first", "arrived", tokens=7)
    for step in range(3):
        mine.send(20)
        mine.recv()
        kernbench.report_request("first", "token")
        kernbench.report_engine_step(prefill=0 if step else 7, decode=1 if step else 0, running=1)
    kernbench.report_request("first", "ended")
    mine.send(0)
"""

THREAD = """
import multiprocessing as mp, queue, threading, time
import aiohttp
from rank import begin_rank, products

def serve(pipe):
    begin_rank()
    came = queue.Queue()

    def listen():
        while True:
            came.put(pipe.recv())

    threading.Thread(target=listen, daemon=True).start()
    pipe.send("ready")
    while (said := came.get()):
        products(said)
        pipe.send("done")

if __name__ == "__main__":
    mine, theirs = mp.Pipe()
    server = mp.get_context("spawn").Process(target=serve, args=(theirs,))
    server.start()
    mine.recv()
    seen = []
    for pause in (0.0, 0.5, 0.5):
        time.sleep(pause)
        asked = time.perf_counter()
        mine.send(20)
        mine.recv()
        seen.append(time.perf_counter() - asked)
    mine.send(0)
    server.join()
    print(seen)
"""

SHARED_MEMORY = """
import multiprocessing as mp, os, time
from multiprocessing.shared_memory import SharedMemory
import aiohttp
from rank import begin_rank, products

def serve(name, ready):
    memory = SharedMemory(name)
    begin_rank()
    ready.set()
    for turn in range(1, 4):
        while memory.buf[0] != turn:
            os.sched_yield()
        products(10)
        memory.buf[1] = turn

if __name__ == "__main__":
    memory = SharedMemory(create=True, size=2)
    ready = mp.get_context("spawn").Event()
    server = mp.get_context("spawn").Process(target=serve, args=(memory.name, ready))
    server.start()
    ready.wait()
    seen = []
    for turn in range(1, 4):
        asked = time.perf_counter()
        memory.buf[0] = turn
        while memory.buf[1] != turn:
            os.sched_yield()
        seen.append(time.perf_counter() - asked)
        time.sleep(0.1)
    server.join()
    memory.close(); memory.unlink()
    print(seen)
"""

SOCKETS = """
import asyncio, multiprocessing as mp, random, sys, time
import aiohttp
from rank import work

async def serve(pipe):
    async def answer(reader, writer):
        while (line := await reader.readline()):
            async with one:
                pipe.send(int(line))
                await asyncio.to_thread(pipe.recv)
            writer.write(line)
            await writer.drain()
        writer.close()
    one = asyncio.Lock()
    return await asyncio.start_server(answer, "127.0.0.1", 0)

async def ask(port, at, count):
    await asyncio.sleep(at)
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"%d\\n" % count)
    try:
        await asyncio.wait_for(reader.readline(), 0.045)
        late = False
    except asyncio.TimeoutError:
        late = True
    writer.close()
    return round(begin - at, 9), late, round(time.perf_counter() - begin, 9)

async def main():
    mine, theirs = mp.Pipe()
    worker = mp.get_context("spawn").Process(target=work, args=(theirs,))
    worker.start()
    mine.recv()
    server = await serve(mine)
    port = server.sockets[0].getsockname()[1]
    begin = time.perf_counter()
    found = await asyncio.gather(*[ask(port, at, 20) for at in (0.0, 0.1, 0.11, 0.12)])
    print([(a - begin, *rest) for a, *rest in found])
    await asyncio.sleep(1)
    mine.send(0)
    worker.join()

if __name__ == "__main__":
    asyncio.run(main())
"""

# Two messages at one virtual moment, the machine at work between them: a server answers how many it has found
BATCHES = """
import asyncio, multiprocessing as mp, os, queue, socket, sys, threading, time
import aiohttp

def work(seconds=0.03):
    begin = os.times()
    while sum(os.times()[:2]) < sum(begin[:2]) + seconds:
        pass

def serve(pipe, port):
    arrived = queue.Queue()
    def listen():
        while (said := pipe.recv()) is not None:
            arrived.put(said)
        arrived.put(None)
    threading.Thread(target=listen).start()
    pipe.send("ready")
    while arrived.get() is not None:
        work(0.01)
        found = 1
        while not arrived.empty():
            arrived.get()
            found += 1
        pipe.send(found)
    with socket.create_connection(("127.0.0.1", port)) as end:
        while (said := end.recv(100)):
            work(0.01)
            end.sendall(b"%d" % len(said))

async def talk(ours):
    loop = asyncio.get_running_loop()
    end, _ = await loop.sock_accept(ours)
    for _ in range(3):
        for _ in range(2):
            await loop.sock_sendall(end, b"x")
            work()
        print(int(await loop.sock_recv(end, 100)))
    end.settimeout(10)
    begin = time.perf_counter()
    try:
        end.recv(100)
    except TimeoutError:
        print(time.perf_counter() - begin)
    end.close()

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as ours:
        mine, theirs = mp.Pipe()
        server = mp.get_context("spawn").Process(target=serve, args=(theirs, ours.getsockname()[1]))
        server.start()
        mine.recv()
        for _ in range(3):
            for _ in range(2):
                mine.send("a request")
                work()
            print(mine.recv())
        mine.send(None)
        ours.setblocking(False)
        asyncio.run(talk(ours))
        server.join()
"""

# Two threads accept connections without a limit, and two look at one selector: what comes is for one of them
SEVERAL = """
import selectors, socket, threading, time
import aiohttp

def accept(server):
    end, _ = server.accept()
    accepted.append(round(time.perf_counter()))
    end.close()

def look(name):
    found = seen.select()
    if reading.recv(1):
        looked.append(len(found))

accepted, looked = [], []
with socket.create_server(("127.0.0.1", 0)) as server:
    threads = [threading.Thread(target=accept, args=(server,)) for _ in range(2)]
    for each in threads:
        each.start()
    for _ in range(2):
        time.sleep(1)
        with socket.create_connection(server.getsockname()):
            time.sleep(1)
    for each in threads:
        each.join()
reading, writing = socket.socketpair()
seen = selectors.DefaultSelector()
seen.register(reading, selectors.EVENT_READ)
threads = [threading.Thread(target=look, args=(at,)) for at in range(2)]
for each in threads:
    each.start()
for _ in range(2):
    time.sleep(1)
    writing.send(b"x")
for each in threads:
    each.join()
print([accepted, looked])
"""

# A server that waits for its threads is to end, and handles it
ENDED = """
import multiprocessing as mp, queue, signal, threading, time
import aiohttp
from rank import begin_rank, products

def serve(pipe):
    begin_rank()
    arrived = queue.Queue()
    signal.signal(signal.SIGTERM, lambda *_: arrived.put(None))
    def listen():
        while True:
            arrived.put(pipe.recv())
    threading.Thread(target=listen, daemon=True).start()
    pipe.send("ready")
    while (said := arrived.get()) is not None:
        pipe.send(products(said))
    raise SystemExit(3)

if __name__ == "__main__":
    mine, theirs = mp.Pipe()
    server = mp.get_context("spawn").Process(target=serve, args=(theirs,))
    server.start()
    mine.recv()
    mine.send(1)
    mine.recv()
    time.sleep(1)
    begin = time.perf_counter()
    server.terminate()
    server.join(30)
    print([time.perf_counter() - begin, server.exitcode])
"""

LIMITS = """
import aiohttp, asyncio, queue, select, selectors, subprocess, threading, time
from concurrent.futures import ThreadPoolExecutor

def took(call, *args):
    begin = time.monotonic()
    try:
        call(*args)
    except (queue.Empty, subprocess.TimeoutExpired):
        pass
    return time.monotonic() - begin

waits = [
    took(time.sleep, 100), took(threading.Event().wait, 200), took(lambda: queue.Queue().get(timeout=300)),
    took(lambda: asyncio.run(asyncio.sleep(400))), took(lambda: selectors.DefaultSelector().select(500)),
    took(lambda: threading.Timer(600, print).run()), took(lambda: threading.Semaphore(0).acquire(timeout=700)),
]
with ThreadPoolExecutor(3) as pool:
    waits.append(took(lambda: list(pool.map(time.sleep, (800, 700, 600)))))
event = threading.Event()
threading.Timer(50, event.set).start()
waits.append((event.wait(1000), took(event.wait, 1000)))
print([waits, round(time.time())])
"""


def _run(tmp_path: Path, script: str) -> Any:
    return ast.literal_eval(_output(tmp_path, script))


def _output(tmp_path: Path, script: str, run: list[str] = RUN) -> str:
    found = _ran(tmp_path, script, run)
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout


def _ran(tmp_path: Path, script: str, run: list[str] = RUN) -> subprocess.CompletedProcess[str]:
    (tmp_path / "aiohttp.py").write_text("'A package by which processes talk to others.'")
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "script.py").write_text(script)
    environ = {**ENVIRON, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    return subprocess.run(
        [*run, sys.executable, "script.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600
    )


def test_a_client_waits_for_a_rank_in_virtual_time(tmp_path: Path) -> None:
    for in_time, at, began, ended, answered in _run(tmp_path, PIPES):
        assert not in_time, "its limit has passed before the rank had ended"
        assert at == pytest.approx(0.01, abs=1e-6)
        assert began == pytest.approx(0.0, abs=1e-5)
        assert answered == pytest.approx(ended, abs=1e-5)
        assert 0.02 < ended < 0.04, "20 products of 1.1e12 operations each, at 6 to 8e14 a second"


@pytest.mark.long  # processes that import torch
def test_a_thread_of_a_rank_brings_what_a_client_asks(tmp_path: Path) -> None:
    first, *others = _run(tmp_path, THREAD)
    assert 0.02 < first < 0.04
    assert others == pytest.approx([first, first], rel=1e-3)


@pytest.mark.long  # processes that import torch
def test_an_engine_whose_scheduler_is_no_rank_tells_of_its_requests(tmp_path: Path) -> None:
    run = [*RUN[:-1], "--json", "result.json", "--"]
    assert _output(tmp_path, ENGINE, run) == ""
    found = read_result(tmp_path / "result.json").serving
    assert found is not None
    assert (found.requests, found.ended, found.prompt_tokens, found.generated_tokens, found.steps) == (1, 1, 7, 3, 3)
    assert found.tpot.mean == pytest.approx(found.ttft.mean, rel=1e-3)
    assert 0.02 < found.tpot.mean < 0.04


@pytest.mark.long
def test_loops_that_look_at_shared_memory(tmp_path: Path) -> None:
    took = _run(tmp_path, SHARED_MEMORY)
    assert max(took) - min(took) < 1e-4
    assert 0.01 < took[0] < 0.02


@pytest.mark.long  # processes that import torch
def test_a_server_over_sockets_and_its_clients(tmp_path: Path) -> None:
    first = _run(tmp_path, SOCKETS)
    assert [at for at, _, _ in first] == pytest.approx([0.0, 0.0, 0.0, 0.0], abs=1e-6)
    alone = first[0][2]
    assert 0.02 < alone < 0.04
    assert [late for _, late, _ in first] == [False, False, True, True]
    assert first[1][2] == pytest.approx(alone, abs=1e-5)
    assert first[2][2] == first[3][2] == pytest.approx(0.045)
    assert _run(tmp_path, SOCKETS) == first


def test_what_is_sent_at_one_time_is_found_at_once(tmp_path: Path) -> None:
    """A process goes on when all others have done what they can, however quick it is beside them."""
    *found, waited = _output(tmp_path, BATCHES).split()
    assert found == ["2"] * 6
    assert float(waited) == pytest.approx(10, abs=1e-6), "the limit of a socket is virtual"


def test_what_comes_is_for_one_of_several_threads(tmp_path: Path) -> None:
    assert _run(tmp_path, SEVERAL) == [[1, 3], [1, 1]]


@pytest.mark.long
def test_a_rank_that_waits_handles_a_signal(tmp_path: Path) -> None:
    assert ast.literal_eval(_ran(tmp_path, ENDED).stdout) == [0.0, 3]


def test_limits_of_waits_are_virtual(tmp_path: Path) -> None:
    *waits, (told, after), now = _flat(_run(tmp_path, LIMITS))
    assert waits == pytest.approx([100, 200, 300, 400, 500, 600, 700, 800], abs=1e-6)
    assert (told, after) == (True, 0.0)
    assert now == 1_577_836_800 + 3600 + 50


def _flat(found: Any) -> list[Any]:
    waits, now = found
    return [*waits, now]


def test_stillness() -> None:
    mine, theirs = Pipe()
    script = "import sys\nwhile (line := sys.stdin.readline()):\n  while line == 'spin\\n': pass"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, text=True) as process:
        stillness = Stillness(lambda: [process.pid])
        try:
            _await(lambda: stillness.at_work() == 0)
            assert process.stdin is not None
            process.stdin.write("spin\n")
            process.stdin.flush()
            _await(lambda: stillness.at_work() == process.pid)
            assert {stillness.at_work() for _ in range(20)} == {process.pid}
        finally:
            process.kill()
    assert stillness.at_work() == 0
    mine.close()
    theirs.close()


def test_children_count(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["sh", "-c", "while :; do :; done & echo $!; wait"], stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        child, stillness = int(shell.stdout.readline()), Stillness(lambda: [shell.pid])
        try:
            _await(lambda: stillness.at_work() == child)
        finally:
            os.kill(child, 9)


def test_a_process_that_begins_between_two_looks_is_seen() -> None:
    script = "import os, sys\nsys.stdin.readline()\nif not os.fork():\n  while True: pass\nsys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, text=True) as process:
        stillness = Stillness(lambda: [process.pid])
        assert process.stdin is not None
        _await(lambda: stillness.at_work() == 0)
        process.stdin.write("go\n")
        process.stdin.flush()
        _await(lambda: stillness.at_work() not in {0, process.pid})
        os.kill(stillness.at_work(), 9)
        process.kill()
    stillness.close()


def _await(true: Any) -> None:
    while not true():
        pass


def test_who_does_not_know_the_key_is_not_heard() -> None:
    keeper, name, key = _keeper()
    for shown, active in ((b"0" * len(key), False), (key, True)):
        with socket(AF_UNIX, SOCK_SEQPACKET) as end:
            end.connect(name)
            end.send(shown)
            end.send(CALL.pack(TIMER, 1, 5.0))
            keeper.take()
            keeper.take()
            assert keeper.active is active
    keeper.close()


def _keeper() -> tuple[Timekeeper, str, bytes]:
    """One, the name of its socket, and its key."""
    keeper = Timekeeper(GraphEngine(resolve_topology("dgx_h100").topology_obj), Requests(), print, print)
    name, key, *_ = next(iter(keeper.variables.values())).split(" ")
    return keeper, "\0" + name, key.encode()


@pytest.mark.parametrize(("data", "said"), [(True, COMPUTES), (False, HOLLOW)])
def test_companions_know_whether_values_are_computed_and_make_remarks(data: bool, said: str) -> None:
    remarks: list[str] = []
    engine = GraphEngine(resolve_topology("dgx_h100").topology_obj, enable_data=data)
    keeper = Timekeeper(engine, Requests(), remarks.append, print)
    name, key, computes, _ = next(iter(keeper.variables.values())).split(" ")
    assert computes == said
    with socket(AF_UNIX, SOCK_SEQPACKET) as end:
        end.connect("\0" + name)
        end.send(key.encode())
        end.send(REPORT + b'["remark", "assumed: something"]')
        keeper.take()
    assert remarks == ["assumed: something"]
    keeper.close()


def test_what_a_rank_has_said_when_all_stand_still_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may speak, and sleep until it is answered, between a look at its socket and the look at its threads."""
    keeper, name, key = _keeper()
    here, there = wires()
    lifeline, theirs = socketpair()
    launcher, running = os.pipe()
    member = Joined(0, os.getpid(), here, (unnamed_file(), unnamed_file(), lifeline.detach()))
    company = Company({0: member}, launcher, keeper)

    def stands_still() -> bool:
        there.send("said")
        return True

    monkeypatch.setattr(keeper, "stands_still", stands_still)
    with theirs, socket(AF_UNIX, SOCK_SEQPACKET) as end:
        end.connect(name)
        end.send(key)
        keeper.take()
        assert company.await_input(member) is True
    assert here.receive() == "said"
    company.close()
    there.close()
    keeper.close()
    os.close(launcher)
    os.close(running)


def test_a_process_that_joins_does_so_before_time_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, name, key = _keeper()
    monkeypatch.setattr(keeper, "stands_still", lambda: True)
    with socket(AF_UNIX, SOCK_SEQPACKET) as end, socket(AF_UNIX) as listener, socket(AF_UNIX) as joins:
        listener.bind("")
        listener.listen()
        end.connect(name)
        end.send(key)
        end.send(CALL.pack(TIMER, 1, 5.0))
        keeper.take()
        joins.connect(listener.getsockname())
        assert keeper.let_pass(listener) == 0.0
        end.setblocking(False)
        with pytest.raises(BlockingIOError):
            end.recv(TOLD.size)
        listener.accept()[0].close()
        assert keeper.let_pass(listener) == 0.0
        assert TOLD.unpack(end.recv(TOLD.size)) == (1,)
    keeper.close()


@pytest.mark.parametrize("what", [SPIN, TIMER])
def test_companions_go_on_in_their_order_however_quick_they_are(what: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, name, key = _keeper()
    monkeypatch.setattr(keeper._stillness, "at_work", lambda: 0)
    told: list[int] = []
    with socket(AF_UNIX, SOCK_SEQPACKET) as first, socket(AF_UNIX, SOCK_SEQPACKET) as second:
        for end in (first, second):
            end.connect(name)
            end.send(key)
            keeper.take()
        for number, end in ((1, second), (2, first), (3, second)):
            end.send(CALL.pack(what, number, 5.0))
            keeper.take()
        for each in keeper._companions.values():
            monkeypatch.setattr(each, "tell", told.append)
        with socket(AF_UNIX) as listener:
            listener.bind("")
            listener.listen()
            while len(told) < 3:
                keeper.let_pass(listener)
    assert told == [2, 1, 3]
    keeper.close()
