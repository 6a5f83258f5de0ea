"""``ctx.multiprocessing``: ``torch.multiprocessing.spawn`` for simulated ranks, and the drain that drives them.

The drain is the heart of the runtime. It runs in main, while every rank is blocked or has ended, and repeats in order:
compute the values of what was launched; resume the ranks whose handle is done; start the collectives whose members have
all arrived; move virtual time to the next completion. If none of these can do anything, nobody can: a deadlock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch.multiprocessing
from greenlet import getcurrent

from kernbench.errors import ConfigError, DeadlockError, KernbenchError
from kernbench.runtime_api.rank_state import RankState
from kernbench.scheduler import Rank
from kernbench.sim_engine.operation import Operation

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.torch_backend.environment import Environment

ISOLATIONS = ("carrier", "greenlet")
_MOST_TRACEBACKS = 8


class SpawnException(KernbenchError, torch.multiprocessing.ProcessRaisedException):
    """One or more ranks raised.

    Attributes:
        errors: ``{rank: exception}`` of the root causes; ranks that were unwound because of them are not in it.
        error_index: the first rank in it, as ``torch.multiprocessing.ProcessRaisedException`` has it.
        error_pid: a stand-in for the process id that handlers of that exception may print.
    """

    def __init__(self, failed: Sequence[Rank]) -> None:
        ordered = sorted(failed, key=lambda rank: rank.index)
        self.errors = {rank.index: rank.error for rank in ordered if rank.error is not None}
        told: dict[str, int] = {}
        message = "".join(
            f"\n\n-- Process {rank.index} terminated with the following error:\n{_once(rank, told)}"
            for rank in ordered[:_MOST_TRACEBACKS]
        )
        if len(ordered) > _MOST_TRACEBACKS:
            message += f"\n\n... and {len(ordered) - _MOST_TRACEBACKS} more ranks: see .errors"
        first = ordered[0].index
        torch.multiprocessing.ProcessRaisedException.__init__(self, message, first, pid_of(first))

    def __reduce__(self) -> Any:
        return RuntimeError, (str(self),)


def _once(rank: Rank, told: dict[str, int]) -> str:
    """A rank's traceback. A report that another rank has shown, whom ``told`` names, is not shown again."""
    report = str(rank.error)
    if isinstance(rank.error, DeadlockError) and told.setdefault(report, rank.index) != rank.index:
        return rank.traceback.replace(report, f"deadlock: the report is that of process {told[report]} above.")
    return rank.traceback


def pid_of(rank: int) -> int:
    """The number that stands for a process id of a simulated rank: never one of a real process."""
    return -(rank + 1)


