"""What stands in the place of torch's and Python's own names while ranks run, whichever simulation they belong to.

Making some three hundred functions and classes takes longer than starting eight ranks. So they are made once per process, and
set and taken away with each spawn. They reach the ranks that run through the objects of this module, which every spawn binds
to its own simulation.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

from kernbench.torch_backend.compiled import described_gpu, graphs
from kernbench.torch_backend.features import operator_libraries, operator_registrations
from kernbench.torch_backend.gpu.device import backward_streams, gradient_devices
from kernbench.torch_backend.gpu.device.devices import Devices, HostDevices, compares_devices
from kernbench.torch_backend.gpu.kernels import (
    autocasting,
    fused_attention,
    fused_cells,
    fused_operators,
    recurrent_layers,
)
from kernbench.torch_backend.gpu.memory import memory_names, memory_owners
from kernbench.torch_backend.gpu.names import (
    build_names,
    cuda_names,
    host_results,
    library_settings,
    storages,
    tensor_groups,
    tensor_hooks,
    tensor_methods,
    torch_classes,
    torch_functions,
    triton_benchmarks,
)
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.process_groups import backend_classes, group_class, reducers, stores
from kernbench.torch_backend.process_groups.absent_calls import ABSENT_FUNCTIONS
from kernbench.torch_backend.process_groups.futures import Futures
from kernbench.torch_backend.process_groups.group import GroupMadeDirectly, SimProcessGroup
from kernbench.torch_backend.process_groups.making import DEFAULT_TIMEOUTS, GroupMaker, make_helper
from kernbench.torch_backend.profiling import session as profiling
from kernbench.torch_backend.rank_state import clocks, timed_statements, warning_filters
from kernbench.torch_backend.rank_state.lazy_generators import LazyGenerators
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.relies_on import Reliance
from kernbench.torch_backend.symmetric_memory import buffers as symmetric_memory

c10d: Any = torch.distributed.distributed_c10d

_RECORDS = "_maybe_attach_flight_recorder"

RELIES_ON = (
    Reliance(f"torch.distributed.distributed_c10d.{_RECORDS}", "a group that is split off is given to a recorder of C++",
             looked_up_by=("torch.distributed.distributed_c10d.split_group",), since="2.15"),
    Reliance("torch.distributed.distributed_c10d._new_process_group_helper", "groups are made in its place", looked_up_by=(
        "torch.distributed.distributed_c10d.init_process_group", "torch.distributed.distributed_c10d._new_group_with_tag",
    )),
    Reliance("torch.distributed.distributed_c10d", "simulated fabrics offer all backends", has=(
        "default_pg_nccl_timeout", "is_nccl_available", "is_mpi_available", "_ProcessGroupWrapper",
    )),
    Reliance("torch._C._distributed_c10d", "hashes of objects are asked of it; builds without NCCL have none", looked_up_by=(
        "torch.distributed.distributed_c10d._object_to_tensor", "torch.distributed.distributed_c10d._tensor_to_object",
    )),
    Reliance("torch.distributed", "the same, as programs ask", has=("is_nccl_available", "is_mpi_available")),
    Reliance(
        "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data", "DDP's record of itself names the backend asked for",
        parameters=("self",),
    ),
    Reliance(
        "torch.nn.parallel.DistributedDataParallel._register_builtin_comm_hook", "the hook of C++ wants a future of C++",
        parameters=("self", "comm_hook_type"),
    ),
    Reliance("torch.distributed._register_comm_hook", "a hook of Python's is given to the reducer"),
    Reliance(
        "torch.distributed.Reducer._set_forward_pass_work_handle", "the reducer receives the work that it waits for in C++",
        looked_up_by=("torch.nn.parallel.DistributedDataParallel",),
    ),
)  # fmt: skip

_LOGGED_VARIABLES = {
    "gloo": ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"),
    "nccl": (
        "NCCL_SOCKET_IFNAME", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_DEBUG", "NCCL_NTHREADS",
        "NCCL_IB_TIMEOUT",
    ),
}  # fmt: skip
"""Environment variables that DDP's logger notes, by backend."""


