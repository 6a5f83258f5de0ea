"""State that torch and Python keep per process, kept per rank.

Grad mode, autocast, dispatch modes and the like are per thread, and a rank's body has a thread of its own. What remains is
switched here when another rank than the last one runs: torch's CPU generator, the default dtype, the flags of scaled dot
product attention and of cuDNN, the precision of products, ``os.environ``, ``sys.argv``, ``sys.path``, ``sys.meta_path``,
``sys.stdin``, ``sys.stdout``, ``sys.stderr``, the working directory, ``__main__``, the modules of the program, and the globals
of ``per_rank_modules``. The generators of ``random`` and ``numpy.random`` are costly to switch and rarely used: they follow at
a rank's next use of them.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint

from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.device.identity import capability_of
from kernbench.torch_backend.gpu.kernels.attention_choice import first_order
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state import (
    child_environment,
    fx_traces,
    loggers,
    mocks,
    precisions,
    replaced_attributes,
    settings_made_once,
)
from kernbench.torch_backend.rank_state.interpreter import ANOMALY, DETERMINISTIC, PRINTING
from kernbench.torch_backend.rank_state.lazy_generators import LazyGenerators
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.rank_state.rank_modules import RankModules
from kernbench.torch_backend.relies_on import Reliance

Getter = Callable[[], Any]
Setter = Callable[[Any], None]

_SDPA: Any = torch.backends.cuda
_C: Any = torch._C
FLAGS: tuple[tuple[Getter, Setter], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (_C._get_flash_sdp_enabled, _SDPA.enable_flash_sdp),
    (_C._get_math_sdp_enabled, _SDPA.enable_math_sdp),
    (_C._get_mem_efficient_sdp_enabled, _SDPA.enable_mem_efficient_sdp),
    (_C._get_cudnn_sdp_enabled, _SDPA.enable_cudnn_sdp),
    (_C._get_sdp_priority_order, _C._set_sdp_priority_order),
    (_C._get_math_sdp_allow_fp16_bf16_reduction, _C._set_math_sdp_allow_fp16_bf16_reduction),
    (_C._get_cudnn_enabled, _C._set_cudnn_enabled),
    (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    (_C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    (_C._get_cublas_allow_fp16_accumulation, _C._set_cublas_allow_fp16_accumulation),
    (_C._get_mkldnn_enabled, _C._set_mkldnn_enabled),
    (_C._get_warnAlways, _C._set_warnAlways),
    (_C._get_deterministic_fill_uninitialized_memory, _C._set_deterministic_fill_uninitialized_memory),
    (precisions.legacy_convolutions, precisions.set_legacy_convolutions),
)
"""Settings of the process that a rank may change and that are read at once, by how they are read and written."""

_ATTENTION = [read for read, _ in FLAGS].index(_C._get_sdp_priority_order)
"""Which of them is the order of attention's kernels."""

_MODULES: Any = torch.__future__
_CHECKPOINT: Any = torch.utils.checkpoint.DefaultDeviceType

RARE: tuple[tuple[Any, str, Getter, Setter], ...] = (
    (_C, "_set_deterministic_algorithms", *DETERMINISTIC),
    (torch, "set_anomaly_enabled", *ANOMALY),
    (torch, "set_printoptions", *PRINTING),
    *(
        (_MODULES, f"set_{name}", getattr(_MODULES, f"get_{name}"), getattr(_MODULES, f"set_{name}"))
        for name in (
            "overwrite_module_params_on_conversion",
            "swap_module_params_on_conversion",
        )
    ),
    (_CHECKPOINT, "set_device_type", _CHECKPOINT.get_device_type, _CHECKPOINT.set_device_type),
    *((_C, name, precisions.read, precisions.write) for name in precisions.SETTERS),
    *((_C, name, precisions.read_sums, precisions.write_sums) for name in precisions.SETTERS_OF_SUMS),
)
"""Those that take long to read: what a function that sets them is called, and of what, how they are read and written."""

_READERS = tuple(read for read, _ in FLAGS)
_WRITERS = tuple(write for _, write in FLAGS)