class ProcessContext:
    """What ``spawn(join=False)`` returns: ranks that run while somebody joins them."""

    def __init__(self, ctx: RuntimeContext, nprocs: int) -> None:
        self._ctx = ctx
        self._nprocs = nprocs
        self._ranks = ctx.scheduler.ranks
        self._joined = nprocs == 0

    def pids(self) -> list[int]:
        """Stand-ins for process ids, one per rank."""
        return [pid_of(rank) for rank in range(self._nprocs)]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Run the ranks until one more of them has ended, or all have.

        Args:
            timeout: at most this long, in virtual seconds.
            grace_period: accepted for compatibility; ranks are always unwound at once.

        Returns:
            True if all ranks have ended, False if more remain (also after one has ended), as torch does.

        Raises:
            SpawnException: a rank raised. The others have been unwound.
        """
        ctx = self._ctx
        if self._joined or ctx.scheduler.ranks is not self._ranks:
            return True
        deadline = None if timeout is None else ctx.engine.now + timeout
        try:
            self._joined = _run_ranks(ctx, until_one_more=True, deadline=deadline)
        except BaseException:
            self._joined = True
            raise
        return self._joined


class Multiprocessing:
    """``torch.multiprocessing`` of a context."""

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx
        self.configure: Callable[[Environment], None] | None = None
        """Called with the environment of a spawn's carriers before it is opened."""
        self._daemon = False

    def spawn(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        *,
        isolation: str = "carrier",
        per_rank_modules: Sequence[str] = (),
    ) -> ProcessContext | None:
        """Call ``fn(rank, *args)`` once per rank, for ranks ``0 .. nprocs - 1``.

        PyTorch's signature and behaviour come first: ``sys.exit(0)`` and KeyboardInterrupt in a rank are success,
        ``nprocs=0`` returns at once, ``join=False`` returns a :class:`ProcessContext`. Ranks that nobody has joined when
        the context ends are joined then, or unwound if ``daemon``. ``start_method`` is accepted and means nothing here.

        Args:
            isolation: ``"carrier"`` runs each rank's body on an OS thread of its own behind a baton, so that torch's
                thread-local state belongs to the rank; ``"greenlet"`` is quicker, for programs that switch only in
                calls of the context.
            per_rank_modules: prefixes of modules whose globals each rank has of its own.

        Raises:
            SpawnException: one or more ranks raised; the context stays usable.
            KernbenchError: called from inside a rank.
            ConfigError: the world does not fit the system, or an argument is wrong.
        """
        ctx = self._ctx
        if ctx.scheduler.current_rank() is not None or getcurrent() is not ctx.scheduler.main:
            raise KernbenchError(
                "spawn was called from inside a rank: nested worlds are not simulated. "
                "Use ctx.distributed.new_group for a part of the ranks, or spawn a second time after this one."
            )
        if isolation not in ISOLATIONS:
            raise ConfigError(f"isolation {isolation!r}: expected one of {', '.join(ISOLATIONS)}")
        if per_rank_modules and isolation != "carrier":
            raise ConfigError("per_rank_modules needs isolation='carrier'")
        if not isinstance(nprocs, int) or nprocs < 0:
            raise ConfigError(f"nprocs {nprocs!r}: expected an integer >= 0")
        if nprocs == 0:
            return None if join else ProcessContext(ctx, 0)
        if ctx.scheduler.live_count:
            raise KernbenchError(
                f"{ctx.scheduler.live_count} ranks of an earlier spawn(join=False) have not ended: join them first"
            )
        self._require_fit(nprocs)
        ctx._activate()
        _drain_pending(ctx)
        begin = ctx.now()
        ctx._ranks = {rank: RankState(rank, ctx.sips[rank], ctx.seed, begin) for rank in range(nprocs)}
        ctx.distributed._open_world(nprocs)
        bodies: list[Callable[[], Any]] = [functools.partial(fn, rank, *args) for rank in range(nprocs)]
        if isolation == "carrier":
            from kernbench.torch_backend.environment import Environment  # it builds on this room

            ctx._environment = environment = Environment(ctx, nprocs, per_rank_modules)
            if self.configure is not None:
                self.configure(environment)
            environment.open()
            bodies = [environment.wrap(rank, body) for rank, body in enumerate(bodies)]
            ctx.scheduler.start(bodies, isolation=isolation, before_run=environment.state.enter)
        else:
            from kernbench.torch_backend.rank_state.leaks import LeakGuard

            ctx._leaks = LeakGuard(ctx)
            ctx._leaks.open()
            ctx.scheduler.start(bodies, isolation=isolation)
        self._daemon = daemon
        if not join:
            return ProcessContext(ctx, nprocs)
        _run_ranks(ctx)
        return None

    def _join_at_exit(self) -> None:
        """What happens to ranks that nobody has joined when the context ends: as to processes when theirs ends."""
        if self._ctx.scheduler.live_count:
            if self._daemon:
                _abort(self._ctx)
            else:
                _run_ranks(self._ctx)

    def _require_fit(self, nprocs: int) -> None:
        ctx = self._ctx
        if len(ctx.sips) == ctx.topology.sip_count:
            ctx.topology.require_world(nprocs)
        elif nprocs > len(ctx.sips):
            raise ConfigError(
                f"world_size {nprocs} does not fit the {len(ctx.sips)} SIPs selected by {ctx.target_device!r}: "
                "select more, or use fewer ranks"
            )


# -- the drain -------------------------------------------------------------------------------------------------------


def _drain_pending(ctx: RuntimeContext) -> None:
    """Drain worker waits, then collectives, in one barrier, until both queues are empty. Idempotent.

    Raises:
        DeadlockError: something is left that nobody can complete, and no greenlet waits for it that could be told.
    """
    _require_main(ctx)
    while ctx._pending_worker_waits or ctx._pending_collectives or ctx.scheduler.ready:
        if not _drain_once(ctx):
            _deadlock(ctx)


def drive_until(ctx: RuntimeContext, op: Operation) -> None:
    """In main: drain until ``op`` is done."""
    _require_main(ctx)
    while not op.done:
        if not _drain_once(ctx):
            report = f"main waits for {op!r}, which nobody can complete.\n{ctx.distributed._report()}"
            _tell_deadlock(ctx, report)
            raise DeadlockError(report)


def _require_main(ctx: RuntimeContext) -> None:
    if getcurrent() is not ctx.scheduler.main:
        raise KernbenchError("only main drains: call this from the main greenlet, not from a rank or a kernel")


def _drain_once(ctx: RuntimeContext) -> bool:
    """Do the next thing that can be done; False if nothing can."""
    ran = ctx.executor.flush(ctx.engine.now)
    if _resume_done(ctx) or ctx.distributed.matcher.start_matched() or ran or ctx.couplings.settle():
        return True
    ctx.polls.schedule()
    upcoming = ctx.engine.next_event
    if upcoming is not None and ctx.deadlines.expire_before(upcoming):
        return True
    return ctx.engine.advance() or ctx.deadlines.expire_asked_for()


