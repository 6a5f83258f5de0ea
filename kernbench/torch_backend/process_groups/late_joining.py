"""A process that may turn out to be a rank: in ``init_process_group``, or when it uses a GPU and ``RANK`` is set. One that
uses a GPU and is none has one of its own.

Until then torch is torch's own, but for questions about GPUs that programs ask before, and the choice of one of them.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch
import torch.distributed.distributed_c10d
from torch.types import Device

from kernbench.errors import KernbenchError
from kernbench.input_files import whole_number
from kernbench.torch_backend.device_numbers import number_of
from kernbench.torch_backend.gpu.device import software_versions
from kernbench.torch_backend.gpu.device.visible_devices import NodeGpus
from kernbench.torch_backend.process_groups import first_uses, threads_as_ranks
from kernbench.torch_backend.relies_on import Reliance

_OWNERS = ("torch.distributed.distributed_c10d", "torch.distributed", "torch.distributed.device_mesh")

_REPLACED = ("torch.cuda", "torch.cuda.memory", "torch.cuda.random", "torch.accelerator", "torch.accelerator.memory")
"""Modules whose functions call what C++ has of a GPU."""

_ROOTS = frozenset({"torch", __name__.partition(".")[0]})

RELIES_ON = (
    *(
        Reliance(f"{owner}.init_process_group", "its caller there learns first that the process is a rank", parameters=(
            "init_method", "world_size", "rank",
        ))
        for owner in _OWNERS
    ),
    Reliance("sys._getframe", "the frames of the thread that runs, innermost first"),
    Reliance("torch._dynamo.convert_frame", "the module asks for a GPU whenever it compiles", has=("preserve_global_state",)),
    Reliance("torch.cuda._is_compiled", "programs ask before they count GPUs by the next"),
    Reliance("torch.cuda._device_count_nvml", "they count GPUs by it without using one"),
    Reliance("torch.cuda._lazy_init", "the first use of a GPU calls it, also from C++"),
    Reliance("torch._C._accelerator_isAllocatorInitialized", "what is asked of a GPU's memory depends on it"),
    Reliance("torch._C._accelerator_emptyHostCache", "programs give back memory at their end, whether they had any or not"),
)  # fmt: skip

Join = Callable[[int, int], None]

_here: list[_Waiting] = []
"""What this process may turn out to be."""

_NO_RANK_YET = (
    "a GPU is used by a process that is no rank yet: a process under 'kernbench run -- COMMAND' is one from "
    "init_process_group on, or from the start if RANK and WORLD_SIZE are set (0 and 1: one by itself)"
)

_COMPILES = ("torch._dynamo.convert_frame", "torch._dynamo.variables.streams", "torch._dynamo.utils")

_IN_COMPILED_CODE = (
    "the first use of a GPU in this process is in code that torch.compile compiles, and the GPU cannot begin there: use it "
    "before, by torch.cuda.init()"
)

_ALONE = (
    "init_process_group(rank={}, world_size={}): this process used a GPU before it was known to be a rank, and has one of its "
    "own since, in a world of one. Call init_process_group before the first use of a GPU (torch.cuda.set_device is none), or "
    "start the process with RANK and WORLD_SIZE set, under 'kernbench run -- COMMAND'"
)


def install(
    join: Join,
    named: Callable[[], tuple[int, int] | None],
    gpus: NodeGpus,
    properties: Mapping[str, object] | None = None,
    cuda: str | None = None,
    be_alone: Callable[[], None] | None = None,
) -> None:
    """Have ``join(rank, world_size)`` called once it is known who the process is.

    Args:
        named: rank and size of the world that the environment names, if it does.
        gpus: of a node.
        properties: of each, as ``torch.cuda.get_device_properties`` gives them.
        cuda: what ``torch.version.cuda`` is to say, whatever torch was built for.
        be_alone: called when a GPU is used by a process of which that is not known: gives it one of its own. None: refused.
    """
    waiting = _Waiting(join, named, gpus, be_alone)
    _here.append(waiting)
    for owner, name, value in _told(waiting, properties, cuda):
        setattr(owner, name, value)
        if isinstance(value, FunctionType):
            waiting.told[owner, name] = value
    stock: Any = torch.distributed.init_process_group
    init_process_group = waiting.before(stock)
    for owner_name in _OWNERS:
        module = sys.modules.get(owner_name)
        if module is not None and vars(module).get("init_process_group") is stock:
            vars(module)["init_process_group"] = init_process_group


def simulates() -> None:
    """This process simulates ranks: it has GPUs while it does, and is none of another simulation. Idempotent."""
    for waiting in _here:
        waiting.leave()


def _told(
    waiting: _Waiting, properties: Mapping[str, object] | None, cuda: str | None
) -> Iterator[tuple[Any, str, Any]]:
    """What has another value in a process that is no rank yet: owner, name and value."""
    if properties:
        for name, value in _told_of(waiting, SimpleNamespace(**properties)).items():
            yield torch.cuda, name, value
        yield torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda")
    for owner in (torch.cuda, torch.accelerator):
        yield owner, "is_available", lambda: bool(waiting.visible) and not _asks_to_compile(sys._getframe(1))
        yield owner, "device_count", lambda: len(waiting.visible)
    yield torch.cuda, "_is_compiled", lambda: cuda is not None and not _asks_for_torch(sys._getframe(1))
    yield torch.cuda, "_device_count_nvml", lambda: len(waiting.visible)
    yield torch.cuda, "set_device", waiting.set_device
    yield torch.cuda, "current_device", waiting.current_device
    yield from first_uses.of_process(waiting.use, _names_gpu, waiting.covered)
    yield torch.cuda, "_lazy_init", waiting.use
    yield torch.version, "cuda", cuda
    yield torch.cuda.nccl, "version", software_versions.nccl_version
    for owner in (torch.distributed, torch.distributed.distributed_c10d):
        yield owner, "is_nccl_available", lambda: True
        yield owner, "is_mpi_available", lambda: True
    for name in ("set_device_index", "set_device_idx"):
        yield torch.accelerator, name, waiting.set_device
    for name in ("current_device_index", "current_device_idx"):
        yield torch.accelerator, name, waiting.current_device
    yield torch._C, "_accelerator_isAllocatorInitialized", lambda: False
    yield torch._C, "_accelerator_emptyHostCache", lambda: None
    yield torch._C, "_cuda_getCurrentRawStream", waiting.raw_stream  # packages take it when they are imported
    yield torch._C, "_cuda_cudaCachingAllocator_is_enabled", lambda: True


def _asks_for_torch(frame: FrameType) -> bool:
    """Whether a module of torch's asks, which is about to import what only builds for CUDA have."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"


