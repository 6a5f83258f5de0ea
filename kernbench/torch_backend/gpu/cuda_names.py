"""``torch.cuda`` and ``torch.accelerator`` inside a rank: a table from name to what it does on a simulated GPU.

Time is virtual: ``synchronize`` and ``Event.elapsed_time`` speak of it. What cannot be pretended raises and says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from kernbench.cost.work import stated_cost
from kernbench.errors import KernbenchError
from kernbench.sim_engine.operation import COMPUTE_STREAM, Operation
from kernbench.torch_backend.gpu.generators import DefaultGenerators
from kernbench.torch_backend.patches import Patches

if TYPE_CHECKING:
    from kernbench.torch_backend.gpu.devices import Devices

UNAVAILABLE = (
    "CUDAGraph", "graph", "make_graphed_callables", "memory_snapshot", "MemPool", "use_mem_pool",
    "caching_allocator_alloc", "cudart",
)  # fmt: skip
"""Names that need a CUDA runtime."""


class _Streams:
    """Streams and events of the ranks of one spawn.

    A rank has one default stream and as many others as it makes; each is a stream of its SIP. What a stream waits for is
    kept with the rank, until something is enqueued on it.
    """

    def __init__(self, devices: Devices) -> None:
        made: dict[int | None, int] = {}

        class Stream:
            """A stream of a simulated GPU; without a ``name``, a new one."""

            def __init__(
                self, device: Any = None, priority: int = 0, *, name: str | None = None, **kwargs: Any
            ) -> None:
                self.device = torch.device("cuda", devices.number(device))
                self.device_index = self.device.index
                self.priority = priority
                if name is None:
                    state = devices.mine().state
                    made[state.rank] = number = made.get(state.rank, 0) + 1
                    name = f"stream {number}"
                self.name = name
                self.cuda_stream = self.stream_id = 0 if name == COMPUTE_STREAM else int(name.rpartition(" ")[2])

            def synchronize(self) -> None:
                devices.mine().finish_stream(self.name)

            def wait_stream(self, stream: Any) -> None:
                """What is enqueued here next starts after what is on ``stream`` now."""
                state = devices.mine().state
                state.let_wait(self.name, state.before(stream.name))

            def wait_event(self, event: Any) -> None:
                """What is enqueued here next starts after the event."""
                devices.mine().state.let_wait(self.name, event._after)

            def record_event(self, event: Any = None) -> Any:
                event = event or Event()
                event.record(self)
                return event

            def query(self) -> bool:
                now = devices.ctx.now()
                return all(op.end is not None and op.end <= now for op in devices.mine().state.before(self.name))

            def is_capturing(self) -> bool:
                return False

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Stream) and (other.name, other.device) == (self.name, self.device)

            def __hash__(self) -> int:
                return hash((self.name, self.device))

            def __repr__(self) -> str:
                return f"<torch.cuda.Stream device={self.device} {self.name} (simulated)>"

            def __enter__(self) -> Any:
                self._context = StreamContext(self)
                self._context.__enter__()
                return self

            def __exit__(self, *exc: Any) -> None:
                self._context.__exit__(*exc)

        class StreamContext:
            """Another stream for the length of a block."""

            def __init__(self, stream: Any) -> None:
                self.stream = stream

            def __enter__(self) -> None:
                self._before = current(None)
                use(self.stream)

            def __exit__(self, *exc: Any) -> None:
                use(self._before)

        class Event:
            """A moment on a rank's stream."""

            def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
                         external: bool = False) -> None:  # fmt: skip
                if interprocess:
                    raise KernbenchError("a simulated GPU has no interprocess events: ranks share a process")
                self.enable_timing = enable_timing
                self._after: Sequence[Operation] = ()
                self._clock: float | None = None

            def record(self, stream: Any = None) -> None:
                state = devices.mine().state
                self._after = state.before(state.stream if stream is None else stream.name)
                self._clock = state.clock

            def _time(self) -> float:
                if self._clock is None:
                    raise RuntimeError("the event has not been recorded")
                moment = self._clock
                for op in self._after:
                    if op.end is None:
                        devices.ctx.wait(op)
                    assert op.end is not None
                    moment = max(moment, op.end)
                return moment

            def synchronize(self) -> None:
                for op in self._after:
                    devices.ctx.wait(op)

            def wait(self, stream: Any = None) -> None:
                """What is enqueued next on ``stream``, or on the current one, starts after it."""
                state = devices.mine().state
                state.let_wait(state.stream if stream is None else stream.name, self._after)

            def query(self) -> bool:
                if any(op.end is None for op in self._after):
                    devices.ctx.polls.look(next(op for op in self._after if op.end is None))
                now = devices.ctx.now()
                return all(op.end is not None and op.end <= now for op in self._after)

            def elapsed_time(self, end: Any) -> float:
                """Milliseconds of virtual time from this event to ``end``."""
                if not (self.enable_timing and end.enable_timing):
                    raise ValueError("both events must be created with enable_timing=True")
                return (end._time() - self._time()) * 1e3

        def use(stream: Any) -> None:
            """``torch.cuda.set_stream``."""
            if stream is not None:
                devices.mine().state.use_stream(stream.name)

        def current(device: Any = None) -> Any:
            """``torch.cuda.current_stream``."""
            return Stream(device, name=devices.mine().state.stream)

        def default(device: Any = None) -> Any:
            """``torch.cuda.default_stream``."""
            return Stream(device, name=COMPUTE_STREAM)

        self.Stream, self.Event, self.StreamContext = Stream, Event, StreamContext
        self.use, self.current, self.default = use, current, default


