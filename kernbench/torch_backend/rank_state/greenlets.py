"""Torch's per-thread state under ``isolation="greenlet"``: a rank that switches with some of it changed is stopped.

Greenlet ranks share one OS thread, so ``torch.no_grad()`` around a wait would hold for ranks that run meanwhile. Looking at all
of that state at each switch would double what a switch costs. So the functions by which a program changes it are wrapped while
greenlet ranks run, and only after one of them has been called does a switch look; once everything is found as it was, switches
cost what they did.

What main had set before it spawned holds for all ranks alike, and is no leak.

Such ranks know collectives and GPUs by their context alone. What would begin torch's own groups, or look for a GPU of the
machine's, is refused: the first would wait for processes that are not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed.distributed_c10d
import torch.utils._device
import torch.utils._python_dispatch
from greenlet import getcurrent

from kernbench.errors import KernbenchError
from kernbench.torch_backend.gpu.device.devices import HostDevices
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.process_groups.making import GroupMaker
from kernbench.torch_backend.process_groups.world import GreenletWorld
from kernbench.torch_backend.relies_on import Reliance

_C: Any = torch._C
c10d: Any = torch.distributed.distributed_c10d

ENTRIES: tuple[tuple[object, str], ...] = (
    (_C, "_set_grad_enabled"),
    (_C, "_InferenceMode"),
    (torch.utils._python_dispatch, "_push_on_torch_dispatch_stack"),
    (torch.overrides, "_push_on_torch_function_stack"),
    (torch.utils._device.DeviceContext, "__init__"),  # `with torch.device(...)` pushes it in C++
    (torch, "autocast_increment_nesting"),
    (torch, "set_anomaly_enabled"),
    (_C._autograd, "_push_saved_tensors_default_hooks"),
    (_C._autograd, "_enable_profiler"),
    (torch.autograd, "_engine_run_backward"),
    (torch.autograd.profiler, "_enable_profiler"),
)
"""Owner and name of the functions by which the state is changed."""


def _autocast() -> tuple[bool, ...]:
    return tuple([torch.is_autocast_enabled(device) for device in ("cpu", "cuda")])


def _function_modes() -> tuple[str, ...]:
    modes = [_C._get_function_stack_at(depth) for depth in range(_C._len_torch_function_stack())]
    return tuple([type(mode).__name__ for mode in modes])


def _dispatch_modes() -> tuple[str, ...]:
    modes = [_C._get_dispatch_stack_at(depth) for depth in range(_C._len_torch_dispatch_stack())]
    return tuple([type(mode).__name__ for mode in modes])


STATE: dict[str, Callable[[], object]] = {
    "grad mode (torch.no_grad, torch.enable_grad, torch.set_grad_enabled)": torch.is_grad_enabled,
    "torch.inference_mode": torch.is_inference_mode_enabled,
    "torch.autocast": _autocast,
    "a torch function mode (torch.device as a context, TorchFunctionMode)": _function_modes,
    "a dispatch mode (TorchDispatchMode)": _dispatch_modes,
    "torch.autograd.detect_anomaly": torch.is_anomaly_enabled,
    "torch.autograd.graph.saved_tensors_hooks": lambda: _C._autograd._top_saved_tensors_default_hooks(True),
    "a profiler": lambda: bool(_C._autograd._profiler_enabled()),
    "a backward pass that is under way": lambda: _C._current_graph_task_id() >= 0,
}
"""What would leak, by what a program calls it."""


BEYOND: tuple[tuple[object, str, str], ...] = (
    (torch.distributed, "init_process_group", "no torch.distributed: ctx.distributed has their collectives"),
    (c10d, "init_process_group", "no torch.distributed: ctx.distributed has their collectives"),
    (torch.cuda, "_lazy_init", "no torch.cuda: tensors of ctx are on their devices"),
)
"""Owner and name of functions that look beyond the simulation, and why these ranks have them not. C++ calls ``_lazy_init`` once
in a process: where that has been, a tensor for ``cuda`` is refused in torch's own words."""


