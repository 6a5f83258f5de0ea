"""Dynamo inside ranks (ADR 0111): it compiles what a rank marks, beneath the mode that records. What becomes of its graphs is
in :mod:`kernbench.torch_backend.compiled`.

Dynamo keeps tables by function of what torch's names mean; inside a simulation some of the names are ours. So the tables are
made anew for it, and again after it.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import iter_modules
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from kernbench.sim_engine import Condition
from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.kernels import fused_attention
from kernbench.torch_backend.hollow.assumed_numbers import as_plain_numbers
from kernbench.torch_backend.patches import Patches, replaced
from kernbench.torch_backend.relies_on import Reliance
from kernbench.version import __version__

MODULE = "torch._dynamo"

_PACKAGE, _FOLDER = __name__.partition(".")[0], Path(__file__).parents[2]

_TRACED = frozenset({"benches", "programs", "stand_ins", "testing", "tp"})
"""Parts of kernbench that are programs of ranks, or called by them as other packages are. All others run below them."""

_LIMITS = ("recompile_limit", "accumulated_recompile_limit")
"""How often Dynamo compiles one function: the ranks of a process share the functions of what they import."""

_RANKS = 1024

_VARIABLES, _OBJECTS = "torch._dynamo.variables.torch", "torch._dynamo.variables.script_object"

_TENSORS = "torch._dynamo.variables.tensor"

_PLACES = ("method_attr_device", "method_get_device")
"""Where Dynamo is asked which GPU a tensor is on."""

_CONTEXTS, _BLOCKS = "torch._dynamo.variables.ctx_manager", "_device_context_manager_map"

_EXCHANGES = ("_exchange_fn", "_maybe_exchange_fn")
"""What its variables for blocks with a GPU of their own enter and leave these by."""

_KEYED = (
    (_VARIABLES, "constant_fold_functions"), (_VARIABLES, "constant_fold_functions_need_guards"),
    (_CONTEXTS, _BLOCKS),
    ("torch._dynamo.variables.streams", "_stream_fn_to_variable_cls"), ("torch._dynamo.utils", "common_constant_types"),
)  # fmt: skip
"""Tables of Dynamo's, of what it knows by the function or class itself."""

_LIBRARY = sysconfig.get_path("stdlib") + os.sep
"""Where Python's own modules are."""

_INNER = "_torchdynamo_orig_backend"

_OF_AOTAUTOGRAD = {"force_non_lazy_backward_lowering": True, "graphsafe_rng_functionalization": False}
"""Settings of AOTAutograd: backward is compiled with forward; what is recomputed gets the state of a generator, not a generator
of a CUDA runtime."""

_TAG = "cache_key_tag"
"""What tells code that is cached apart from that of other programs: what is traced here is not what is traced on hardware."""