def _asks_to_compile(frame: FrameType) -> bool:
    """Whether Dynamo asks, which keeps the state and the streams of a GPU while it compiles: there is none yet."""
    return frame.f_globals.get("__name__") in _COMPILES


def _is_compiling(frame: FrameType | None) -> bool:
    while frame is not None and not _asks_to_compile(frame):
        frame = frame.f_back
    return frame is not None


def _told_of(waiting: _Waiting, gpu: SimpleNamespace) -> dict[str, object]:
    """What ``torch.cuda`` says of a GPU before the first use of one: launchers ask, and packages when they are imported."""

    def properties(device: Device = None) -> SimpleNamespace:
        waiting.number(device)
        return gpu

    return {
        "get_device_properties": properties,
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_capability": lambda device=None: (properties(device).major, gpu.minor),
        "is_bf16_supported": lambda including_emulation=True: True,
        "can_device_access_peer": lambda device, peer_device: True,
        "get_arch_list": lambda: list(software_versions.ARCHITECTURES if torch.version.cuda else ()),
    }


class _Waiting:
    """A process that is no rank yet.

    Attributes:
        device: the GPU that it has chosen, None if it has not.
        joined: whether it has become a rank, or has a GPU of its own. What programs had put around these functions still calls
            them.
        told: the functions that torch has until then, by owner and name.
        covered: see :data:`.first_uses.Covered`.
    """

    def __init__(
        self,
        join: Join,
        named: Callable[[], tuple[int, int] | None],
        gpus: NodeGpus,
        be_alone: Callable[[], None] | None,
    ) -> None:
        self._join: Join | None = join  # None: it has begun to
        self._be_alone = be_alone
        self._is_alone = False
        self._named = named
        self._gpus = gpus
        self.device: int | None = None
        self.joined = False
        self.told: dict[tuple[Any, str], FunctionType] = {}
        self.covered: dict[tuple[object, str], tuple[FunctionType, Callable[..., Any] | None]] = {}

    @property
    def visible(self) -> tuple[int, ...]:
        """The GPUs of its node that it sees; which node that is the launcher has said, if it has."""
        first = self._gpus.per_node * (whole_number(os.environ.get("GROUP_RANK", "")) or 0)
        return self._gpus._replace(first=first).visible()

    def set_device(self, device: Device) -> None:
        """``torch.cuda.set_device``: of the rank that the process may become."""
        if self.joined:
            _names_of_ranks().set_device(device)
            return
        index = self.number(device)
        if index is not None:
            self.device = index

    def current_device(self) -> int:
        """``torch.cuda.current_device``, likewise."""
        return int(_names_of_ranks().current_device_index()) if self.joined else self.device or 0

    def number(self, device: Device) -> int | None:
        """The number that a device has, None if it is the current one. Raises RuntimeError if there is no such GPU."""
        index = number_of(device)
        if index is None or index < 0:
            return None
        if index >= (count := len(self.visible)):
            raise RuntimeError(f"CUDA error: invalid device ordinal (there are {count} GPUs)")
        return int(index)

    def use(self) -> bool:
        """The program wants something of a GPU. Whether that has made the process a rank."""
        if self.joined:
            return False
        if _is_compiling(sys._getframe(1)):
            raise KernbenchError(_IN_COMPILED_CODE)
        who = self._named()
        join = self._join
        if join is not None and who is not None:
            self._become(functools.partial(join, *who))
        elif join is not None and self._be_alone is not None:
            self._become(self._be_alone)
            self._is_alone = True
        else:
            raise KernbenchError(_NO_RANK_YET)
        return True

    def leave(self) -> None:
        """It turns out to be no rank of a simulation elsewhere."""
        self._join = None
        self.joined = True
        self.covered.update({key: (function, None) for key, function in self._put_around().items()})

    def raw_stream(self, device: int = 0) -> int:
        """``torch._C._cuda_getCurrentRawStream``, which a build without CUDA does not have."""
        self.use()
        return int(torch.cuda.current_stream(device).cuda_stream)  # the rank's

    def before(self, stock: Callable[..., object]) -> Callable[..., Any]:
        """``init_process_group``, before which the process learns that it is a rank."""

        @functools.wraps(stock)
        def init_process_group(*args: object, **kwargs: object) -> Any:
            who, join = _who(stock, args, kwargs), self._join
            if self._is_alone and who is not None and who[1] > 1:
                raise KernbenchError(_ALONE.format(*who))
            if join is not None and who is not None and not threads_as_ranks.are_installed():
                self._become(functools.partial(join, *who))
            return stock(*args, **kwargs)

        return init_process_group

    def _put_around(self) -> dict[tuple[object, str], FunctionType]:
        """The functions that the program has put around those of :attr:`told`."""
        now = ((key, mine, getattr(*key)) for key, mine in self.told.items())
        return {
            key: function for key, mine, function in now if function is not mine and isinstance(function, FunctionType)
        }

    def _become(self, join: Callable[[], None]) -> None:
        self._join = None
        replaced: dict[tuple[object, str], FunctionType] = self._put_around()
        replaced.update({(module, name): function for module, name, function in _replaced_by_programs()})
        join()
        self.joined = True
        for (owner, name), function in replaced.items():
            ranks = getattr(owner, name)
            if _stands_on(ranks, function):
                self.covered[owner, name] = ranks, None
            else:
                self.covered[owner, name] = function, ranks
                setattr(owner, name, function)
        if self.device is not None:
            torch.cuda.set_device(self.device)