RELIES_ON = (
    Reliance(
        "os.environ", "its variables are in a dictionary, `_data`, of encoded names", has=("_data", "encodekey"),
        holds=lambda environ: environ._data[environ.encodekey("PATH")] == environ.encodevalue(environ["PATH"]),
    ),
    Reliance("torch.default_generator", "torch draws from it", has=("get_state", "set_state", "manual_seed")),
    Reliance("torch._C", "torch.backends.cuda asks these which attention is enabled", has=(
        "_get_flash_sdp_enabled", "_get_math_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_cudnn_sdp_enabled",
        "_get_sdp_priority_order", "_set_sdp_priority_order",
    )),
    Reliance("torch._C", "torch.backends and torch itself keep these settings there", has=tuple(
        f"_{verb}_{name}" for verb in ("get", "set") for name in (
            "math_sdp_allow_fp16_bf16_reduction", "cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic",
            "cublas_allow_fp16_accumulation", "mkldnn_enabled", "warnAlways", "deterministic_fill_uninitialized_memory",
        )
    )),
    Reliance("torch.distributed", "the debug level is read and changed by these", has=(
        "get_debug_level", "set_debug_level", "set_debug_level_from_env",
    )),
    Reliance("torch._C._distributed_c10d.set_debug_level", "it changes the level, also while torch.distributed's is replaced"),
)  # fmt: skip


def seed_of(seed: int, rank: int) -> int:
    """The seed of a rank's generators until it sets one: differs between ranks, as separate processes' do."""
    return seed * 1_000_003 + rank + 1


