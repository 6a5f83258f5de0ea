"""NVML, the driver's library for listing GPUs, as ranks find it: ``ctypes.CDLL("libnvidia-ml.so.1")``.

Packages that ask it (``nvidia-ml-py`` and copies of it, torch itself) stay as they are: they load the library by name and call
its C functions, and in a rank those are the ones here, of the GPUs of its node. What is not modelled (utilization, temperature,
power draw, errors) is answered as by a driver that does not support the question. A process of a command that has not joined
yet has the GPUs that its environment names; elsewhere the machine's own library answers. Facts: NVIDIA, NVML API Reference
Guide.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

from kernbench.driver_tools.inventory import Gpu, gpus_of_node, has_smi, told_gpus
from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.device.software_versions import CUDA, DRIVER
from kernbench.torch_backend.patches import Patches

LIBRARIES = frozenset({"libnvidia-ml.so.1", "libnvidia-ml.so"})

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, LIBRARY_NOT_FOUND = 0, 2, 3, 6, 7, 12

_ERRORS = {
    SUCCESS: b"Success", 1: b"Uninitialized", INVALID_ARGUMENT: b"Invalid Argument", NOT_SUPPORTED: b"Not Supported",
    4: b"Insufficient Permissions", NOT_FOUND: b"Not Found", INSUFFICIENT_SIZE: b"Insufficient Size",
    9: b"Driver Not Loaded", LIBRARY_NOT_FOUND: b"NVML Shared Library Not Found", 13: b"Function Not Found",
    999: b"Unknown Error",
}  # fmt: skip

_FIRST = 0x1000
"""Handles are numbers from here on, one for each GPU of the node: they are never followed as addresses."""

_ARCHITECTURES = {7: 6, 8: 7, 9: 9, 10: 10, 12: 10}
"""NVML's number of an architecture by the major compute capability."""

_stock: Any = ctypes.CDLL.__init__


def install(patches: Patches) -> None:
    """Let ranks load it."""

    @functools.wraps(_stock)
    def load(self: object, name: object, *args: object, **kwargs: object) -> None:
        device = current_device()
        known = isinstance(name, str | bytes) and os.path.basename(os.fsdecode(name)) in LIBRARIES
        if not known or device is None or not has_smi(device.simulation.topology):
            _stock(self, name, *args, **kwargs)
        else:
            loaded(self, name)

    patches.set(ctypes.CDLL, "__init__", load)


def loaded(library: Any, name: object) -> None:
    """``library``, a :class:`ctypes.CDLL`, is this one: in a rank, or in a process whose environment names GPUs."""
    library._name, library._handle, library._FuncPtr = name, 0, _function


class _Failed(Exception):
    """A call that does not succeed: args are the code."""


def _function(name_and_library: tuple[str, Any]) -> Callable[..., Any]:
    """A C function by name. Raises AttributeError for one that is not NVML's."""
    name, library = name_and_library
    if not name.startswith("nvml"):
        raise AttributeError(f"{library._name}: undefined symbol: {name}")
    base = name[:-3] if name[-3:-1] == "_v" else name

    def call(*args: object) -> Any:
        if current_device() is None and not told_gpus():
            return _of_the_machine(library._name, name, args)
        if base == "nvmlErrorString":
            return _ERRORS.get(_number(args[0]), b"Unknown Error")
        answer = _ANSWERS.get(base)
        if answer is None:
            return NOT_SUPPORTED
        try:
            answer(*args)
        except _Failed as failed:
            return failed.args[0]
        return SUCCESS

    return call


def _of_the_machine(library: str, name: str, args: tuple[object, ...]) -> Any:
    """What the machine's own library answers a program that has loaded ours in a rank."""
    try:
        own: Any = ctypes.CDLL.__new__(ctypes.CDLL)
        _stock(own, library)
    except OSError:
        return _ERRORS[LIBRARY_NOT_FOUND] if name == "nvmlErrorString" else LIBRARY_NOT_FOUND
    function = getattr(own, name)
    if name == "nvmlErrorString":
        function.restype = ctypes.c_char_p
    return function(*args)


