"""What is different about torch and Python while simulated ranks run.

An :class:`Environment` is opened by ``spawn`` before its ranks start, and closed when they have ended or were unwound. In
between, names of torch's distributed package, of ``torch.cuda`` and of ``time`` have other values, and process-wide state
is switched with the ranks. Closing puts everything back, also after a failure.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

from kernbench.runtime_api.groups import ProcessGroup as Communicator
from kernbench.sim_engine.operation import COMM_STREAM
from kernbench.torch_backend.features import compiling
from kernbench.torch_backend.modes import plain_torch
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.process_groups.group import SimProcessGroup
from kernbench.torch_backend.process_groups.making import DEFAULT_TIMEOUTS
from kernbench.torch_backend.process_groups.world import RankWorld
from kernbench.torch_backend.rank_state import module_hooks
from kernbench.torch_backend.rank_state.imports import StockImports
from kernbench.torch_backend.rank_state.process_state import ProcessState
from kernbench.torch_backend.relies_on import Reliance
from kernbench.torch_backend.replaced_names import ReplacedNames
from kernbench.triton_engine.threads import set_product_threads

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


c10d: Any = torch.distributed.distributed_c10d
_registry: Any = torch._C._distributed_c10d


RELIES_ON = (
    Reliance("torch._C._distributed_c10d._set_thread_isolation_mode", "C++ registers names of groups per thread then"),
    Reliance("torch.distributed.distributed_c10d", "a rank's groups are forgotten with it", has=(
        "_world", "_unregister_all_process_groups",
    )),
    Reliance("torch.distributed.Backend", "what is known of backends", has=(
        "backend_list", "backend_capability", "_plugins", "backend_type_map", "default_device_backend_map",
    )),
)  # fmt: skip


class Environment:
    """Torch for the ranks of one spawn.

    Attributes:
        ctx: the simulation.
        world_size: number of ranks.
        everybody: its ranks.
        renumbered: whether a rank has given itself another number than spawn did.
    """

    def __init__(self, ctx: RuntimeContext, world_size: int, per_rank_modules: Sequence[str] = ()) -> None:
        self.ctx = ctx
        self.world_size = world_size
        self.renumbered = False
        self.everybody = tuple(range(world_size))
        self._communicators: dict[Any, list[Communicator]] = {}
        self._calls: dict[Any, int] = {}
        self._patches = Patches()
        self._threads = torch.get_num_threads()
        self._product_threads: int | None = None
        self._isolated = False
        self._replaced = ReplacedNames.take()
        self.devices = self._replaced.devices
        self.futures = self._replaced.futures
        self.state = ProcessState(ctx, world_size, per_rank_modules, self._replaced.generators)
        self._imports = StockImports(self._patches, self._lifted, self.state.modules)

    # -- life --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Replace what is different."""
        try:
            if self._threads != 1:
                with plain_torch():
                    self._product_threads = set_product_threads(self._threads)
                torch.set_num_threads(1)  # ranks take turns, and sums must not depend on the number of threads
            _registry._set_thread_isolation_mode(True)
            self._isolated = True
            self._replaced.open(self)
            self._replace_distributed()
            self.devices.open(self.ctx)
            module_hooks.install(self._patches, self.state.modules)
            self.state.open(self._patches)
            self._imports.open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Put everything back. Idempotent."""
        self._imports.close()
        self.state.close()
        self._patches.undo()
        compiling.forget_names()
        self._replaced.close()
        if self._isolated:
            self._isolated = False
            _registry._set_thread_isolation_mode(False)
        if self._product_threads is not None:
            set_product_threads(self._product_threads)
            self._product_threads = None
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    @contextmanager
    def _lifted(self) -> Iterator[None]:
        """Stock torch and Python, for the length of a block."""
        names = self._replaced.names
        modules = self.state.modules
        paused, modules.paused = modules.paused, True
        try:
            with self._patches.lifted(), nullcontext() if names is None else names.lifted():
                yield
        finally:
            modules.paused = paused

    def wrap(self, rank: int, body: Callable[[], Any]) -> Callable[[], Any]:
        """``body`` with what a rank's thread needs around it."""
        return functools.partial(self._run_rank, rank, body)

    def _run_rank(self, rank: int, body: Callable[[], Any]) -> Any:
        recorder = self.devices.of(rank).recorder
        recorder.open()
        try:
            result = body()
            self.futures.finish()
            return result
        finally:
            recorder.close()
            # the C++ registry of group names belongs to this thread, which is about to end
            world = c10d._world
            if isinstance(world, RankWorld) and world.pg_map:
                c10d._unregister_all_process_groups()
                world.__dict__.clear()
                world.__init__()  # type: ignore[misc]

    # -- distributed -------------------------------------------------------------------------------------------------

    def _replace_distributed(self) -> None:
        patch = self._patches.set
        patch(sys, "excepthook", sys.excepthook)  # init_process_group of each rank wraps it once more
        patch(c10d, "_world", RankWorld())
        backends: Any = dist.Backend  # torch warns of one that is not in both
        patch(backends, "backend_list", [*backends.backend_list, "kernbench"])
        patch(backends, "backend_capability", {**backends.backend_capability, "kernbench": ["cpu", "cuda"]})
        for name in ("_plugins", "backend_type_map", "default_device_backend_map"):  # a rank may register a backend
            patch(backends, name, dict(getattr(backends, name)))

    def make_group(
        self,
        *,
        members: tuple[int, ...],
        rank: int,
        backend: str,
        timeout: timedelta,
        name: str,
        description: str,
        store: Any,
    ) -> SimProcessGroup:
        """This rank's object of the group of ``members`` (simulated ranks, in group order) that is called ``name``."""
        return SimProcessGroup(
            self, self._communicator(name, members), rank, backend, timeout, timeout not in DEFAULT_TIMEOUTS, name,
            description, store,
        )  # fmt: skip

    def _communicator(self, name: str, members: tuple[int, ...]) -> Communicator:
        """What the members share: the k-th group of this name and these members that each of them makes."""
        everybody = members is self.everybody or members == self.everybody
        key = (name, None if everybody else members)
        me = (self.ctx.distributed._rank(), key)
        nth = self._calls.get(me, 0)
        self._calls[me] = nth + 1
        made = self._communicators.setdefault(key, [])
        if nth == len(made):
            default = name == "0" and everybody
            title = "the default group" if default else f"group {name} {list(members)}"
            stream = COMM_STREAM if default and not nth else f"{COMM_STREAM} {name}" + (f".{nth}" if nth else "")
            made.append(Communicator(title, members, stream))
        return made[nth]