_SEEN_BY_C = frozenset({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"})
"""Variables that are the same in every rank, which C++ may read past ``os.environ``."""


_chdir, _fchdir = os.chdir, os.fchdir

_REMOVED = "(removed)"


def _folder() -> str:
    """The working directory, or that there is none any more."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return _REMOVED


def go_to(folder: str) -> None:
    """Make it the working directory; one that has been removed is as one that was removed while a process was in it."""
    try:
        _chdir(folder)
    except OSError:
        nowhere = tempfile.mkdtemp(prefix="kernbench-")
        _chdir(nowhere)
        os.rmdir(nowhere)


_DEBUG_VARIABLE = "TORCH_DISTRIBUTED_DEBUG"

_GENERATOR = torch.default_generator


class _Saved:
    """One rank's process-wide state while another rank runs."""

    __slots__ = (
        "argv", "environ", "excepthook", "finders", "flags", "folder", "generator", "given", "main", "path", "streams",
    )  # fmt: skip

    generator: torch.Tensor | None  # None: a rank's that has not run yet
    flags: tuple[Any, ...]
    environ: dict[Any, Any]
    main: Any
    excepthook: Any  # init_process_group puts the rank's number before what is printed
    argv: list[str]
    path: list[str]
    finders: list[Any]  # sys.meta_path: a test runner's finder, say, has what it knows of its own session
    streams: tuple[Any, Any, Any]  # redirect_stdout, say, sets what the rank alone is to print to
    folder: str | None  # the working directory, once a rank has changed its own
    given: dict[Any, Any]  # the variables that a rank started with


class _RankFinders(list[Any]):
    """``sys.meta_path`` of a rank: what is asked first in main is asked first here, whatever the program puts before it."""

    def insert(self, index: Any, finder: object) -> None:
        at = max(index + len(self), 0) if index < 0 else index
        super().insert(max(at, 1), finder)


class ProcessState:
    """Switches the state of the process between the ranks of one spawn and main (rank None).

    Attributes:
        main_modules: the ranks' ``__main__``, where they have one of their own.
        variables: the environment variables that a rank has besides main's.
        of_children: what else the environment of a process says that a rank starts with these variables.
        search_path: what a rank has for main's search path (``PATH``).
        modules: the globals of modules that ranks share.
        rank_modules: modules that each rank executes itself; None: they share all that they import.
    """

    def __init__(
        self, simulation: Simulation, world_size: int, per_rank_modules: Sequence[str], generators: LazyGenerators
    ) -> None:
        self._simulation = simulation
        self._world_size = world_size
        self._resident: int | None = None
        self._saved: dict[int | None, _Saved] = {}
        self._environ: Any = os.environ
        self._encodings: dict[str, Any] = {}
        self._told: dict[str, str] = {}
        self._folder = ""
        self._folders_differ = False
        self._open = False
        self._readers, self._writers = _READERS, _WRITERS
        self.main_modules: dict[int, Any] = {}
        self.variables: Callable[[int], dict[str, str]] = self._default_variables
        self.of_children: Callable[[dict[str, str]], dict[str, str]] = _nothing_more
        self.search_path: Callable[[str], str] = str
        self._generators = generators
        self.modules = ModuleGlobals(per_rank_modules)
        self.rank_modules: RankModules | None = None

    def open(self, patches: Patches) -> None:
        """Remember main's state. From here on :meth:`enter` switches."""
        self._open = True
        self._generators.open(lambda rank: seed_of(self._simulation.seed, rank))
        self._switch_once_set(patches, dist, "set_debug_level", dist.get_debug_level, dist.set_debug_level)
        precisions.install(patches)
        for owner, name, read, write in RARE:
            self._switch_once_set(patches, owner, name, read, write)
        patches.set(dist, "set_debug_level_from_env", self._debug_level_from_env(dist.set_debug_level_from_env))
        patches.set(os, "chdir", self._change_folder)
        patches.set(os, "fchdir", self._change_folder_to)
        child_environment.install(patches, self.of_children, self._simulation.scheduler.current_rank)
        may_be_own = _is_no_module if self.rank_modules is None else self.rank_modules.may_be_own
        loggers.install(patches, self._generators, self.modules, may_be_own)
        settings_made_once.install(patches, self._generators, self.modules)
        mocks.install(patches, self.modules, self._simulation.scheduler.current_rank)
        fx_traces.install(patches, self.modules, self._simulation.scheduler.current_rank)
        own = self.rank_modules.is_own if self.rank_modules is not None else _is_shared
        replaced_attributes.install(patches, self.modules, own, self._simulation.scheduler.current_rank)
        if self.rank_modules is not None:
            self.rank_modules.open()
        self.modules.open()  # from here on, what is set in a module that it watches is main's

    def close(self) -> None:
        """Put main's state back. Idempotent."""
        if not self._open:
            return
        self.enter(None)
        self._open = False
        self._generators.close()
        self.modules.close()
        if self.rank_modules is not None:
            self.rank_modules.close()
        self._restore_c_environment()
        self._saved.clear()

    def enter(self, rank: int | None) -> None:
        """Make the state of ``rank`` that of the process; a no-op if it is already."""
        resident = self._resident
        if rank == resident or not self._open:
            return
        saved = self._saved.get(resident)
        if saved is None:
            saved = self._saved[resident] = _Saved()
            saved.given = self._environ._data
        flags = tuple([read() for read in self._readers])
        saved.generator = _GENERATOR.get_state()
        saved.flags = flags
        saved.environ = self._environ._data
        saved.main = sys.modules.get("__main__")
        saved.argv, saved.path, saved.excepthook = sys.argv, sys.path, sys.excepthook
        saved.finders, saved.streams = sys.meta_path, (sys.stdin, sys.stdout, sys.stderr)
        saved.folder = _folder() if self._folders_differ else None
        state = self._saved.get(rank)
        if state is None:
            assert rank is not None
            state = self._saved[rank] = self._fresh(rank)
        if state.generator is None:
            assert rank is not None
            _GENERATOR.manual_seed(seed_of(self._simulation.seed, rank))
        else:
            _GENERATOR.set_state(state.generator)
        if state.flags != flags:
            for write, value, present in zip(self._writers, state.flags, flags, strict=True):
                if value != present:
                    write(value)
        self._environ._data = state.environ
        sys.argv, sys.path, sys.excepthook = state.argv, state.path, state.excepthook
        sys.meta_path, (sys.stdin, sys.stdout, sys.stderr) = state.finders, state.streams
        if self._folders_differ and (folder := state.folder or self._folder) != saved.folder:
            go_to(folder)
        if state.main is not None:
            sys.modules["__main__"] = state.main
        self.modules.switch(resident, rank)
        if self.rank_modules is not None:
            self.rank_modules.switch(resident, rank)
        self._resident = self._generators.resident = rank

    def _switch_once_set(self, patches: Patches, owner: Any, name: str, read: Getter, write: Setter) -> None:
        """A setting that takes long to read and is rarely changed is switched from the first change on.

        Not if it is set to what it is, as Dynamo does.

        Args:
            owner, name: of a function that sets it.
            read, write: the setting as a whole.
        """
        stock = getattr(owner, name)

        @functools.wraps(stock)
        def change(*args: object, **kwargs: Any) -> None:
            before = read()
            stock(*args, **kwargs)
            if before != read() and write not in self._writers:
                self._readers, self._writers = (*self._readers, read), (*self._writers, write)
                for saved in self._saved.values():
                    saved.flags = (*saved.flags, before)

        patches.set(owner, name, change)

    def _change_folder(self, path: Any) -> None:
        """``os.chdir``. From the first one on, ranks' folders are compared."""
        self._compare_folders()
        _chdir(path)

    def _change_folder_to(self, fd: Any) -> None:
        """``os.fchdir``."""
        self._compare_folders()
        _fchdir(fd)

    def _compare_folders(self) -> None:
        if not self._folders_differ:
            self._folder, self._folders_differ = _folder(), True

    @staticmethod
    def _debug_level_from_env(stock: Callable[[], None]) -> Callable[[], None]:
        """The level that the rank's own variable names: C++ reads the process's, which is that of the rank that set it last."""

        @functools.wraps(stock)
        def set_debug_level_from_env() -> None:
            before = dist.get_debug_level()
            if (named := os.environ.get(_DEBUG_VARIABLE)) is None:
                os.unsetenv(_DEBUG_VARIABLE)
            else:
                os.putenv(_DEBUG_VARIABLE, named)
            try:
                stock()
            finally:
                level = dist.get_debug_level()
                _C._distributed_c10d.set_debug_level(before)
            dist.set_debug_level(level)  # as what it is from here on: this rank's

        return set_debug_level_from_env

    def _fresh(self, rank: int) -> _Saved:
        main = self._saved[None]
        fresh = _Saved()
        fresh.generator = None
        fresh.flags = main.flags
        path = {"PATH": self.search_path(os.environ.get("PATH", os.defpath))}
        variables = self.variables(rank)
        fresh.environ = {**main.environ, **self._encoded({**path, **variables})}
        fresh.given = fresh.environ.copy()
        capability = capability_of(self._simulation.topology.device.target.arch)
        order = first_order(capability, ChainMap(variables, os.environ), main.flags[_ATTENTION])
        fresh.flags = (*main.flags[:_ATTENTION], order, *main.flags[_ATTENTION + 1 :])
        fresh.main = self.main_modules.get(rank, main.main)
        fresh.argv, fresh.path, fresh.folder = [*main.argv], [*main.path], None
        fresh.excepthook, fresh.finders, fresh.streams = main.excepthook, _RankFinders(main.finders), main.streams
        return fresh

    def _encoded(self, variables: dict[str, str]) -> dict[Any, Any]:
        """Variables as ``os.environ`` keeps them; those that C++ may read are passed to the C library too."""
        known = self._encodings
        for text in (*variables, *variables.values()):
            if text not in known:
                known[text] = self._environ.encodekey(text)
        seen = {name: variables[name] for name in _SEEN_BY_C if name in variables}
        if seen != self._told:
            self._told = seen
            for name, value in seen.items():
                os.putenv(name, value)
        return {known[name]: known[value] for name, value in variables.items()}

    def _default_variables(self, rank: int) -> dict[str, str]:
        return rank_variables(rank, self._world_size, self._world_size)

    def _restore_c_environment(self) -> None:
        """``os.environ[...] = ...`` in a rank has also reached the C library's variables: put those back."""
        if not self._saved:
            return  # no rank had variables of its own
        environ = self._environ
        mains = environ._data  # main may have set some itself since the ranks were made
        touched = {environ.encodekey(name) for name in (*self._told, _DEBUG_VARIABLE)}
        for state in self._saved.values():
            if state.environ != state.given:
                touched |= {key for key in state.environ.keys() | state.given.keys()
                            if state.environ.get(key) != state.given.get(key)}  # fmt: skip
        for key in touched:
            if key in mains:
                os.putenv(key, mains[key])
            else:
                os.unsetenv(key)


def _is_shared(name: str) -> bool:
    """Of a module: ranks execute none themselves."""
    return False


def _is_no_module(name: str) -> bool:
    return name.partition(".")[0] not in sys.modules


def _nothing_more(environ: dict[str, str]) -> dict[str, str]:
    """Children have their parent's variables."""
    return {}


def rank_variables(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    """The environment variables by which torchrun tells a process who it is."""
    node, local = divmod(rank, local_world_size)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(-(-world_size // local_world_size)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "kernbench",
    }