RELIES_ON = (
    Reliance("torch.cuda._lazy_init", "what asks for a GPU calls it first", looked_up_by=("torch.cuda.current_device",)),
    Reliance("torch._C", "`no_grad`, `inference_mode`, the modes and backward change state that these change and read", has=(
        "_set_grad_enabled", "_InferenceMode", "_len_torch_function_stack", "_get_function_stack_at",
        "_len_torch_dispatch_stack", "_get_dispatch_stack_at", "_current_graph_task_id",
    )),
    Reliance("torch.distributed.distributed_c10d._world", "each use looks it up"),
    Reliance("torch._C._autograd", "so do hooks on saved tensors and profilers", has=(
        "_push_saved_tensors_default_hooks", "_top_saved_tensors_default_hooks", "_enable_profiler", "_profiler_enabled",
    )),
    Reliance("torch.utils._python_dispatch._push_on_torch_dispatch_stack", "dispatch modes are entered by it",
             looked_up_by=("torch.utils._python_dispatch._push_mode",)),
    Reliance("torch.overrides._push_on_torch_function_stack", "function modes are entered by it",
             looked_up_by=("torch.overrides._push_mode",)),
    Reliance("torch.utils._device.DeviceContext.__init__", "`with torch.device(...)` makes one, and enters it in C++"),
    Reliance("torch.autocast_increment_nesting", "autocast is entered by it",
             looked_up_by=("torch.amp.autocast_mode.autocast.__enter__",)),
    Reliance("torch.set_anomaly_enabled", "so is anomaly detection",
             looked_up_by=("torch.autograd.anomaly_mode.detect_anomaly",)),
    Reliance("torch.autograd._engine_run_backward", "backward passes begin with it", looked_up_by=("torch.autograd.backward",)),
    Reliance("torch.autograd.profiler._enable_profiler", "profilers begin with it", looked_up_by=("torch.autograd.profiler",)),
)  # fmt: skip


class GreenletEnvironment:
    """Torch for the greenlet ranks of one spawn.

    Attributes:
        groups: makes the ranks' process groups.
    """

    def __init__(self, devices: HostDevices) -> None:
        self._simulation = devices.simulation
        self._devices = devices
        self._patches = Patches()
        self._recording = ExitStack()
        self._before: dict[str, object] = {}
        self.groups = GroupMaker(devices.simulation, devices, None)

    def open(self) -> None:
        """Remember how main has set things, and wrap what changes them; record, and let torch know each rank's groups."""
        self._patches.set(c10d, "_world", GreenletWorld(self._simulation.hosts))
        self._recording.enter_context(self._devices.recording())
        self._before = {name: read() for name, read in STATE.items()}
        for owner, name in ENTRIES:
            self._patches.set(owner, name, self._noted(getattr(owner, name)))
        for owner, name, why in BEYOND:
            self._patches.set(owner, name, self._refused(getattr(owner, name), why))

    def close(self) -> None:
        """Put everything back. Idempotent."""
        self._recording.close()
        self._patches.undo()
        self._simulation.scheduler.before_switch = None

    def _noted(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        scheduler = self._simulation.scheduler

        @functools.wraps(stock, updated=())
        def noted(*args: object, **kwargs: object) -> Any:
            if getcurrent() is not scheduler.main:
                scheduler.before_switch = self.check
            return stock(*args, **kwargs)

        return noted

    def _refused(self, stock: Callable[..., Any], why: str) -> Callable[..., Any]:
        scheduler = self._simulation.scheduler

        @functools.wraps(stock)
        def refused(*args: object, **kwargs: object) -> Any:
            if getcurrent() is scheduler.main:
                return stock(*args, **kwargs)
            raise KernbenchError(
                f"with isolation='greenlet' ranks have {why}. Spawn with isolation='carrier' (the default)"
            )

        return refused

    def check(self) -> None:
        """Raise if the state is not main's; if it is, stop looking.

        Raises:
            KernbenchError: naming what would leak.
        """
        changed = [name for name, read in STATE.items() if read() != self._before[name]]
        scheduler = self._simulation.scheduler
        if not changed:
            scheduler.before_switch = None
            return
        rank = scheduler.current_rank()
        if rank is None:
            return  # a kernel of a rank that has been stopped before
        raise KernbenchError(
            f"rank {rank} waits inside {' and '.join(changed)}: with isolation='greenlet' ranks share one thread, so this "
            "would hold for the other ranks, too. Wait outside of it, or spawn with isolation='carrier' (the default)."
        )