class ReplacedNames:
    """The replaced names, and what they stand on.

    Attributes:
        groups: makes the process groups of the ranks that run, None when none do.
        modules: the globals of modules that these ranks have of their own.
        devices, futures, clock, generators, stores: theirs.
        names: what is replaced, None until the first spawn.
    """

    def __init__(self) -> None:
        self.groups: GroupMaker | None = None
        self.modules: ModuleGlobals | None = None
        self.devices = Devices()
        self.symmetric_memory = symmetric_memory.SymmetricMemory(self.devices)
        self.futures = Futures()
        self.clock = clocks.RankClock()
        self.generators = LazyGenerators()
        self.stores = stores.StoreHost()
        self.names: Patches | None = None
        self._forward_works: dict[int, Any] = {}
        self._owners = memory_owners.MemoryOwnersOfTorch()

    @classmethod
    def take(cls) -> ReplacedNames:
        """One that no spawn has."""
        return _idle.pop() if _idle else cls()

    def open(self, devices: HostDevices, modules: ModuleGlobals) -> None:
        """Set the names, for the ranks of a simulation that has these ``devices``."""
        simulation = devices.simulation
        self.groups = GroupMaker(simulation, devices, self.futures)
        self.modules = modules
        self.futures.open(simulation)
        self.clock.open(simulation)
        self.stores.open(simulation)
        self._owners.open()
        simulation.memories.owners = self._owners
        if self.names is None or not self.names.redo():
            self.names = None
            names = Patches()
            try:
                self._install(names)
            except BaseException:
                names.undo()
                raise
            self.names = names

    def close(self) -> None:
        """Take the names away, and forget who ran: another spawn may have it. Idempotent."""
        if self.groups is None:
            return
        if self.names is not None:
            self.names.undo()
        self.symmetric_memory.close()
        self.devices.close()
        self.futures.close()
        self.clock.close()
        self.stores.close()
        self._forward_works.clear()
        self._owners.close()
        self.groups = self.modules = None
        _idle.append(self)

    def _own_modules(self) -> ModuleGlobals:
        assert self.modules is not None
        return self.modules

    def _running(self) -> int | None:
        device = self.devices.current()
        return None if device is None else device.host.rank

    def _remark(self, sentence: str) -> None:
        self.devices.simulation.remarks.setdefault(sentence)

    def _maker(self) -> GroupMaker:
        assert self.groups is not None
        return self.groups

    # -- making ------------------------------------------------------------------------------------------------------

    def _install(self, names: Patches) -> None:
        self._replace_distributed(names)
        clocks.install(names, self.clock)
        timed_statements.install(names, self._running, self._remark)
        self.futures.install(names)
        for module in (
            cuda_names, build_names, library_settings, memory_names, memory_owners, torch_classes, torch_functions, storages,
            autocasting, fused_operators, fused_cells, recurrent_layers, fused_attention, tensor_methods, tensor_hooks,
            tensor_groups, profiling, host_results, triton_benchmarks, gradient_devices, backward_streams,
        ):  # fmt: skip
            module.install(names)
        names.set(fused_attention, "compares", compares_devices)
        symmetric_memory.install(names, self.symmetric_memory)
        self.generators.install(names)
        described_gpu.install_names(names)
        graphs.install_backend(names)
        warning_filters.install(names, self._own_modules)
        operator_libraries.install(
            names, lambda: self.generators.resident, self._own_modules, self._running, self._remark
        )
        operator_registrations.install(names, lambda: self.generators.resident, self._own_modules)

    def _replace_distributed(self, names: Patches) -> None:
        names.set(c10d, "_new_process_group_helper", make_helper(self._maker, c10d._new_process_group_helper))
        if hasattr(c10d, _RECORDS):
            names.set(c10d, _RECORDS, _records_nothing)
        stores.install(names)
        for name, refusal in ABSENT_FUNCTIONS.items():
            names.add(torch._C._distributed_c10d, name, refusal)
        for module in (c10d, torch.distributed.constants):
            names.set(module, "default_pg_nccl_timeout", timedelta(minutes=10))
        ddp: Any = torch.nn.parallel.DistributedDataParallel
        names.set(ddp, "_get_ddp_logging_data", _names_the_backend(ddp._get_ddp_logging_data))
        names.set(ddp, "_register_builtin_comm_hook", _hooks_of_python(ddp._register_builtin_comm_hook))
        reducer: Any = dist.Reducer
        stock = reducer._set_forward_pass_work_handle
        names.set(reducer, "_set_forward_pass_work_handle", _waits_at_once(stock, self._forward_works))
        reducers.install(names)
        for name in ("is_nccl_available", "is_mpi_available"):
            for module in (dist, c10d):
                names.set(module, name, _always)
        names.add(torch._C._distributed_c10d, "_hash_tensors", _hash_of)
        names.set(c10d, "_ProcessGroupWrapper", backend_classes.WRAPPER)
        backend_classes.install(names, self._make_directly)
        group_class.install(names, SimProcessGroup)

    def _make_directly(self, backend: str, store: object, rank: int, size: int, timeout: timedelta | None) -> Any:
        """A group that a program makes without ``init_process_group``."""
        maker = self._maker()
        members, number = maker.default_members(size, rank, store)
        group = maker.make(
            members=members, rank=number, backend=backend, timeout=timeout or DEFAULT_TIMEOUTS[0],
            name=f"made directly ({backend})", description="undefined", store=store,
        )  # fmt: skip
        group.__class__ = GroupMadeDirectly
        return group