RELIES_ON = (
    Reliance("sys._getframe", "what calls a frame that would be compiled is the frame of its callback's caller"),
    Reliance("torch._dynamo.trace_rules", "its tables of what names mean are made anew", has=("add", "clear_lru_cache")),
    Reliance("torch._dynamo.trace_rules._numpy_function_ids", "made at its first use, and again where these are None",
             has=("function_ids", "function_names", "lazy_initializer")),
    Reliance("torch._dynamo.variables.torch.TorchInGraphFunctionVariable._get_handlers", "this one, too", has=("cache_clear",)),
    Reliance(
        "torch._dynamo.eval_frame.set_fullgraph_compiled_frame_count", "a rank on a GPU is not warned of nothing compiled",
        looked_up_by=("torch._dynamo.eval_frame",),
    ),
    Reliance(
        "torch._dynamo.config._config", "it holds the defaults of Dynamo's settings",
        holds=lambda config: all(isinstance(config[name].default, int) for name in _LIMITS),
    ),
    Reliance("torch.compiler.config._config", "settings of torch.compile have defaults, too",
             holds=lambda config: config[_TAG].default == ""),
    Reliance(
        "torch._dynamo.convert_frame.CatchErrorsWrapper.__call__", "frames are compiled in it", parameters=("self", "frame"),
    ),
    Reliance(
        "torch._functorch.config._config", "AOTAutograd's settings have defaults",
        holds=lambda config: all(isinstance(config[name].default, bool) for name in _OF_AOTAUTOGRAD),
    ),
    Reliance(
        "torch._dynamo.types.ConvertFrameReturn", "by itself it says that a frame runs as it is",
        holds=lambda made: made().guarded_code is None,
    ),
    Reliance("torch._dynamo.convert_frame.input_codes", "what was compiled is in it", has=("seen",)),
    Reliance("torch._dynamo.reset", "what was compiled is forgotten"),
    Reliance(f"{_VARIABLES}.get_overridable_functions", "operands' classes are asked about these functions", looked_up_by=(
        f"{_VARIABLES}.TorchInGraphFunctionVariable.torch_function_override_enabled",
    )),
    Reliance(f"{_OBJECTS}.get_member_type", "it says which members of groups and meshes become constants", looked_up_by=(
        f"{_OBJECTS}.TorchScriptObjectVariable.call_method", f"{_OBJECTS}.TorchScriptObjectVariable.var_getattr",
    )),
    Reliance(f"{_VARIABLES}.TorchInGraphFunctionVariable.can_constant_fold_through",
             "so do results of functions, each of which is asked it when it is called", parameters=("self",)),
    *(Reliance(f"{_TENSORS}.TensorVariable.{name}", "where a tensor is becomes a constant", parameters=("self", "tx"))
      for name in _PLACES),
    *(Reliance(f"{module}.{name}", "by functions and classes of torch's it knows what they give",
               holds=lambda table: isinstance(table, dict | set)) for module, name in _KEYED),
    Reliance(f"{_CONTEXTS}.CUDADeviceVariable", "it exchanges GPUs by these", has=_EXCHANGES),
    Reliance("torch._TorchCompileInductorWrapper", "it is the backend where Inductor compiles"),
    Reliance("torch._dynamo.convert_frame.CatchErrorsWrapper.__init__", "what is put around a backend names that so",
             holds=lambda init: _INNER in init.__code__.co_names),
    Reliance("torch._C._dynamo.guards.RootGuardManager", "a compiled function has guards", has=("add_lambda_guard",)),
    Reliance("torch._dynamo.types.GuardedCode", "it is kept with them there",
             holds=lambda kept: "guard_manager" in kept.__annotations__),
    Reliance("torch._dynamo.allow_in_graph", "a function that it takes into its graph as it is, for AOTAutograd to trace"),
)  # fmt: skip


def install(patches: Patches, module: ModuleType) -> None:
    """Let Dynamo step over kernbench, and know the names of torch as they are in the simulation."""
    rules = sys.modules["torch._dynamo.trace_rules"]
    for part in iter_modules([str(_FOLDER)]):
        name = f"{_PACKAGE}.{part.name}"
        if part.name not in _TRACED and name not in _told:
            rules.add(name)
            _told.add(name)
    module.allow_in_graph(fused_attention.in_graphs)
    _ask_masks(patches)
    config: Any = sys.modules["torch._dynamo.config"]
    for name in _LIMITS:
        entry = config._config[name]
        patches.set(entry, "default", entry.default * _RANKS)
    tag: Any = torch.compiler.config._config[_TAG]  # type: ignore[attr-defined]
    for name in ("default", "env_value_default"):
        if isinstance(value := getattr(tag, name), str):
            patches.set(tag, name, f"{value} kernbench {__version__}".lstrip())
    stock_count = module.eval_frame.set_fullgraph_compiled_frame_count

    def count(new: int) -> int:
        compiled: int = stock_count(new)
        device = current_device()
        return 1 if compiled == 0 and device is not None and device.host.uses_gpu else compiled

    patches.set(module.eval_frame, "set_fullgraph_compiled_frame_count", count)
    _compile_aside(patches)
    _know_replaced(patches)
    forget_names()


