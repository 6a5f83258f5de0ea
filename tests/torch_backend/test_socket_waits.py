"""A rank that waits on a socket for another rank or thread: the others go on, and it is back no sooner than they are."""

from __future__ import annotations

import contextlib
import http.server
import os
import select
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state import socket_waits


class PipeSocket:
    """What of pyzmq's ``Socket`` and ``Poller`` waits, over a pipe of the system's."""

    closed = False

    def __init__(self, pipe: tuple[int, int]) -> None:
        self._read, self._write = pipe

    def send(self, data: bytes) -> None:
        os.write(self._write, data)

    def recv(self, flags: int = 0) -> bytes:
        if flags & 1:
            os.set_blocking(self._read, False)
        try:
            return os.read(self._read, 16)
        finally:
            os.set_blocking(self._read, True)

    def getsockopt(self, option: int) -> int:
        assert option == 15  # what has happened
        return len(select.select([self._read], [], [], 0)[0])

    def poll(self, timeout: int | None = None) -> list[int]:
        return select.select([self._read], [], [], None if timeout is None else timeout / 1e3)[0]


@pytest.fixture
def sockets() -> Iterator[list[PipeSocket]]:
    pipes = [os.pipe(), os.pipe()]
    patches = Patches()
    socket_waits.install_sockets(patches, SimpleNamespace(Socket=PipeSocket))
    socket_waits.install_pollers(patches, SimpleNamespace(Poller=PipeSocket))
    yield [PipeSocket(pipe) for pipe in pipes]
    patches.undo()
    for pipe in pipes:
        for end in pipe:
            os.close(end)


