"""What is different about torch and Python while simulated ranks run.

An :class:`Environment` is opened by ``spawn`` before its ranks start, and closed when they have ended or were unwound. In
between, names of torch's distributed package, of ``torch.cuda`` and of ``time`` have other values, and process-wide state
is switched with the ranks. Closing puts everything back, also after a failure.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

from kernbench.runtime_api.groups import ProcessGroup as Communicator
from kernbench.sim_engine.operation import COMM_STREAM
from kernbench.torch_backend import clocks, profiling
from kernbench.torch_backend.backend_classes import backend_class
from kernbench.torch_backend.devices import Devices
from kernbench.torch_backend.futures import Futures
from kernbench.torch_backend.group import SimProcessGroup
from kernbench.torch_backend.imports import StockImports
from kernbench.torch_backend.modes import plain_torch
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.process_groups import DEFAULT_TIMEOUTS, default_members, make_helper
from kernbench.torch_backend.process_state import ProcessState
from kernbench.torch_backend.store import StoreHost, store_classes
from kernbench.torch_backend.world import RankWorld
from kernbench.triton_engine.threads import set_product_threads

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


c10d: Any = torch.distributed.distributed_c10d
_registry: Any = torch._C._distributed_c10d


_LOGGED_VARIABLES = {
    "gloo": ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"),
    "nccl": (
        "NCCL_SOCKET_IFNAME", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_DEBUG", "NCCL_NTHREADS",
        "NCCL_IB_TIMEOUT",
    ),
}  # fmt: skip
"""Environment variables that DDP's logger notes, by backend."""


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
        self._debug_level = dist.get_debug_level()
        self.devices = Devices(ctx)
        self.futures = Futures(ctx)
        self.state = ProcessState(ctx, world_size, per_rank_modules)
        self._imports = StockImports(self._patches, self.state.modules)

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
            self._replace_distributed()
            clocks.install(self._patches, self.ctx)
            self.futures.install(self._patches)
            self.devices.open(self._patches)
            profiling.install(self._patches, self.ctx)
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
        self.devices.close()
        self.futures.outstanding.clear()
        dist.set_debug_level(self._debug_level)
        if self._isolated:
            self._isolated = False
            _registry._set_thread_isolation_mode(False)
        if self._product_threads is not None:
            set_product_threads(self._product_threads)
            self._product_threads = None
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

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
        patch(c10d, "_new_process_group_helper", make_helper(self, c10d._new_process_group_helper))
        for name, cls in store_classes(StoreHost(self.ctx)).items():
            for module in (dist, c10d, sys.modules["torch.distributed.rendezvous"]):
                if hasattr(module, name):
                    patch(module, name, cls)
        patch(c10d, "default_pg_nccl_timeout", timedelta(minutes=10))
        backends: Any = dist.Backend  # torch warns of one that is not in both
        patch(backends, "backend_list", [*backends.backend_list, "kernbench"])
        patch(backends, "backend_capability", {**backends.backend_capability, "kernbench": ["cpu", "cuda"]})
        for name in ("_plugins", "backend_type_map", "default_device_backend_map"):  # a rank may register a backend
            patch(backends, name, dict(getattr(backends, name)))
        ddp: Any = torch.nn.parallel.DistributedDataParallel
        patch(ddp, "_get_ddp_logging_data", _names_the_backend(ddp._get_ddp_logging_data))
        reducer: Any = dist.Reducer
        patch(reducer, "_set_forward_pass_work_handle", _waits_at_once(reducer._set_forward_pass_work_handle))
        for name in ("is_nccl_available", "is_mpi_available"):
            for module in (dist, c10d):
                patch(module, name, _always)
        patch(c10d, "_ProcessGroupWrapper", lambda group, helper: group.checking_at_once())
        for backend, name in (("gloo", "ProcessGroupGloo"), ("nccl", "ProcessGroupNCCL")):
            cls = backend_class(backend, self._make_directly)
            for module in (dist, c10d):
                patch(module, name, cls)

    def _make_directly(self, backend: str, store: Any, rank: int, size: int, timeout: timedelta | None) -> Any:
        """A group that a program makes without ``init_process_group``."""
        members, number = default_members(self, size, rank, store)
        return self.make_group(
            members=members, rank=number, backend=backend, timeout=timeout or DEFAULT_TIMEOUTS[0],
            name=f"made directly ({backend})", description="undefined", store=store,
        )  # fmt: skip

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


def _always() -> bool:
    return True


def _waits_at_once(stock: Callable[..., None]) -> Callable[..., None]:
    """The reducer waits for this work, and looks at its future, inside backward in C++ (joining with uneven inputs).

    C++ does not keep the Python part of the work alive, without which its ``wait`` would be another one.
    """
    kept: dict[int, Any] = {}

    @functools.wraps(stock)
    def set_forward_pass_work_handle(reducer: Any, work: Any, *args: Any) -> None:
        kept[id(reducer)] = work
        work.future_waits = True
        stock(reducer, work, *args)

    return set_forward_pass_work_handle


def _names_the_backend(stock: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """DDP's own record of itself, with the backend that the program asked for."""

    @functools.wraps(stock)
    def data(module: Any) -> dict[str, Any]:
        backend = module.process_group.name()
        variables = {name.lower(): os.environ.get(name, "N/A") for name in _LOGGED_VARIABLES.get(backend, ())}
        threads = {"gloo_num_threads": 2} if backend == "gloo" else {}  # which gloo has, whoever asks
        return {**stock(module), "backend_name": backend, **threads, **variables}

    return data
