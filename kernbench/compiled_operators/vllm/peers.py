"""vLLM's collectives of its own between the GPUs of a node (``_C_custom_ar``), whose kernels read the buffers of their peers.

Each is posted as a collective by the direct algorithm that its kernel is, and vLLM's Python chooses it as on hardware. An
all-reduce of two GPUs takes one step, and so does a short one of up to eight; a longer one takes two. What is not registered is
copied into the rank's buffer first.

A buffer's handle says whose it is; so this works for ranks that are processes, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch

from kernbench.ccl.reduce_op import ReduceOp
from kernbench.compiled_operators.vllm.core import operators
from kernbench.errors import KernbenchError
from kernbench.simulation.matching.groups import Communicator, Signature
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.tensors.placement import place_shared
from kernbench.torch_backend.modes import plain_torch
from kernbench.torch_backend.symmetric_memory.buffers import SymmetricMemory, current
from kernbench.torch_backend.symmetric_memory.operations import post

Tensor = torch.Tensor

_HANDLE_BYTES = 64
"""Of ``cudaIpcMemHandle_t``."""

_META_BYTES = 4864
"""Of the signals before a rank's intermediate results: two words for each of 36 blocks and 16 peers, and one for each block.
UNVERIFIED: the compiled library was not asked."""

_FAR = 1 << 48
"""Addresses from here on stand for buffers of peers; no memory is there."""

_ONE_STEP = {2: 1 << 62, 4: 512 << 10, 8: 256 << 10}
"""Up to how many GPUs, below how many bytes an all-reduce takes one step (vLLM's ``custom_all_reduce.cuh``)."""


@dataclass
class _Peers:
    """What one rank has of its own and of its peers.

    Attributes:
        buffers: of this rank, by address.
        groups: the members of each communicator, by its number.
    """

    buffers: dict[int, Tensor] = field(default_factory=dict)
    groups: dict[int, Communicator] = field(default_factory=dict)


_known: WeakKeyDictionary[Simulation, dict[int, _Peers]] = WeakKeyDictionary()


def _memory() -> SymmetricMemory:
    memory = current()
    if memory is None:
        raise KernbenchError("vLLM's collectives between GPUs are for ranks: there is no simulated GPU here")
    return memory


def _mine(memory: SymmetricMemory) -> _Peers:
    simulation = memory.simulation
    return _known.setdefault(simulation, {}).setdefault(simulation.hosts.current_rank(), _Peers())


# -- buffers --------------------------------------------------------------------------------------------------------------


@operators.program
def meta_size() -> int:
    """Bytes of a rank's signals."""
    return _META_BYTES


@operators.program
def allocate_shared_buffer_and_handle(size: int) -> tuple[int, Tensor]:
    """A buffer on the current GPU, outside torch's allocator: its address, and ``[64]`` uint8 that a peer opens it by."""
    memory = _memory()
    with plain_torch():
        buffer = torch.empty(max(size, 1), dtype=torch.uint8)
        handle = torch.zeros(_HANDLE_BYTES, dtype=torch.uint8)
        handle.view(torch.int64)[0] = memory.simulation.hosts.current_rank()
    place_shared(buffer, memory.devices.memory_at(None))
    _mine(memory).buffers[buffer.data_ptr()] = buffer
    return buffer.data_ptr(), handle


@operators.program
def open_mem_handle(mem_handle: Tensor) -> int:
    """The address that stands for a peer's buffer."""
    return _FAR + int(mem_handle.view(torch.int64)[0])


@operators.program
def free_shared_buffer(ptr: int) -> None:
    """Give back a buffer of this rank."""
    _mine(_memory()).buffers.pop(ptr, None)


# -- communicators --------------------------------------------------------------------------------------------------------


@operators.program
def init_custom_ar(ipc_tensors: Sequence[int], rank_data: Tensor, rank: int, fully_connected: bool) -> int:
    """The number of a communicator of the ranks whose buffers these are."""
    memory = _memory()
    me, mine = memory.simulation.hosts.current_rank(), _mine(memory)
    members = tuple(me if at == rank else address - _FAR for at, address in enumerate(ipc_tensors))
    if any(each < 0 for each in members):
        raise KernbenchError(
            "vLLM's collectives between GPUs of several nodes (multi-node NVLink) are not simulated: its Python takes NCCL's "
            "with disable_custom_all_reduce=True"
        )
    number = len(mine.groups) + 1
    group = memory.simulation.world.communicators.of(me, "custom all-reduce", members, False)
    mine.groups[number] = group.peers
    return number


@operators.program
def register_buffer(fa: int, ipc_tensors: Sequence[int]) -> None:
    """Buffers that need no copy: here each call says which it uses."""


@operators.program
def get_graph_buffer_ipc_meta(fa: int) -> tuple[list[int], list[int]]:
    """What a graph has captured that peers have to open: nothing, since a captured call knows its tensors."""
    return [], []


@operators.program
def register_graph_buffers(fa: int, handles: Sequence[Sequence[int]], offsets: Sequence[Sequence[int]]) -> None:
    """Peers' captured buffers, of which there are none."""


@operators.program
def dispose(fa: int) -> None:
    """Forget a communicator."""
    _mine(_memory()).groups.pop(fa, None)


# -- collectives ----------------------------------------------------------------------------------------------------------


@operators.program
def all_reduce(fa: int, inp: Tensor, out: Tensor, reg_buffer: int, reg_buffer_sz_bytes: int) -> None:
    """``out``: the sum of every member's ``inp``, copied to the buffer at ``reg_buffer`` first unless that is 0."""
    memory = _memory()
    group = _mine(memory).groups[fa]
    brought = _registered(memory, inp, reg_buffer, reg_buffer_sz_bytes)
    one_step = next((inp.nbytes < most for size, most in _ONE_STEP.items() if group.size <= size), False)
    algorithm = "one_shot_pull" if one_step else "two_shot_pull"
    signature = Signature("all_reduce", tuple(inp.shape), inp.dtype, ReduceOp.SUM.value, None, algorithm)
    post(memory.simulation, group, signature, [brought], [out])


@operators.program
def custom_all_gather(fa: int, inp: Tensor, out: Tensor, reg_buffer: int, reg_buffer_sz_bytes: int) -> None:
    """``out``: every member's ``inp``, in their order."""
    memory = _memory()
    brought = _registered(memory, inp, reg_buffer, reg_buffer_sz_bytes)
    _gathered(memory, fa, brought, out, "direct_allgather")


@operators.program
def custom_reduce_scatter(fa: int, inp: Tensor, out: Tensor, reg_buffer: int, reg_buffer_sz_bytes: int) -> None:
    """``out``: this member's part of the sum of every member's ``inp``."""
    memory = _memory()
    _scattered(memory, fa, _registered(memory, inp, reg_buffer, reg_buffer_sz_bytes), out)


@operators.program
def mnnvl_lamport_all_gather(fa: int, inp: Tensor, out: Tensor) -> None:
    """``out``: every member's ``inp``, which each has written to all at once through the switch."""
    _gathered(_memory(), fa, inp, out, "nvls_allgather")


@operators.program
def mnnvl_lamport_reduce_scatter(fa: int, inp: Tensor, out: Tensor) -> None:
    """``out``: this member's part of the sum of every member's ``inp``, whose parts each has written to their owners."""
    _scattered(_memory(), fa, inp, out)


def _gathered(memory: SymmetricMemory, fa: int, inp: Tensor, out: Tensor, algorithm: str) -> None:
    group = _mine(memory).groups[fa]
    cells = out.view(-1).split(inp.numel())
    signature = Signature("all_gather", tuple(inp.shape), inp.dtype, None, None, algorithm)
    post(memory.simulation, group, signature, [inp.reshape(-1)], cells)


def _scattered(memory: SymmetricMemory, fa: int, inp: Tensor, out: Tensor) -> None:
    group = _mine(memory).groups[fa]
    cells = inp.reshape(-1).split(out.numel())
    signature = Signature(
        "reduce_scatter", tuple(out.shape), out.dtype, ReduceOp.SUM.value, None, "direct_reducescatter"
    )
    post(memory.simulation, group, signature, cells, [out.view(-1)])


def _registered(memory: SymmetricMemory, inp: Tensor, address: int, nbytes: int) -> Tensor:
    """The input where peers can read it: itself, or the rank's buffer at ``address``, which it is copied to."""
    if not address:
        return inp
    if inp.nbytes > nbytes:
        raise RuntimeError(f"vLLM's buffer for its all-reduce has {nbytes} bytes, and the input {inp.nbytes}")
    buffer = _mine(memory).buffers[address][: inp.nbytes].view(inp.dtype).view(inp.shape)
    buffer.copy_(inp)
    return buffer