def _know_replaced(patches: Patches) -> None:
    """Let Dynamo take what stands in the place of torch's functions and classes for what it knows these to be: constants, for
    one. The entries remain, as their keys do."""
    exchanging = set(vars(sys.modules[_CONTEXTS])[_BLOCKS].values())
    tables: list[Any] = [vars(sys.modules[module])[name] for module, name in _KEYED]
    for stock, value in replaced():
        if not isinstance(stock, FunctionType | BuiltinFunctionType | type):
            continue
        for table in tables:
            if stock not in table:
                continue
            if not isinstance(table, set):
                table[value] = table[stock]
            elif isinstance(value, type):
                table.add(value)
        for variable in exchanging:
            for name in _EXCHANGES:
                if getattr(variable, name) is stock:
                    patches.set(variable, name, staticmethod(value))


def _ask_masks(patches: Patches) -> None:
    """Let Dynamo ask the class of an operand what attention with it is, as it does of torch's own function
    (``torch.nn.attention.bias.CausalBias`` is such a class)."""
    variables: Any = sys.modules[_VARIABLES]
    stock = variables.get_overridable_functions

    @functools.cache
    def get_overridable_functions() -> set[Any]:
        return {*stock(), fused_attention.in_graphs}

    patches.set(variables, "get_overridable_functions", get_overridable_functions)


def _compile_aside(patches: Patches) -> None:
    """Let compilation take no virtual time, also that of a backward pass, which happens with its forward's."""
    callback: Any = sys.modules["torch._dynamo.convert_frame"].CatchErrorsWrapper
    stock = callback.__call__
    skipped: Any = sys.modules["torch._dynamo.types"].ConvertFrameReturn
    turn, constants = _Turn(), _ConstantsOfRanks(patches)

    def compile_frame(self: object, frame: FrameType, *args: object) -> Any:
        if _is_generated(frame) or _is_called_by_ours(frame, sys._getframe(1)):
            return skipped()
        device = current_device()
        if device is None:
            return stock(self, frame, *args)
        with device.host.compiling(), turn.taken(device), as_plain_numbers(), constants.guarded(device, self) as keep:
            return keep(stock(self, frame, *args))

    patches.set(callback, "__call__", compile_frame)
    functorch: Any = sys.modules["torch._functorch.config"]
    for name, value in _OF_AOTAUTOGRAD.items():
        patches.set(functorch._config[name], "default", value)


def _is_generated(frame: FrameType) -> bool:
    """Whether a frame is of a function that was made for a class of ours (a dataclass), which has no file to be known by."""
    if frame.f_code.co_filename != "<string>":
        return False
    return _is_ours(frame)


def _is_called_by_ours(frame: FrameType, caller: FrameType) -> bool:
    """Whether a frame is of Python's library, called by code of ours, as where a module gets a parameter while what is compiled
    runs: Dynamo passes our frames over, and not what they call."""
    file = frame.f_code.co_filename
    return file.startswith(_LIBRARY) and f"-packages{os.sep}" not in file and _is_ours(caller)


def _is_ours(frame: FrameType) -> bool:
    package, _, rest = str(frame.f_globals.get("__name__", "")).partition(".")
    return package == _PACKAGE and rest.partition(".")[0] not in _TRACED