def _stands_on(function: Any, other: object) -> bool:
    """Whether a function is another one, or is put around it (:func:`functools.wraps`)."""
    while function is not None and function is not other:
        function = getattr(function, "__wrapped__", None)
    return function is not None


def _names_gpu(*devices: object) -> bool:
    """Whether one of these, if it is a device, is a GPU."""
    return any(
        device.partition(":")[0] == "cuda" if isinstance(device, str) else getattr(device, "type", "") == "cuda"
        for device in devices
    )


def _names_of_ranks() -> Any:
    from kernbench.torch_backend.gpu.names import cuda_names  # a process that is no rank does without

    return cuda_names


def _replaced_by_programs() -> Iterator[tuple[ModuleType, str, FunctionType]]:
    """The functions that the program has put in the place of torch's: they stay, and what they call reaches the rank's GPU."""
    for module in filter(None, map(sys.modules.get, _REPLACED)):
        for name, value in [*vars(module).items()]:
            if isinstance(value, FunctionType):
                package = str(value.__globals__.get("__name__")).partition(".")[0]
                if package not in _ROOTS:
                    yield module, name, value


def _who(stock: Callable[..., object], args: Any, kwargs: Any) -> tuple[int, int] | None:
    """Rank and size of the world that a call speaks of; None if it does not say, which torch complains of."""
    names = stock.__code__.co_varnames[: stock.__code__.co_argcount]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    asked = parse_qs(urlparse(str(given.get("init_method") or "")).query)
    found = []
    for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        value: Any = given.get(name)
        if value in (None, -1):
            value = asked.get(name, [os.environ.get(variable)])[0]
        if value is None:
            return None
        found.append(int(value))
    return found[0], found[1]
