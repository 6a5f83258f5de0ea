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
from kernbench.runtime_api.current import activate
from kernbench.runtime_api.rank_state import RankState
from kernbench.scheduler import Rank
from kernbench.sim_engine.operation import Operation

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

ISOLATIONS = ("carrier", "greenlet")


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
        message = "".join(
            f"\n\n-- Process {rank.index} terminated with the following error:\n{rank.traceback}" for rank in ordered
        )
        first = ordered[0].index
        torch.multiprocessing.ProcessRaisedException.__init__(self, message, first, pid_of(first))

    def __reduce__(self) -> Any:
        return RuntimeError, (str(self),)


def pid_of(rank: int) -> int:
    """The number that stands for a process id of a simulated rank: never one of a real process."""
    return -(rank + 1)


class ProcessContext:
    """What ``spawn(join=False)`` returns: ranks that run while somebody joins them."""

    def __init__(self, ctx: RuntimeContext, nprocs: int) -> None:
        self._ctx = ctx
        self._nprocs = nprocs
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
        if self._joined:
            return True
        ctx = self._ctx
        deadline = None if timeout is None else ctx.engine.now + timeout
        self._joined = _run_ranks(ctx, until_one_more=True, deadline=deadline)
        return self._joined


class Multiprocessing:
    """``torch.multiprocessing`` of a context."""

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx

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
        ``nprocs=0`` returns at once, ``join=False`` returns a :class:`ProcessContext`. ``daemon`` and ``start_method``
        are accepted and mean nothing here.

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
        self._require_fit(nprocs)
        activate(ctx)
        _drain_pending(ctx)
        begin = ctx.now()
        ctx._ranks = {rank: RankState(rank, ctx.sips[rank], ctx.seed, begin) for rank in range(nprocs)}
        ctx.distributed._open_world(nprocs)
        bodies = [functools.partial(fn, rank, *args) for rank in range(nprocs)]
        ctx.scheduler.start(bodies, isolation=isolation)
        if not join:
            return ProcessContext(ctx, nprocs)
        _run_ranks(ctx)
        return None

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
        DeadlockError: something is left that nobody can complete, and no rank of a spawn is there to be told.
    """
    _require_main(ctx)
    while ctx._pending_worker_waits or ctx._pending_collectives:
        if not _drain_once(ctx):
            _deadlock(ctx)


def drive_until(ctx: RuntimeContext, op: Operation) -> None:
    """In main: drain until ``op`` is done."""
    _require_main(ctx)
    while not op.done:
        if not _drain_once(ctx):
            raise DeadlockError(f"main waits for {op!r}, which nobody can complete.\n{ctx.distributed._report()}")


def _require_main(ctx: RuntimeContext) -> None:
    if getcurrent() is not ctx.scheduler.main:
        raise KernbenchError("only main drains: call this from the main greenlet, not from a rank or a kernel")


def _drain_once(ctx: RuntimeContext) -> bool:
    """Do the next thing that can be done; False if nothing can."""
    ran = ctx.executor.flush(ctx.engine.now)
    if _resume_done(ctx):
        return True
    return ctx.distributed._start_matched() or ran or ctx.engine.advance()


def _resume_done(ctx: RuntimeContext) -> bool:
    """Resume every greenlet whose handle is done, in the order in which they began to wait (or as the policy says)."""
    scheduler = ctx.scheduler
    waits = ctx._pending_worker_waits
    still = [item for item in waits if not item[0].done]
    if len(still) < len(waits):
        for op, target in waits:
            if op.done:
                scheduler.make_ready(target)
        waits[:] = still
    return scheduler.run_ready() > 0


def _run_ranks(ctx: RuntimeContext, *, until_one_more: bool = False, deadline: float | None = None) -> bool:
    """Run ranks until all have ended (True), one more has (``until_one_more``), or ``deadline`` has passed."""
    scheduler = ctx.scheduler
    live_before = scheduler.live_count
    try:
        while scheduler.live_count and not scheduler.failed:
            if until_one_more and scheduler.live_count < live_before:
                return False
            if deadline is not None and ctx.engine.now >= deadline:
                return False
            if not scheduler.run_ready() and not _drain_once(ctx):
                _deadlock(ctx)
        if scheduler.failed:
            _deliver_root_causes(ctx)
        else:
            _finish(ctx)
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
    _drain_pending(ctx)
    while len(ctx.executor):
        if not _drain_once(ctx):
            _deadlock(ctx)
    ctx.synchronize()
    for op in ctx.engine.op_log.operations:
        if op.error is not None and not op.observed:
            op.observed = True
            if op.rank is not None and op.rank < len(ctx.scheduler.ranks):
                ctx.scheduler.fail(ctx.scheduler.ranks[op.rank], op.error)


def _deliver_root_causes(ctx: RuntimeContext) -> None:
    """A rank has failed: the others whose own operation failed too raise that first, before anybody is unwound."""
    for op, target in ctx._pending_worker_waits:
        if op.error is not None:
            ctx.scheduler.make_ready(target, op.error)
    ctx.scheduler.deliver_errors()


def _abort(ctx: RuntimeContext) -> None:
    try:
        ctx.scheduler.abort()
    finally:
        ctx._clear_queues()
        _close_world(ctx)


def _close_world(ctx: RuntimeContext) -> None:
    clocks = [state.clock for state in ctx._ranks.values()]
    ctx._main.clock = max([ctx._main.clock, *clocks])
    ctx.distributed._reset()


def _deadlock(ctx: RuntimeContext) -> None:
    """Nobody can make progress: tell every rank that is blocked, so that its own ``except`` and ``finally`` work."""
    report = ctx.distributed._report()
    blocked = [target for _, target in ctx._pending_worker_waits]
    ctx._pending_worker_waits.clear()
    ctx.distributed._forget_unmatched()
    ctx.executor.clear()
    if not blocked:
        raise DeadlockError(report)
    for target in blocked:
        ctx.scheduler.make_ready(target, DeadlockError(report))
    ctx.scheduler.deliver_errors()