# -- arguments -----------------------------------------------------------------------------------------------------------


def _number(value: Any) -> int:
    return int(getattr(value, "value", value))


def _target(reference: object) -> Any:
    """What an argument points to: that of ``byref``, of a pointer, or the buffer itself."""
    if hasattr(reference, "_obj"):
        return reference._obj
    return reference.contents if hasattr(reference, "contents") else reference


def _write(reference: object, value: int) -> None:
    _target(reference).value = value


def _write_text(buffer: object, size: object, text: str) -> None:
    encoded = text.encode()
    if len(encoded) >= _number(size):
        raise _Failed(INSUFFICIENT_SIZE)
    _target(buffer).value = encoded


def _fill(reference: object, **fields: object) -> None:
    """Fields of a structure, those that this release of it has."""
    structure = _target(reference)
    for name, value in fields.items():
        if hasattr(structure, name):
            setattr(structure, name, value)


def _gpu(handle: Any) -> Gpu:
    """Of a handle. Fails for one that is none."""
    number = ctypes.cast(handle, ctypes.c_void_p).value if not isinstance(handle, int) else handle
    return _numbered(-1 if number is None else number - _FIRST)


def _numbered(index: int) -> Gpu:
    gpus = _gpus()
    if not 0 <= index < len(gpus):
        raise _Failed(INVALID_ARGUMENT)
    return gpus[index]


def _gpus() -> list[Gpu]:
    device = current_device()
    return told_gpus() if device is None else gpus_of_node(device)


def _give_handle(reference: object, gpu: Gpu) -> None:
    place = ctypes.c_void_p.from_address(ctypes.addressof(_target(reference)))
    place.value = _FIRST + gpu.number


def _found(wanted: Any, reference: object, of: Callable[[Gpu], str]) -> None:
    text = os.fsdecode(getattr(wanted, "value", wanted)).lower()
    for gpu in _gpus():
        if of(gpu).lower().endswith(text) and text:
            _give_handle(reference, gpu)
            return
    raise _Failed(NOT_FOUND)


# -- answers -------------------------------------------------------------------------------------------------------------


def _nothing(*args: object) -> None:
    """Done."""


def _memory(handle: object, info: object) -> None:
    gpu = _gpu(handle)
    _fill(info, total=gpu.total, free=gpu.total - gpu.taken, used=gpu.taken, reserved=0)


def _capability(handle: object, major: object, minor: object) -> None:
    gpu = _gpu(handle)
    _write(major, gpu.capability[0])
    _write(minor, gpu.capability[1])


def _pci(handle: object, info: object) -> None:
    gpu = _gpu(handle)
    _fill(
        info, busId=gpu.bus_id.encode(), busIdLegacy=gpu.bus_id[4:].encode(), domain=0, bus=gpu.bus, device=0,
        pciDeviceId=0, pciSubSystemId=0,
    )  # fmt: skip


def _architecture(handle: object, found: object) -> None:
    major = _gpu(handle).capability
    _write(found, 8 if major == (8, 9) else _ARCHITECTURES.get(major[0], 0xFFFFFFFF))


def _clock(handle: object, kind: object, found: object) -> None:
    if _number(kind) == 2:  # that of the memory
        raise _Failed(NOT_SUPPORTED)
    _write(found, round(_gpu(handle).clock / 1e6))


def _power_limit(handle: object, found: object) -> None:
    power = _gpu(handle).power
    if not power:
        raise _Failed(NOT_SUPPORTED)
    _write(found, round(1e3 * power))


def _processes(handle: object, count: object, infos: Any) -> None:
    used = _gpu(handle).used
    room = _number(_target(count))
    _write(count, len(used))
    if len(used) > room:
        raise _Failed(INSUFFICIENT_SIZE)
    for place, (pid, nbytes) in enumerate(used.items()):
        info = infos[place]
        info.pid, info.usedGpuMemory = pid, nbytes


def _peers(one: object, other: object, question: object, found: object) -> None:
    _gpu(one)
    _gpu(other)
    _write(found, 0)  # every simulated GPU reaches every other one


