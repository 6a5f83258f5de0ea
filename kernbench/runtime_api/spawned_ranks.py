"""Ranks that a program spawns itself: what they have of it is what processes have that Python starts anew.

A process of ``torch.multiprocessing.spawn`` imports the program's modules itself, executes its script again as ``__mp_main__``,
and is sent a copy of the arguments. What main has set in a module meanwhile it does not see, and what it sets itself no other
process does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.runtime_api.multiprocessing import Multiprocessing
from kernbench.runtime_api.rank_arguments import Sent
from kernbench.torch_backend.rank_state.rank_modules import SPAWNED_MAIN, RankModules

Spawn = Callable[..., Any]

_UNGUARDED = (
    "the script spawns ranks while a rank executes it: each executes it again, as processes do, where __name__ is "
    f"{SPAWNED_MAIN!r}. What spawns stands behind: if __name__ == '__main__'"
)


def with_arguments(spawn: Spawn) -> Spawn:
    """``spawn`` whose ranks have arguments of their own, and share the program's modules."""

    @functools.wraps(spawn)
    def spawn_own(fn: Callable[..., object], args: tuple[object, ...] = (), *others: object, **options: object) -> Any:
        return spawn(_body(Sent(fn, args)), (), *others, **options)

    return spawn_own


def _body(sent: Sent, begin: Callable[[int], None] = lambda rank: None) -> Callable[[int], Any]:
    """What a rank runs."""

    def of_rank(rank: int) -> Any:
        begin(rank)
        fn, *args = sent.received()
        return fn(rank, *args)

    return of_rank


class SpawnedRanks:
    """What a program's ``spawn`` does.

    Args:
        multiprocessing: that of the context.
        spawn: makes ranks.
        fresh_main: makes a ``__main__`` of the program that has not been executed.
        execute_main: executes it, in the running rank.
        loaded: modules that were there before the program.
        remark: receives, as a sentence, what is not as in processes.
    """

    def __init__(
        self,
        multiprocessing: Multiprocessing,
        spawn: Spawn,
        *,
        fresh_main: Callable[[], ModuleType],
        execute_main: Callable[[ModuleType], None],
        loaded: Collection[str],
        remark: Callable[[str], object],
    ) -> None:
        self._multiprocessing, self._spawn = multiprocessing, spawn
        self._fresh_main, self._execute_main = fresh_main, execute_main
        self._loaded, self._remark = loaded, remark
        self._beginning = 0

    def spawn(
        self,
        fn: Callable[..., object],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        **options: object,
    ) -> Any:
        """``torch.multiprocessing.spawn``, and ``start_processes``."""
        if self._beginning:
            raise KernbenchError(_UNGUARDED)
        rest = (nprocs, join, daemon, start_method)
        modules = RankModules(imported=[name for name in sys.modules if name not in self._loaded], remark=self._remark)
        sent = Sent(fn, args, lambda name: name == "__main__" or modules.executes(name))
        if start_method == "fork" or not sent.by_name:
            name = getattr(fn, "__qualname__", type(fn).__qualname__)
            why = "forks" if start_method == "fork" else "spawns with a function that no process could find by its name"
            self._remark(f"ranks that the program {why} share the globals of its modules (running {name})")
            return self._spawn(_body(Sent(fn, args)), (), *rest, **options)
        mains: dict[int, ModuleType] = {rank: self._fresh_main() for rank in range(nprocs)}
        before = self._multiprocessing.configure

        def configure(environment: Any) -> None:
            self._multiprocessing.configure = before  # of the next world, which may be the program's own
            environment.state.main_modules.update(mains)
            environment.state.rank_modules = modules

        def begin(rank: int) -> None:
            sys.modules[SPAWNED_MAIN] = mains[rank]
            self._beginning += 1
            try:
                self._execute_main(mains[rank])
            finally:
                self._beginning -= 1

        self._multiprocessing.configure = configure
        try:
            return self._spawn(_body(sent, begin), (), *rest, **options)
        finally:
            self._multiprocessing.configure = before