class _ConstantsOfRanks:
    """What a rank's group or mesh answers while a function is compiled, and the GPU that a tensor says it is on, become
    constants of it, without a guard that sees whose they are. The ranks of a process share the code of what they import, so
    that is guarded by the rank; as is all that another backend than Inductor compiles: its graphs do not count GPUs from
    their own (ADR 0113)."""

    def __init__(self, patches: Patches) -> None:
        self._asked = False
        objects: Any = sys.modules[_OBJECTS]
        functions: Any = sys.modules[_VARIABLES].TorchInGraphFunctionVariable
        stock_member, stock_folds = objects.get_member_type, functions.can_constant_fold_through

        @functools.wraps(stock_member)
        def get_member_type(cls: object, member_name: str) -> Any:
            found = stock_member(cls, member_name)
            self._asked |= found is objects.MemberType.USE_REAL
            return found

        @functools.wraps(stock_folds)
        def can_constant_fold_through(variable: Any) -> bool:
            self._asked |= str(getattr(variable.value, "__module__", "")).startswith(torch.distributed.__name__)
            return bool(stock_folds(variable))

        tensors: Any = sys.modules[_TENSORS].TensorVariable
        for name in _PLACES:
            patches.set(tensors, name, self._noting(getattr(tensors, name)))
        patches.set(objects, "get_member_type", get_member_type)
        patches.set(functions, "can_constant_fold_through", can_constant_fold_through)

    def _noting(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def place(variable: Any, tx: object) -> Any:
            self._asked |= getattr(variable.device, "type", "") == "cuda"
            return stock(variable, tx)

        return place

    @contextmanager
    def guarded(self, device: RankDevice, callback: Any) -> Iterator[Callable[[Any], Any]]:
        """A block in which ``callback`` compiles a rank's function: gives what puts the guard on the result, if needed."""
        rank, outer = weakref.ref(device.host), self._asked
        self._asked = not isinstance(_backend_of(callback), torch._TorchCompileInductorWrapper)

        def is_this_rank(_: object) -> bool:
            now = current_device()
            return now is not None and now.host is rank()

        def keep(made: Any) -> Any:
            if self._asked and made.guarded_code is not None:
                said = [f"the rank that runs is rank {device.host.rank}"]
                made.guarded_code.guard_manager.root.add_lambda_guard(is_this_rank, said, None)
            return made

        try:
            yield keep
        finally:
            self._asked = outer


def _backend_of(callback: object) -> Any:
    """The backend that the program asked for, in what Dynamo has put around it."""
    while (inner := getattr(callback, _INNER, None)) is not None:
        callback = inner
    return callback


class _Turn:
    """One rank compiles at a time: Dynamo's lock and tables are the process's, and a rank that measures kernels on the way lets
    other ranks run."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._depth = 0
        self._waiting: list[Condition] = []

    @contextmanager
    def taken(self, device: RankDevice) -> Iterator[None]:
        """For the length of a block it is this rank's turn; nests."""
        rank = device.host.rank
        while self._depth and self._rank != rank:
            mine = Condition("its turn to compile", rank)
            self._waiting.append(mine)
            device.simulation.waits.block_on(mine)
        self._rank = rank
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                waiting, self._waiting = self._waiting, []
                for each in waiting:
                    each.fulfil()


_told: set[str] = set()


def forget_compiled() -> None:
    """Let what was compiled outside of a simulation, or in it, be compiled again.

    A compiled function's guards do not tell tensors of simulated GPUs from the host's, nor one GPU from another.
    """
    dynamo: Any = sys.modules.get("torch._dynamo")
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    if dynamo is None or frames is None or not frames.input_codes.seen:
        return
    try:
        dynamo.reset()
    except RuntimeError as error:  # the process ends, and what this would import of Inductor cannot begin any more
        if "after shutdown" not in str(error):
            raise


def forget_names() -> None:
    """Let Dynamo look torch's names up anew."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    variables: Any = sys.modules.get("torch._dynamo.variables.torch")
    if rules is not None:
        rules.clear_lru_cache()
        # by the numbers of objects: a function of ours that stood in numpy.random is gone, and its number another one's
        rules._numpy_function_ids.function_ids = rules._numpy_function_ids.function_names = None
    if variables is not None:
        variables.TorchInGraphFunctionVariable._get_handlers.cache_clear()
