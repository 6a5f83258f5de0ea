"""Modules that a rank is the first to import.

Those of torch see stock torch, but for what its own tests are written with.

They keep what they find (``class CudaInterface: Event = torch.cuda.Event``), and would keep a stand-in beyond the simulation.
So while one of them is executed, the patches are lifted. No other rank runs meanwhile: an import does not switch ranks.
The tensors that they make for themselves are operations of no rank: ranks share the module, and the first to import it would
pay for all.

Those whose globals are each rank's are taken in as they are right after their execution.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from kernbench.torch_backend.compiled import described_gpu, graphs, kernels, reduce_overhead, traced_devices
from kernbench.torch_backend.features import (
    attention_sharding,
    checkpoint_plans,
    checkpoint_streams,
    compiled_optimizers,
    compiling,
    context_parallel,
    device_meshes,
    dtensor_random,
    fake_tensors,
    fsdp_chunks,
    fsdp_profiler,
    loss_parallel,
    operator_libraries,
    remote_calls,
    sharding_of_lists,
    shared_shardings,
)
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state import socket_waits
from kernbench.torch_backend.rank_state.marked_source import with_marks
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.rank_state.process_state import ProcessState
from kernbench.torch_backend.rank_state.rank_modules import ask_others
from kernbench.torch_backend.symmetric_memory import buffers as symmetric_memory

_PLAIN = (
    attention_sharding, checkpoint_streams, compiled_optimizers, compiling, context_parallel, device_meshes, dtensor_random,
    fake_tensors, fsdp_chunks, fsdp_profiler, loss_parallel, remote_calls,
)  # fmt: skip


def _install_propagation(patches: Patches, module: ModuleType) -> None:
    sharding_of_lists.install(patches, module)
    shared_shardings.install(patches, module)


INSTALLERS = {module.MODULE: module.install for module in _PLAIN} | {
    sharding_of_lists.MODULE: _install_propagation,
    checkpoint_plans.ITEMS: checkpoint_plans.install_items,
    checkpoint_plans.GATHERING: checkpoint_plans.install_gathering,
    symmetric_memory.MODULE: symmetric_memory.install_module,
    described_gpu.INTERFACE: described_gpu.install_interface,
    described_gpu.CODE_CACHE: described_gpu.install_keys,
    traced_devices.MODULE: traced_devices.install,
    graphs.MODULE: graphs.install_calls,
    reduce_overhead.MODULE: reduce_overhead.install,
    kernels.HEURISTICS: kernels.install_heuristics,
    kernels.METRICS: kernels.install_metrics,
    kernels.HELPERS: kernels.install_helpers,
    kernels.ASYNC_COMPILE: kernels.install_async_compile,
    kernels.BENCHMARKING: kernels.install_benchmarking,
    socket_waits.SOCKETS: socket_waits.install_sockets,
    socket_waits.POLLERS: socket_waits.install_pollers,
}
"""What is changed in a module once it is there."""

AROUND = {operator_libraries.REGISTERS_AUTOCAST: operator_libraries.autocasting}
"""Within what a module is executed, beside torch's own names."""

PREFIXES = ("torch.", "torchvision.", "triton.", "numpy.", "sympy.", "zmq.sugar.")
TESTING = ("torch.testing._internal.", "torch._dynamo.test", "torch._inductor.test", "triton._internal_testing")
"""What torch's and Triton's own tests are written with: it asks when imported what GPUs there are, and is meant for these."""
REGISTERS_A_BACKEND = "torch.testing._internal.distributed.fake_pg"
"""Is executed once, also where a program imports FSDP, and what it registers is not a rank's."""


class StockImports:
    """An entry of ``sys.meta_path``.

    Args:
        patches: where what is changed in a module goes.
        lifted: stock torch and Python, aside of the rank's program, for the length of a block.
        state: has the modules whose globals are each rank's, and those that each rank executes.
        marks: whether the program's own files are compiled so that assumed numbers keep their marks.
    """

    def __init__(
        self,
        patches: Patches,
        lifted: Callable[[], AbstractContextManager[None]],
        state: ProcessState,
        *,
        marks: bool = False,
    ) -> None:
        self._marks = marks
        self._patches = patches
        self._lifted = lifted
        self._state = state
        self._finders: list[Any] = []

    def install(self) -> None:
        """Change what is loaded by now, which is so for main and for every rank."""
        for name, install in INSTALLERS.items():
            if (module := sys.modules.get(name)) is not None:
                install(self._patches, module)

    def open(self) -> None:
        """Be asked first."""
        self._finders = sys.meta_path  # main's: each rank has its own
        self._finders.insert(0, self)

    def close(self) -> None:
        """Be asked no more. Idempotent."""
        if self in self._finders:
            self._finders.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Asked by ``import``."""
        own, modules = self._state.rank_modules, self._state.modules
        if own is not None and (spec := own.find_spec(name, path, target, self)) is not None:
            return with_marks(spec) if self._marks else spec
        per_rank = modules.matches(name)
        if not per_rank and not name.startswith(PREFIXES):
            spec = ask_others(name, path, target, self) if self._marks else None
            return spec and with_marks(spec)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            loader = _Loader(spec.loader.name, spec.loader.path)
            stock = name.startswith(PREFIXES) and (not name.startswith(TESTING) or name == REGISTERS_A_BACKEND)
            loader.lifted = self._lifted if stock else nullcontext
            loader.patches = self._patches
            loader.modules = modules if per_rank else None
            spec.loader = loader
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes a module with the patches lifted, or takes in its globals afterwards."""

    lifted: Callable[[], AbstractContextManager[None]]
    patches: Patches
    modules: ModuleGlobals | None

    def exec_module(self, module: ModuleType) -> None:
        lifted, patches, modules = self.lifted, self.patches, self.modules
        del self.lifted, self.patches, self.modules  # the module keeps its loader
        with lifted(), AROUND.get(module.__name__, nullcontext)():
            super().exec_module(module)
        if (install := INSTALLERS.get(module.__name__)) is not None:
            install(patches, module)
        if modules is not None:
            modules.loaded(module)
