"""A rank that waits on a socket of ZeroMQ's for another rank: the others go on, and it is back no sooner than they are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

import kernbench
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state import socket_waits


class PipeSocket:
    """What of pyzmq's ``Socket`` and ``Poller`` waits, over a pipe of the system's."""

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

    def poll(self, timeout: int | None = None) -> list[int]:
        import select

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
