"""Ways to run one torch.distributed program over several ranks on this machine, all with the same signature.

Each *side* calls ``body(rank, world_size, *args)`` in every rank, with the default process group made, and returns the wall
seconds from the call to the end of the last rank. ``body`` returns a list of numbers; rank 0's comes back too.

Two of the sides are torch's own means for tests, in its private modules: they are here to be compared with, and a torch
without them makes the side raise ImportError.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing

import kernbench
from kernbench.cost.host_speed import one_intra_op_thread

_registry: Any = torch._C._distributed_c10d

Body = Callable[..., list[float] | None]

clock = time.perf_counter
"""The host's: inside simulated ranks the functions of ``time`` are virtual."""


class Run(NamedTuple):
    """One run: seconds from start to end, and what rank 0 returned."""

    seconds: float
    result: list[float]


def simulated(world_size: int, body: Body, *args: object) -> Run:
    """kernbench: ranks of one process, in turns."""
    result: list[float] = []

    def rank_body(rank: int) -> None:
        dist.init_process_group("gloo")
        found = body(rank, world_size, *args)
        if rank == 0:
            result.extend(found or [])

    with kernbench.simulate(nodes=-(-world_size // 8) if world_size > 8 else None) as ctx:
        begin = clock()
        ctx.multiprocessing.spawn(rank_body, nprocs=world_size)
        return Run(clock() - begin, result)


def forked(world_size: int, body: Body, *args: object) -> Run:
    """kernbench: ranks that are processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result")

        def rank_body(rank: int) -> None:
            dist.init_process_group("gloo")
            found = body(rank, world_size, *args)
            if rank == 0:
                with open(path, "w") as file:
                    json.dump(found or [], file)

        with kernbench.simulate(nodes=-(-world_size // 8) if world_size > 8 else None) as ctx:
            begin = clock()
            ctx.multiprocessing.spawn(rank_body, nprocs=world_size, isolation="process")
            seconds = clock() - begin
        with open(path) as file:
            return Run(seconds, json.load(file))


def threaded(world_size: int, body: Body, *args: object) -> Run:
    """torch's threaded process group: one thread per rank, all at once, no model of time."""
    from torch.testing._internal.distributed import multi_threaded_pg as of_torch

    result: list[float] = []
    errors: list[BaseException] = []
    store = dist.HashStore()

    def rank_body(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=world_size, store=store)
            found = body(rank, world_size, *args)
            if rank == 0:
                result.extend(found or [])
            dist.destroy_process_group()
        except BaseException as error:
            errors.append(error)
            of_torch.ProcessLocalGroup.exception_handle(error)

    with one_intra_op_thread():
        begin = clock()
        of_torch._install_threaded_pg()
        _registry._set_thread_isolation_mode(True)
        try:
            threads = [threading.Thread(target=rank_body, args=(rank,)) for rank in range(world_size)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            _registry._set_thread_isolation_mode(False)
            of_torch._uninstall_threaded_pg()
            of_torch.ProcessLocalGroup.reset()
        seconds = clock() - begin
    if errors:
        raise errors[0]
    return Run(seconds, result)


def local_tensors(world_size: int, body: Body, *args: object) -> Run:
    """torch's LocalTensorMode: the program runs once, on tensors that hold every rank's part."""
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with one_intra_op_thread():
        begin = clock()
        dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
        try:
            with LocalTensorMode(world_size):
                result = body(0, world_size, *args)
        finally:
            dist.destroy_process_group()
        return Run(clock() - begin, result or [])


def gloo(world_size: int, body: Body, *args: object) -> Run:
    """Real processes with gloo, one thread each."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result")
        begin = clock()
        torch.multiprocessing.spawn(_gloo_rank, args=(world_size, free_port(), path, body, args), nprocs=world_size)
        return Run(clock() - begin, torch.load(path))


def _gloo_rank(rank: int, world_size: int, port: int, path: str, body: Body, args: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    found = body(rank, world_size, *args)
    if rank == 0:
        torch.save(list(found or []), path)
    dist.destroy_process_group()


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class GlooProcesses:
    """Processes with gloo that stay, one thread each: a body runs in them without their start. A context manager."""

    def __init__(self, world_size: int) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._pipes, port = [], free_port()
        self._processes = []
        for rank in range(world_size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_stay, args=(rank, world_size, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        self._replies()

    def __enter__(self) -> GlooProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, body: Body, *args: object) -> Run:
        """Call ``body(rank, world_size, *args)`` in each; it must be importable. RuntimeError if one raises."""
        begin = clock()
        for pipe in self._pipes:
            pipe.send((body, args))
        return Run(clock() - begin, self._replies()[0])

    def _replies(self) -> list[list[float]]:
        """What each rank returned; if one failed, the others may wait for it for ever, and all end."""
        found: dict[int, list[float]] = {}
        while len(found) < len(self._pipes):
            waiting = {self._pipes[rank]: rank for rank in range(len(self._pipes)) if rank not in found}
            for pipe in connection.wait(list(waiting)):
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    trouble, found[rank] = self._pipes[rank].recv()
                except EOFError:
                    trouble = "its process has ended"
                if trouble:
                    self.close()
                    raise RuntimeError(f"gloo rank {rank}: {trouble}")
        return [found[rank] for rank in range(len(self._pipes))]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.join()


def _stay(rank: int, world_size: int, port: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    pipe.send(("", []))
    while True:
        try:
            body, args = pipe.recv()
        except EOFError:  # who started us has ended
            return
        try:
            reply: tuple[str, list[float]] = ("", list(body(rank, world_size, *args) or []))
        except Exception as error:
            reply = (f"{type(error).__name__}: {error}", [])
        pipe.send(reply)


@functools.cache
def lasting_gloo(world_size: int) -> GlooProcesses:
    """Processes that stay until this one ends."""
    return GlooProcesses(world_size)


def in_lasting_gloo(world_size: int, body: Body, *args: object) -> Run:
    """As :func:`gloo`, without the start of the processes."""
    return lasting_gloo(world_size).run(body, *args)


SIDES: dict[str, Callable[..., Run]] = {
    "kernbench": simulated,
    "processes": forked,
    "threaded": threaded,
    "local tensors": local_tensors,
    "gloo": gloo,
    "gloo, started before": in_lasting_gloo,
}
"""By the names that tables give them."""