_idle: list[ReplacedNames] = []
"""At most one, unless a simulation has run inside another one."""


def _always() -> bool:
    return True


def _records_nothing(*args: object) -> None:
    """For torch's flight recorder, whose hook asks C++ for the group's backend; the simulation keeps a record of its own."""


def _hash_of(tensors: Sequence[torch.Tensor]) -> int:
    """What torch logs of objects that are sent (``TORCH_DISTRIBUTED_DEBUG=DETAIL``), which only builds with NCCL have.

    Equal for equal bytes; the number is not the one that torch's own gives.
    """
    number = 0
    for tensor in tensors:
        number = zlib.crc32(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(), number)
    return number


def _waits_at_once(stock: Callable[..., None], kept: dict[int, Any]) -> Callable[..., None]:
    """The reducer waits for this work, and looks at its future, inside backward in C++ (joining with uneven inputs).

    C++ does not keep the Python part of the work alive, without which its ``wait`` would be another one: it is ``kept``.
    """

    @functools.wraps(stock)
    def set_forward_pass_work_handle(reducer: object, work: Any, *args: Any) -> None:
        kept[id(reducer)] = work
        work.future_waits = True
        stock(reducer, work, *args)

    return set_forward_pass_work_handle


def _hooks_of_python(stock: Callable[..., None]) -> Callable[..., None]:
    """DDP's built-in hooks, of which C++ has one that takes no future of Python's: Python's does the same arithmetic."""

    @functools.wraps(stock)
    def register(module: Any, comm_hook_type: object) -> None:
        if comm_hook_type != dist.BuiltinCommHookType.FP16_COMPRESS:
            stock(module, comm_hook_type)
            return
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # few programs want it

        module.logger._set_comm_hook_name(str(comm_hook_type))
        dist._register_comm_hook(module.reducer, module.process_group, default_hooks.fp16_compress_hook)

    return register


def _names_the_backend(stock: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """DDP's own record of itself, with the backend that the program asked for."""

    @functools.wraps(stock)
    def data(module: Any) -> dict[str, Any]:
        backend = module.process_group.name()
        variables = {name.lower(): os.environ.get(name, "N/A") for name in _LOGGED_VARIABLES.get(backend, ())}
        threads = {"gloo_num_threads": 2} if backend == "gloo" else {}  # which gloo has, for any caller
        return {**stock(module), "backend_name": backend, **threads, **variables}

    return data