def _resume_done(ctx: RuntimeContext) -> bool:
    """Resume every greenlet whose handle is done, in the order in which they began to wait (or as the policy says).

    One that waits for a failed operation resumes with its error: should a sibling fail first, it still raises its own.
    """
    scheduler = ctx.scheduler
    waits = ctx._pending_worker_waits
    ended = ctx._ended_waits  # in a large world few of many waits end at a time
    if ended:
        done = {op for op in ended if op.done}
        ended[:] = [op for op in ended if op not in done] if waits else []
        still = []
        for item in waits:
            op, target = item
            if op in done:
                scheduler.make_ready(target, op.error)
            else:
                still.append(item)
        waits[:] = still
    return scheduler.run_ready() > 0


def _run_ranks(ctx: RuntimeContext, *, until_one_more: bool = False, deadline: float | None = None) -> bool:
    """Run ranks until all have ended (True), one more has (``until_one_more``), or ``deadline`` has passed."""
    scheduler = ctx.scheduler
    live_before = scheduler.live_count
    try:
        with scheduler.at_work():
            while scheduler.live_count and not scheduler.failed:
                if until_one_more and scheduler.live_count < live_before:
                    return False
                if deadline is not None and ctx.engine.now >= deadline:
                    return False
                if not scheduler.run_ready() and not _drain_once(ctx):
                    _deadlock(ctx)
            if not scheduler.failed:
                _finish(ctx)
            if scheduler.failed:
                _deliver_root_causes(ctx)
    except BaseException:
        _abort(ctx)
        raise
    if scheduler.failed:
        _abort(ctx)
        raise SpawnException(scheduler.failed)
    _close_world(ctx)
    return True


def _finish(ctx: RuntimeContext) -> None:
    """All ranks have returned: complete what they left behind; an error that nobody waited for is the rank's own."""
    while ctx._pending_worker_waits or ctx._pending_collectives or ctx.scheduler.ready or len(ctx.executor):
        if not _drain_once(ctx):
            if ctx._pending_worker_waits:
                _deadlock(ctx)
            _fail_leftovers(ctx)
            return
    ctx._settle_time()
    ranks = ctx.scheduler.ranks
    for op in ctx._unobserved_failures():
        if op.rank is not None and op.rank < len(ranks) and ranks[op.rank].error is None and op.error is not None:
            ctx.scheduler.fail(ranks[op.rank], op.error)


def _fail_leftovers(ctx: RuntimeContext) -> None:
    """Ranks have returned and left something that nobody can complete: that is the failure of those who left it."""
    report = ctx.distributed._report()
    _tell_deadlock(ctx, report)
    ranks = ctx.scheduler.ranks
    for index in sorted(ctx.distributed._unmatched_ranks() | ctx.executor.suspended_ranks()):
        ctx.scheduler.fail(ranks[index], DeadlockError(report))
    if not ctx.scheduler.failed:
        raise DeadlockError(report)


def _deliver_root_causes(ctx: RuntimeContext) -> None:
    """A rank has failed: the others whose own operation failed too raise that first, before anybody is unwound."""
    for op, target in ctx._pending_worker_waits:
        if op.error is not None:
            ctx.scheduler.make_ready(target, op.error)
    ctx.scheduler.deliver_errors()


def _abort(ctx: RuntimeContext) -> None:
    waiting = [target for _, target in ctx._pending_worker_waits]
    try:
        ctx.scheduler.abort(waiting)
    finally:
        ctx._clear_queues()
        ctx._settle_time()
        ctx.engine.forget_unresolved()
        _close_world(ctx)


def _close_world(ctx: RuntimeContext) -> None:
    clocks = [state.clock for state in ctx._ranks.values()]
    ctx._main.clock = max([ctx._main.clock, *clocks])
    environment, ctx._environment = ctx._environment, None
    if environment is not None:
        environment.close()
    leaks, ctx._leaks = ctx._leaks, None
    if leaks is not None:
        leaks.close()
    ctx.distributed._reset()


def _tell_deadlock(ctx: RuntimeContext, report: str) -> None:
    if ctx.hooks is not None:
        ctx.hooks.deadlock(report)


def _deadlock(ctx: RuntimeContext) -> None:
    """Nobody can make progress: tell everybody who is blocked, so that their own ``except`` and ``finally`` work."""
    report = ctx.distributed._report()
    _tell_deadlock(ctx, report)
    blocked = [target for _, target in ctx._pending_worker_waits]
    ctx._pending_worker_waits.clear()
    ctx._ended_waits.clear()
    ctx.distributed._forget_unmatched()
    ctx.executor.abandon(DeadlockError(report), ctx.engine.now)
    if not blocked:
        raise DeadlockError(report)
    for target in blocked:
        ctx.scheduler.make_ready(target, DeadlockError(report))
    ctx.scheduler.deliver_errors()