def _exchange(rank: int, there: PipeSocket, back: PipeSocket, out: str) -> None:
    dist.init_process_group("gloo")
    if rank == 0:
        assert there.poll(0) == []
        with pytest.raises(BlockingIOError):
            there.recv(1)
        heard = [there.poll() != [], there.recv()]
        told = time.perf_counter()
        time.sleep(0.5)
        back.send(b"answer")
    else:
        time.sleep(1.0)
        there.send(b"question")
        heard = [back.recv()]
        told = time.perf_counter()
    dist.barrier()
    (Path(out) / str(rank)).write_text(repr((heard, told)))


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_ranks_wait_for_each_other(isolation: Any, sockets: list[PipeSocket], tmp_path: Path) -> None:
    with kernbench.simulate(seed=1) as ctx:
        ctx.multiprocessing.spawn(_exchange, (*sockets, str(tmp_path)), nprocs=2, isolation=isolation)
    first, second = (eval((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert first[0] == [True, b"question"]
    assert second[0] == [b"answer"]
    assert first[1] == pytest.approx(1.0, abs=1e-3)
    assert second[1] == pytest.approx(1.5, abs=1e-3)


def _look(rank: int, there: PipeSocket, out: str) -> None:
    """As a scheduler that has nothing to do: it asks its socket and many clocks, again and again."""
    dist.init_process_group("gloo")
    if rank == 0:
        time.sleep(1.0)
        there.send(b"a request")
    else:
        looks, found = 0, b""
        while not found:
            looks += 1
            for _ in range(40):
                time.monotonic_ns()
            try:
                found = there.recv(1)
            except BlockingIOError:
                continue
        (Path(out) / "found").write_text(repr((found, looks, time.perf_counter())))
    dist.barrier()


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_looks_at_clocks_between_are_no_work(isolation: Any, sockets: list[PipeSocket], tmp_path: Path) -> None:
    with kernbench.simulate(seed=1) as ctx:
        ctx.multiprocessing.spawn(_look, (sockets[0], str(tmp_path)), nprocs=2, isolation=isolation)
    found, looks, at = eval((tmp_path / "found").read_text())
    assert found == b"a request"
    assert at == pytest.approx(1.0, abs=1e-4)
    assert looks < 20


def test_outside_a_rank_it_waits_as_ever(sockets: list[PipeSocket]) -> None:
    sockets[0].send(b"x")
    assert sockets[0].poll(1000)
    assert sockets[0].recv() == b"x"


def _subscribe(rank: int, address: str, out: str) -> None:
    """As vLLM makes its message queue: who publishes waits for all that subscribe, and they for its first message."""
    zmq: Any = __import__("zmq")
    dist.init_process_group("gloo")
    context = zmq.Context()
    socket = context.socket(zmq.XPUB if rank == 0 else zmq.SUB)
    if rank == 0:
        socket.setsockopt(zmq.XPUB_VERBOSE, True)
        socket.bind(address)
        dist.barrier()
        for _ in range(dist.get_world_size() - 1):
            socket.recv()
        time.sleep(1.0)
        socket.send(b"READY")
    else:
        dist.barrier()
        socket.setsockopt_string(zmq.SUBSCRIBE, "")
        socket.connect(address)
        heard = socket.poll(60_000), socket.recv(), time.perf_counter()
        (Path(out) / str(rank)).write_text(repr(heard))
    dist.barrier()
    socket.close(linger=0)
    context.term()


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_zeromqs_own_sockets(isolation: Any, tmp_path: Path) -> None:
    pytest.importorskip("zmq", reason="pyzmq is not installed")
    with kernbench.simulate(seed=1) as ctx:
        address = f"ipc://{tmp_path}/socket"
        ctx.multiprocessing.spawn(_subscribe, (address, str(tmp_path)), nprocs=3, isolation=isolation)
    for rank in (1, 2):
        events, message, told = eval((tmp_path / str(rank)).read_text())
        assert (events, message) == (1, b"READY")
        assert told == pytest.approx(1.0, abs=1e-3)


class _Server(http.server.BaseHTTPRequestHandler):
    """Gives more bytes than a socket's buffers hold, after half a second."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        data = bytes(8 << 20)
        time.sleep(0.5)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _ask(rank: int, out: str, own: bool) -> None:
    dist.init_process_group("gloo")
    where: list[Any] = [None]
    if rank == 0:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = [server.server_address[1]]
    dist.broadcast_object_list(where)
    found: tuple[int, float] | None = None
    if (rank == 0) == own:
        begin = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{where[0]}/") as answer:
            found = len(answer.read()), round(time.monotonic() - begin, 3)
    dist.barrier()
    (Path(out) / str(rank)).write_text(repr((found, time.monotonic())))


@pytest.mark.parametrize("own", [True, False])
def test_a_server_in_a_thread_of_a_rank_answers(own: bool, tmp_path: Path) -> None:
    found = []
    for isolation in ("carrier", "process"):
        with kernbench.simulate("dgx_h100", seed=1) as ctx:
            ctx.multiprocessing.spawn(_ask, (str(tmp_path), own), nprocs=2, isolation=isolation)
        found.append([eval((tmp_path / str(rank)).read_text()) for rank in range(2)])
    assert found[0] == found[1]
    assert found[0][0 if own else 1][0] == (8 << 20, 0.5)


def _meet(rank: int, out: str) -> None:
    dist.init_process_group("gloo")
    port: list[Any] = [None]
    listener = None
    if rank == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        port = [listener.getsockname()[1]]
    dist.broadcast_object_list(port)
    if listener is not None:
        end, _ = listener.accept()
        heard = end.recv(16)
        time.sleep(0.5)
        end.sendall(b"answer")
    else:
        time.sleep(1.0)
        end = socket.create_connection(("127.0.0.1", port[0]))
        end.sendall(b"question")
        heard = end.recv(16)
    (Path(out) / str(rank)).write_text(repr((heard, round(time.monotonic(), 2))))


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_ranks_meet_over_a_socket(isolation: Any, tmp_path: Path) -> None:
    with kernbench.simulate("dgx_h100", seed=1) as ctx:
        ctx.multiprocessing.spawn(_meet, (str(tmp_path),), nprocs=2, isolation=isolation)
    assert [eval((tmp_path / str(rank)).read_text()) for rank in range(2)] == [(b"question", 1.5), (b"answer", 1.5)]


def test_sockets_that_do_not_wait_are_pythons(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        here, there = socket.socketpair()
        here.setblocking(False)
        with pytest.raises(BlockingIOError):
            here.recv(1)
        with pytest.raises(BlockingIOError):
            there.recv(1, socket.MSG_DONTWAIT)
        there.settimeout(0.01)
        with pytest.raises(TimeoutError):
            there.recv(1)

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2)
    assert "recv" not in vars(socket.socket)


def _agree(rank: int, there: PipeSocket, out: str) -> None:
    """As the schedulers of a serving engine with tensor parallelism: one asks its sockets, and tells the other what came."""
    dist.init_process_group("gloo")
    schedulers = dist.new_group([0, 1])
    if rank == 2:
        time.sleep(1.0)
        there.send(b"a request")
    else:
        rounds, size = 0, torch.zeros(1, dtype=torch.long)
        while not size:
            rounds += 1
            if rank == 0:
                with contextlib.suppress(BlockingIOError):
                    size[0] = len(there.recv(1))
            dist.broadcast(size, 0, schedulers)
        (Path(out) / str(rank)).write_text(repr((rounds, time.perf_counter())))
    dist.barrier()


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_rounds_in_which_ranks_tell_each_other_that_there_is_nothing_are_no_work(
    isolation: Any, sockets: list[PipeSocket], tmp_path: Path
) -> None:
    with kernbench.simulate(seed=1) as ctx:
        ctx.multiprocessing.spawn(_agree, (sockets[0], str(tmp_path)), nprocs=3, isolation=isolation)
    for rank in range(2):
        rounds, at = eval((tmp_path / str(rank)).read_text())
        assert at == pytest.approx(1.0, abs=1e-3)
        assert rounds < 2000
