"""Threads that a rank's program starts, and calls that it gives to pools of threads: they take turns as ranks do.

Whose turn comes when is :mod:`.rank_threads`' business, where a thread waits :mod:`.thread_waits`'. Here is
where it begins and ends, and what it needs of torch: the rank's process groups, in Python and in C++, and a recorder.

A pool may be used by several ranks: a call is the business of the rank that made it, whichever rank has started the thread.
"""

from __future__ import annotations

import functools
import multiprocessing.pool
import multiprocessing.resource_sharer
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent import futures
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch.distributed.distributed_c10d

from kernbench.scheduler import user_traceback
from kernbench.scheduler.carrier import current_carrier, has_own_thread
from kernbench.scheduler.crew import (
    Crew,
    Member,
    TakesTurns,
    acting_crew,
    acts_for_a_rank,
    current_member,
    found,
    going_on,
    is_forked,
)
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.time.notices import Notice
from kernbench.simulation.time.rank_threads import RankThreads
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.device.thread_state import ThreadState
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state import event_loops, socket_waits, thread_waits
from kernbench.torch_backend.rank_state.listed_threads import ListedThreads
from kernbench.torch_backend.rank_state.thread_looks import Looks
from kernbench.torch_backend.relies_on import Reliance

c10d: Any = torch.distributed.distributed_c10d
_registry: Any = torch._C._distributed_c10d
_Thread: Any = threading.Thread
_WorkItem: Any = futures.thread._WorkItem
_Executor: Any = futures.ThreadPoolExecutor
_stock_init, _stock_start, _stock_join = _Thread.__init__, _Thread.start, _Thread.join
_stock_is_alive = _Thread.is_alive
_stock_submit, _stock_make, _stock_run = _Executor.submit, _WorkItem.__init__, _WorkItem.run

RELIES_ON = (
    Reliance("threading.Thread", "its body is an attribute, `run`, and what it is given one, `_args`", has=(
        "__init__", "start", "join", "run",
    ), holds=lambda thread: "_args" in vars(thread())),
    Reliance("multiprocessing.pool.Pool._handle_workers", "it is what one thread of a pool of processes does"),
    Reliance("multiprocessing.resource_sharer._ResourceSharer._serve", "it is what hands on descriptors"),
    Reliance("concurrent.futures.thread._worker", "it is what the threads of a pool do"),
    Reliance("concurrent.futures.thread._WorkItem", "a call of a pool, which `submit` makes and a thread runs", has=(
        "__init__", "run",
    )),
    Reliance("torch.distributed.distributed_c10d._world", "groups by name are noted there"),
    Reliance("torch._C._distributed_c10d", "C++ finds a group by its name, each thread its own", has=(
        "_register_process_group", "_unregister_process_group",
    )),
)  # fmt: skip

_keeps_workers: Any = multiprocessing.pool.Pool._handle_workers  # type: ignore[attr-defined]

_OWN = ("stream", "sip", "streams_elsewhere", "unrecorded", "each", "untimed", "watcher")
"""What of a host is the running thread's, not the rank's."""


def _nothing() -> None:
    """There is nothing to do."""