def _affinity(count: int) -> Callable[..., None]:
    """A mask of the first ``count`` CPUs, or nodes of memory: no description says which are near a GPU, so all are."""

    def answer(handle: object, words: object, mask: Any, scope: object = 0) -> None:
        _gpu(handle)
        bits = 8 * ctypes.sizeof(ctypes.c_ulong)
        if count > bits * _number(words):
            raise _Failed(INSUFFICIENT_SIZE)
        near = (1 << count) - 1
        place = ctypes.cast(ctypes.addressof(_target(mask)), ctypes.POINTER(ctypes.c_ulong))
        for word in range(_number(words)):
            place[word] = near >> bits * word & (1 << bits) - 1

    return answer


def _two(first: int, second: int) -> Callable[..., None]:
    def answer(handle: object, one: object, other: object) -> None:
        _gpu(handle)
        _write(one, first)
        _write(other, second)

    return answer


def _one(of: Callable[[Gpu], int]) -> Callable[..., None]:
    return lambda handle, found: _write(found, of(_gpu(handle)))


def _text(of: Callable[[Gpu], str]) -> Callable[..., None]:
    return lambda handle, buffer, size: _write_text(buffer, size, of(_gpu(handle)))


_ANSWERS: dict[str, Callable[..., None]] = {
    "nvmlInit": _nothing,
    "nvmlInitWithFlags": _nothing,
    "nvmlShutdown": _nothing,
    "nvmlSystemGetDriverVersion": lambda buffer, size: _write_text(buffer, size, DRIVER),
    "nvmlSystemGetNVMLVersion": lambda buffer, size: _write_text(buffer, size, f"{CUDA[0]}.{DRIVER}"),
    "nvmlSystemGetCudaDriverVersion": lambda found: _write(found, 1000 * CUDA[0] + 10 * CUDA[1]),
    "nvmlDeviceGetCount": lambda found: _write(found, len(_gpus())),
    "nvmlDeviceGetHandleByIndex": lambda index, handle: _give_handle(handle, _numbered(_number(index))),
    "nvmlDeviceGetHandleByUUID": lambda wanted, handle: _found(wanted, handle, lambda gpu: gpu.uuid),
    "nvmlDeviceGetHandleByPciBusId": lambda wanted, handle: _found(wanted, handle, lambda gpu: gpu.bus_id),
    "nvmlDeviceGetName": _text(lambda gpu: gpu.name),
    "nvmlDeviceGetUUID": _text(lambda gpu: gpu.uuid),
    "nvmlDeviceGetIndex": _one(lambda gpu: gpu.number),
    "nvmlDeviceGetMinorNumber": _one(lambda gpu: gpu.number),
    "nvmlDeviceGetPciInfo": _pci,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetCudaComputeCapability": _capability,
    "nvmlDeviceGetArchitecture": _architecture,
    "nvmlDeviceGetMaxClockInfo": _clock,
    "nvmlDeviceGetPowerManagementLimit": _power_limit,
    "nvmlDeviceGetPowerManagementDefaultLimit": _power_limit,
    "nvmlDeviceGetEnforcedPowerLimit": _power_limit,
    "nvmlDeviceGetComputeRunningProcesses": _processes,
    "nvmlDeviceGetP2PStatus": _peers,
    "nvmlDeviceGetCpuAffinity": _affinity(os.cpu_count() or 1),
    "nvmlDeviceGetCpuAffinityWithinScope": _affinity(os.cpu_count() or 1),
    "nvmlDeviceGetMemoryAffinity": _affinity(1),
    "nvmlDeviceSetCpuAffinity": lambda handle: _nothing(_gpu(handle)),
    "nvmlDeviceClearCpuAffinity": lambda handle: _nothing(_gpu(handle)),
    "nvmlDeviceGetMigMode": _two(0, 0),
    "nvmlDeviceGetPersistenceMode": _one(lambda gpu: 1),
    "nvmlDeviceGetComputeMode": _one(lambda gpu: 0),
    "nvmlDeviceGetDisplayActive": _one(lambda gpu: 0),
}
"""By the functions' names without their releases."""