NCCL_VERSION = (2, 27, 3)
"""What programs, and torch's own error messages, are told of NCCL: what it offers torch 2.13 is there."""


class _Stats(dict[str, int]):
    """Statistics of an allocator: those that do not exist here are zero."""

    def __missing__(self, key: str) -> int:
        return 0


def _properties(devices: Devices) -> Any:
    topology = devices.ctx.topology
    spec = topology.device
    arch = spec.target.arch
    major, minor = divmod(arch, 10) if isinstance(arch, int) else (9, 4)
    return SimpleNamespace(
        name=spec.name, major=major, minor=minor, total_memory=spec.hbm.size, multi_processor_count=spec.pes,
        is_integrated=0, is_multi_gpu_board=0, warp_size=spec.target.warp_size, gcnArchName=str(arch),
        max_threads_per_multi_processor=spec.pe.max_threads, regs_per_multiprocessor=spec.pe.registers // 4,
        shared_memory_per_multiprocessor=spec.pe.tcm.size, shared_memory_per_block=spec.pe.tcm_per_block,
        shared_memory_per_block_optin=spec.pe.tcm_per_block, L2_cache_size=spec.l2.size if spec.l2 else 0,
    )  # fmt: skip


def names(devices: Devices) -> dict[str, Any]:
    """``torch.cuda``'s attributes."""
    streams = _Streams(devices)

    def generator(device: Any = None) -> torch.Generator:
        return devices.mine().generators.of(devices.number(device))

    def seed_all(seed: Any) -> None:
        if devices.current() is not None:
            devices.mine().generators.seed_all(int(seed))

    def set_all(new_states: Sequence[torch.Tensor]) -> None:
        for index, state in enumerate(new_states):
            generator(index).set_state(state.cpu())

    def use(device: Any) -> None:
        number = devices.number(device) if devices.current() is not None else 0
        if device is None or (isinstance(device, int) and device < 0):
            return
        if devices.current() is None:
            return  # a thread of the rank's own, such as a DataLoader's that pins memory
        mine = devices.mine()
        mine.used = True
        mine.state.sip = devices.ctx.sips[number]

    def exchange(device: Any) -> int:
        before = devices.mine().index
        use(device)
        return before

    class on:  # torch's name is `device`, a class
        """Another device for the length of a block."""

        def __init__(self, device: Any) -> None:
            self.idx = devices.number(device)

        def __enter__(self) -> None:
            self._before = devices.mine().state.sip
            use(self.idx)

        def __exit__(self, *exc: Any) -> None:
            devices.mine().state.sip = self._before

    def reset_peak(device: Any = None) -> None:
        memory = devices.memory_at(device)
        memory.peak = memory.used

    def set_fraction(fraction: float, device: Any = None) -> None:
        memory = devices.memory_at(device)
        memory.fraction, memory.limited = fraction, True

    def stats(device: Any = None) -> dict[str, int]:
        memory = devices.memory_at(device)
        return _Stats(
            {
                f"{what}_bytes.all.{when}": value
                for what in ("allocated", "reserved", "active")
                for when, value in (("current", memory.used), ("peak", memory.peak))
            }
        )

    def free_and_total(device: Any = None) -> tuple[int, int]:
        memory = devices.memory_at(device)
        return memory.capacity - memory.used, memory.capacity

    def used(device: Any = None) -> int:
        return devices.memory_at(device).used

    def peak(device: Any = None) -> int:
        return devices.memory_at(device).peak

    def capability(device: Any = None) -> tuple[int, int]:
        properties = _properties(devices)
        return properties.major, properties.minor

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Without effect on a simulated GPU."""

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_initialized": True,
        "_is_compiled": lambda: True,
        "init": nothing,
        "_lazy_init": nothing,
        "_lazy_call": lambda callable, **kwargs: callable(),
        "is_bf16_supported": lambda including_emulation=True: True,
        "device_count": lambda: devices.count,
        "current_device": lambda: devices.mine().index,
        "set_device": use,
        "device": on,
        "_DeviceGuard": on,
        "_exchange_device": exchange,
        "_maybe_exchange_device": _another(exchange),
        "synchronize": lambda device=None: devices.mine().synchronize(),
        "ipc_collect": nothing,
        "is_current_stream_capturing": lambda: False,
        "empty_cache": nothing,
        "get_device_name": lambda device=None: _properties(devices).name,
        "get_device_capability": capability,
        "get_device_properties": lambda device=None: _properties(devices),
        "can_device_access_peer": lambda device, peer_device: True,
        "get_arch_list": list,
        "Stream": streams.Stream,
        "Event": streams.Event,
        "stream": streams.StreamContext,
        "StreamContext": streams.StreamContext,
        "set_stream": streams.use,
        "current_stream": streams.current,
        "default_stream": streams.default,
        "mem_get_info": free_and_total,
        "memory_allocated": used,
        "max_memory_allocated": peak,
        "memory_reserved": used,
        "max_memory_reserved": peak,
        "memory_stats": stats,
        "memory_summary": lambda device=None, abbreviated=False: "\n".join(
            f"{k}: {v}" for k, v in stats(device).items()
        ),
        "reset_peak_memory_stats": reset_peak,
        "reset_max_memory_allocated": reset_peak,
        "reset_accumulated_memory_stats": nothing,
        "set_per_process_memory_fraction": set_fraction,
        "manual_seed": lambda seed: generator().manual_seed(int(seed)) and None,
        "manual_seed_all": seed_all,
        "seed": lambda: generator().seed() and None,
        "seed_all": lambda: seed_all(generator().seed()),
        "initial_seed": lambda: generator().initial_seed(),
        "get_rng_state": lambda device="cuda": generator(device).get_state(),
        "set_rng_state": lambda new_state, device="cuda": generator(device).set_state(new_state.cpu()) and None,
        "get_rng_state_all": lambda: [generator(index).get_state() for index in range(devices.count)],
        "set_rng_state_all": set_all,
        "default_generators": DefaultGenerators(lambda: devices.count, generator),
        "_sleep": lambda cycles: devices.mine().enqueue("sleep", stated_cost(cycles / 1e9)) and None,
    }


def install(patches: Patches, devices: Devices) -> dict[str, Any]:
    """Give ``torch.cuda``, ``torch.cuda.nvtx`` and ``torch.accelerator`` the simulated GPUs. Returns the attributes."""
    table = _each_its_own(names(devices))
    for name, value in table.items():
        patches.set(torch.cuda, name, value)
    for module in (torch.cuda.random, torch.cuda.memory, torch.cuda.streams):
        for name in set(vars(module)) & set(table):
            patches.set(module, name, table[name])
    for name in UNAVAILABLE:
        if hasattr(torch.cuda, name):
            patches.set(torch.cuda, name, _unavailable(f"torch.cuda.{name}"))
    patches.set(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
    for name in ("start", "stop"):
        patches.set(torch.cuda.profiler, name, lambda: None)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        patches.set(torch.cuda.nvtx, name, lambda *args, **kwargs: 0)
    patches.set(torch.cuda.nccl, "version", lambda: (2, 27, 7))  # asked for when a collective fails
    patches.set(torch.cuda.nvtx, "range", lambda *args, **kwargs: contextlib.nullcontext())
    accelerator: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": table["device_count"],
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": table["current_device"],
        "current_device_idx": table["current_device"],
        "set_device_index": table["set_device"],
        "set_device_idx": table["set_device"],
        "current_stream": table["current_stream"],
        "set_stream": table["set_stream"],
        "synchronize": table["synchronize"],
        "empty_cache": table["empty_cache"],
        "memory_allocated": table["memory_allocated"],
        "max_memory_allocated": table["max_memory_allocated"],
        "memory_reserved": table["memory_reserved"],
        "max_memory_reserved": table["max_memory_reserved"],
        "memory_stats": table["memory_stats"],
        "reset_peak_memory_stats": table["reset_peak_memory_stats"],
        "get_memory_info": table["mem_get_info"],
        "get_device_capability": table["get_device_capability"],
    }
    for name, value in _each_its_own(accelerator, table.values()).items():
        if hasattr(torch.accelerator, name):
            patches.set(torch.accelerator, name, value)
    return table


def _each_its_own(table: dict[str, Any], taken: Iterable[Any] = ()) -> dict[str, Any]:
    """The table with no function twice, nor one of those ``taken``: Dynamo looks up by function which name it has."""
    seen = {id(value) for value in taken}
    own = {}
    for name, value in table.items():
        own[name] = _another(value) if id(value) in seen and isinstance(value, FunctionType) else value
        seen.add(id(value))
    return own


def _another(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own that does the same."""
    return lambda *args, **kwargs: function(*args, **kwargs)


def _unavailable(name: str) -> Any:
    def raises(*args: Any, **kwargs: Any) -> Any:
        raise KernbenchError(f"{name} needs a CUDA runtime: a simulated GPU cannot pretend it")

    return raises