class SideThreads:
    """The threads of the ranks of one spawn.

    Args:
        recorder: a block in which what the thread computes for a rank is recorded.
        device: of a host.

    Attributes:
        before_daemons: called before the first daemon begins.
    """

    def __init__(
        self,
        simulation: Simulation,
        recorder: Callable[[int], AbstractContextManager[None]],
        device: Callable[[Host], RankDevice],
    ) -> None:
        self._simulation = simulation
        self._device = device
        self._threads = simulation.threads
        self._recorder = recorder
        self._promised: dict[int, weakref.WeakSet[Any]] = {}
        self._pools: weakref.WeakKeyDictionary[Any, _Pool] = weakref.WeakKeyDictionary()
        self._ends: weakref.WeakKeyDictionary[threading.Thread, _End] = weakref.WeakKeyDictionary()
        self._submitted = _Submitted()
        self._listed = ListedThreads()
        self.before_daemons: Callable[[], None] = _nothing

    def install(self, patches: Patches) -> None:
        """Replace where threads begin and wait."""
        patches.set(_Thread, "__init__", _init)
        patches.set(_Thread, "start", self._starts())
        patches.set(_Thread, "join", self._joins())
        patches.set(_Thread, "is_alive", self._lives())
        patches.set(futures.ThreadPoolExecutor, "submit", self._submits())
        patches.set(_WorkItem, "__init__", self._makes())
        patches.set(_WorkItem, "run", _runs())
        self._listed.install(patches)
        looks = Looks(self._simulation.looks)
        looks.install(patches)
        thread_waits.install(patches, self._threads, looks)
        event_loops.install(patches, self._threads, self._simulation.remarks.setdefault)
        socket_waits.install(patches)

    def finish(self, rank: int) -> None:
        """At the end of a rank's program, as Python does at its end: wait for threads that are no daemons, and for what pools
        have been asked for."""
        crew = acting_crew()
        if crew is None:
            return
        futures.wait(list(self._promised.pop(rank, ())))
        try:
            while crew.threads:
                thread = crew.threads.pop()
                if thread.is_alive():
                    self._threads.linger(rank, thread.name)
                thread.join()
        finally:
            self._threads.linger(rank, "")

    def close(self, rank: int) -> None:
        """A rank has ended: so do its threads."""
        self._promised.pop(rank, None)
        crew = acting_crew()
        if crew is not None:
            self._threads.close(crew)
            found(None)

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _starts(self) -> Callable[[threading.Thread], None]:
        @functools.wraps(_stock_start)
        def start(thread: threading.Thread) -> None:
            crew = None if _serves_descriptors(thread) else self._crew()
            if crew is None:
                _stock_start(thread)
                return
            self._listed.belongs_to(thread, crew.rank)
            if getattr(thread, "_target", None) is futures.thread._worker:  # calls say whose they are
                pool = self._pool(vars(thread)["_args"][0]())
                if pool is not None:
                    self._ends[thread] = pool.end
            else:
                self._start_side(crew, thread)
            with going_on():  # it waits for the thread to be there, and who starts one may hold a lock (pools do)
                _stock_start(thread)

        return start

    def _start_side(self, crew: Crew, thread: threading.Thread) -> None:
        begin = functools.partial(self._threads.begin, crew, thread.name, thread.daemon, thread)
        end = self._ends[thread] = _End(self._threads, running=1)
        if thread.daemon:
            self.before_daemons()
            self.before_daemons = _nothing
            member = self._member(crew, lambda: _Ending(_asking(self._threads, begin), end))
            if not _keeps_workers_of_pool(thread):
                self._threads.free.watch(crew, thread)
        else:
            acts_for_a_rank()  # turns begin in a turn, and a daemon may have none yet
            turns = begin(ready=True)
            member = self._member(crew, lambda: _Ending(turns, end))
            crew.threads = [each for each in crew.threads if each.is_alive()] + [thread] * (not thread.daemon)
        body = _told(thread)

        def run() -> None:
            with suppress(_Ended):
                member(body, at_once=not thread.daemon)
            if end.running:  # it has taken no turns
                end.over()

        thread.run = run  # type: ignore[method-assign]

    def _member(self, crew: Crew, turns: Callable[[], TakesTurns]) -> Callable[..., Any]:
        """Runs a side thread's body; whose program starts it now."""
        world, member = dict(vars(c10d._world)), Member(crew, turns, functools.partial(self._join_torch, crew.rank))

        def run(body: Callable[[], Any], *, at_once: bool) -> Any:
            vars(c10d._world).update(world)  # what its rank knows of torch.distributed
            member.begin()
            try:
                if at_once:
                    member.act()
                return body()
            except SystemExit as error:
                if crew.closed:
                    raise _Ended from error
                raise
            finally:
                member.end()

        return run

    def _crew(self) -> Crew | None:
        """The crew to which a thread that is started now belongs."""
        member = current_member()
        if is_forked():
            return None
        if member is not None:
            return member.crew
        if not has_own_thread() or (crew := acting_crew()) is not None:
            return acting_crew()
        simulation = self._simulation
        carrier = current_carrier()
        rank = simulation.hosts.current_rank()
        host = simulation.hosts.of_rank[rank]
        watcher, device = host.watcher, self._device(host)

        def read() -> Any:
            return (device.doing, *(getattr(host, name) for name in _OWN))

        def write(own: Any) -> None:
            if own is None:
                sip = device.sip_of_new_thread()
                own = (ThreadState(), host.default_stream(sip), sip, {}, False, None, False, watcher)
            device.doing, *values = own
            for name, value in zip(_OWN, values, strict=True):
                setattr(host, name, value)

        crew = self._threads.crew(rank, read, write)
        if crew is not None and not (carrier is not None and crew.closed):
            found(crew)
        return crew

    def _join_torch(self, rank: int) -> Callable[[], None]:
        """Give the thread the rank's groups and a recorder; what takes them away again."""
        names = list(c10d._world.pg_names.items()) if current_carrier() is not None else []
        for group, name in names:
            _registry._register_process_group(name, group)
        recorder = self._recorder(rank)
        recorder.__enter__()

        def leave() -> None:
            recorder.__exit__(None, None, None)
            for _, name in names:
                _registry._unregister_process_group(name)

        return leave

    # -- ending ------------------------------------------------------------------------------------------------------

    def _joins(self) -> Callable[..., None]:
        @functools.wraps(_stock_join)
        def join(thread: threading.Thread, timeout: float | None = None) -> None:
            if acting_crew() is None or not thread.is_alive():
                _stock_join(thread, timeout)
                return
            end = self._ends.get(thread)
            if end is None:
                self._threads.outside(f"the end of thread {thread.name!r}", lambda: _stock_join(thread, timeout))
                return
            if _keeps_workers_of_pool(thread) and (crew := acting_crew()) is not None:
                self._threads.free.watch(crew, thread)  # its end is what it brings
            if end.wait(thread.name, timeout):
                with going_on():  # it has nothing to do any more that takes a turn
                    _stock_join(thread)

        return join

    def _lives(self) -> Callable[..., bool]:
        @functools.wraps(_stock_is_alive)
        def is_alive(what: threading.Thread) -> bool:
            end, is_another = self._ends.get(what), what is not threading.current_thread()
            if end and not end.running and is_another and acting_crew() is not None and _stock_is_alive(what):
                with going_on():  # it has ended in virtual time, and the machine is about to end it
                    _stock_join(what)
            return bool(_stock_is_alive(what))

        return is_alive

    # -- pools -------------------------------------------------------------------------------------------------------

    def _pool(self, pool: Any) -> _Pool | None:
        if pool is None:
            return None
        known = self._pools.get(pool)
        if known is None:
            known = self._pools[pool] = _Pool(self._threads, pool._max_workers)
        return known

    def _makes(self) -> Callable[..., None]:
        @functools.wraps(_stock_make)
        def make(item: Any, future: object, *args: object, **kwargs: object) -> None:
            _stock_make(item, future, *args, **kwargs)
            if self._submitted.begin is not None:
                item.kernbench_call = self._submitted.begin()

        return make

    def _submits(self) -> Callable[..., object]:
        @functools.wraps(_stock_submit)
        def submit(pool: object, fn: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
            crew = self._crew()
            if crew is None:
                return _stock_submit(pool, fn, *args, **kwargs)
            acts_for_a_rank()  # as where a thread is started
            known = self._pool(pool)
            assert known is not None
            self._submitted.begin = functools.partial(self._call, crew, known, getattr(fn, "__name__", "a call"))
            try:
                promised = _stock_submit(pool, fn, *args, **kwargs)
            finally:
                self._submitted.begin = None
            self._promised.setdefault(crew.rank, weakref.WeakSet()).add(promised)
            return promised

        return submit

    def _call(self, crew: Crew, pool: _Pool, name: str) -> Callable[..., object]:
        """What runs a call of a pool, in one of its threads."""
        turns = self._threads.begin(crew, f"{name} in a pool", False, None, ready=False)
        pool.add(turns)
        return self._member(crew, lambda: _Ending(turns, pool))


def _keeps_workers_of_pool(thread: threading.Thread) -> bool:
    """Whether it is the daemon that starts a pool's processes anew: until its end it brings nothing, and it goes round while a
    result has not been read."""
    return bool(getattr(thread, "_target", None) == _keeps_workers)


def _serves_descriptors(thread: threading.Thread) -> bool:
    """Whether it is the thread by which multiprocessing hands descriptors of files on: it knows nothing of ranks."""
    server = getattr(getattr(thread, "_target", None), "__self__", None)
    return type(server).__module__ == multiprocessing.resource_sharer.__name__


def _told(thread: threading.Thread) -> Callable[[], None]:
    """Its body; what that raises is shown while the thread is its rank's still, by whose name the lines begin."""
    body = thread.run

    def run() -> None:
        try:
            body()
        except SystemExit:
            raise
        except BaseException as error:
            if threading.excepthook is threading.__excepthook__:
                said = f"Exception in thread {thread.name}:\n{user_traceback(error)}"
                if sys.stderr is not None:
                    sys.stderr.write(said)
                return
            trace = error.__traceback__
            threading.excepthook(threading.ExceptHookArgs((type(error), error, trace and trace.tb_next, thread)))

    return run


class _Submitted(threading.local):
    begin: Callable[[], Any] | None = None


class _Ended(Exception):
    """A side thread has ended because its rank has."""


def _asking(threads: RankThreads, begin: Callable[..., TakesTurns]) -> TakesTurns:
    """The turns of a thread that asks for its first one by itself."""
    turns = begin(ready=False)
    threads.ask(turns)
    return turns


class _End:
    """The end of a thread, or of all that a pool does.

    Attributes:
        running: what has not ended.
    """

    def __init__(self, threads: RankThreads, running: int = 0) -> None:
        self.running = running
        self._threads = threads
        self._waiting: list[Notice] = []

    def wait(self, name: str, timeout: float | None) -> bool:
        """Wait for it; whether it has come within ``timeout`` s."""
        while self.running:
            if timeout is not None and timeout <= 0:
                return False
            notice = self._threads.notice(f"the end of thread {name!r}")
            self._waiting.append(notice)
            if not self.running:  # a thread without a turn has ended before it could see who waits
                return True
            if not self._threads.wait(notice, timeout):
                return False
        return True

    def over(self) -> None:
        """One thing has ended."""
        self.running -= 1
        if not self.running:
            waiting, self._waiting = self._waiting, []
            for notice in waiting:
                notice.release()


class _Ending:
    """Turns after which something is over."""

    def __init__(self, turns: TakesTurns, end: _End | _Pool) -> None:
        self._turns = turns
        self._end = end

    def enter(self) -> None:
        """See :class:`TakesTurns`."""
        self._turns.enter()

    def leave(self) -> None:
        """See :class:`TakesTurns`."""
        self._end.over()
        self._turns.leave()


class _Pool:
    """A pool's calls, as many of which take turns at a time as it has threads; they begin in the order in which they were made.

    Attributes:
        end: of all of them.
    """

    def __init__(self, threads: RankThreads, size: int) -> None:
        self.end = _End(threads)
        self._threads = threads
        self._room = size
        self._waiting: deque[TakesTurns] = deque()

    def add(self, turns: TakesTurns) -> None:
        """A call has been made."""
        self.end.running += 1
        self._waiting.append(turns)
        self._admit()

    def over(self) -> None:
        """A call has ended."""
        self._room += 1
        self._admit()
        self.end.over()

    def _admit(self) -> None:
        if self._room and self._waiting:
            self._room -= 1
            self._threads.admit(self._waiting.popleft())


@functools.wraps(_stock_init)
def _init(thread: threading.Thread, *args: object, **kwargs: object) -> None:
    """A thread is a daemon if the one that makes it is. A rank's own thread is none to its program, whose main thread it is."""
    _stock_init(thread, *args, **kwargs)
    if kwargs.get("daemon") is None and current_carrier() is not None and current_member() is None:
        thread.daemon = False


def _runs() -> Callable[..., None]:
    @functools.wraps(_stock_run)
    def run(item: Any, *args: object) -> None:
        call = vars(item).pop("kernbench_call", None)
        if call is None:
            _stock_run(item, *args)
            return
        try:
            call(functools.partial(_stock_run, item, *args), at_once=True)
        except _Ended:
            item.future.cancel()

    return run
