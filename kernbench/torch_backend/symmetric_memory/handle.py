"""The handle of a rendezvous: every member's buffer and signal pad, and the signals between them.

Words of the pads are used as torch's own kernels use them: channel c of sender s is word ``world_size * c + s`` of the
receiver's pad.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.order.shadow import Shadow
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.launches.signal_launch import Swap, submit_signals
from kernbench.simulation.matching.groups import Communicator
from kernbench.simulation.memory.reserved import reserved_zeros
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.tensors.placement import block_of, values_of
from kernbench.torch_backend.process_groups.group import SimProcessGroup
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._C._distributed_c10d._SymmetricMemory", "words are written by these", has=(
        "memset32", "stream_write_value32",
    )),
    Reliance(
        "torch._prims_common.make_contiguous_strides_for", "strides of a tensor in a buffer",
        holds=lambda strides: tuple(strides((2, 3))) == (3, 1),
    ),
)  # fmt: skip


_NOWHERE = 0
"""The address of a buffer in another process: a kernel that goes there is refused."""


ATTRIBUTE = "_kernbench_symmetric"


class Part:
    """One rank's allocation: its buffer and its signal pad.

    Attributes:
        rank: of the world.
        device: index of the GPU that it is on.
        nbytes: of the buffer.
        pad: ``[n]`` uint32 signal words.
        group_name: of the group that it was allocated for, if one was named.
        meetings: per group, all members' parts, once they have met.
        tables: per group, the tables of addresses that kernels read.
        turns: which operations of torch's have used the pad's first channels, where races are looked for.
    """

    def __init__(self, rank: int | None, device: int, storage: Any, pad: torch.Tensor, group_name: str | None) -> None:
        self.rank = rank
        self.device = device
        self.nbytes = storage.nbytes()
        self.pad = pad
        self.group_name = group_name
        self.meetings: dict[Communicator, Sequence[Part | FarPart]] = {}
        self.tables: dict[tuple[Communicator, str], torch.Tensor] = {}
        self.turns: Shadow | None = None
        self._storage = weakref.ref(storage)  # which has this as an attribute

    def storage(self) -> Any:
        """The buffer's storage. Raises RuntimeError if its rank has given it up."""
        storage = self._storage()
        if storage is None:
            raise RuntimeError(
                f"symmetric memory: rank {self.rank} has dropped its tensor, so that its buffer is gone: keep the tensor (or "
                "a handle) on every rank for as long as any of them uses it"
            )
        return storage


def part_of(tensor: torch.Tensor) -> Part | None:
    """The allocation of symmetric memory that a tensor is in, if it is in one."""
    if block_of(tensor) is None:
        return None
    return getattr(tensor.untyped_storage(), ATTRIBUTE, None)


class FarPart:
    """The allocation of a rank that is another process: collectives are posted of it, and nothing here can address it.

    Attributes:
        rank: of the world.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def storage(self) -> Any:
        """Raises KernbenchError: it is in no memory of this process."""
        raise self._out_of_reach("buffer")

    @property
    def pad(self) -> torch.Tensor:
        """Raises KernbenchError: it is in no memory of this process."""
        raise self._out_of_reach("signal pad")

    def _out_of_reach(self, what: str) -> KernbenchError:
        return KernbenchError(
            f"symmetric memory: the {what} of rank {self.rank} is out of reach: ranks that are processes have no memory in "
            "common, and meet in the collectives of torch.ops.symm_mem alone. Run with isolation='carrier'"
        )


class Handle:
    """What ``rendezvous`` returns: torch's ``_SymmetricMemory`` of one rank.

    Attributes:
        rank, world_size: this rank's number in the group, and the group's size.
        offset: bytes from the start of the allocation to the tensor that was brought.
    """

    def __init__(
        self, simulation: Simulation, group: SimProcessGroup, parts: Sequence[Part | FarPart], offset: int
    ) -> None:
        own = parts[group.rank()]
        assert isinstance(own, Part)
        self._simulation = simulation
        self._group = group
        self._parts = parts
        self._own = own
        self._kept = [part.storage() for part in parts if isinstance(part, Part)]
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self.offset = offset

    def __repr__(self) -> str:
        where = f"rank {self.rank} of {self.world_size}, {self.buffer_size} bytes"
        return f"<symmetric memory of {self._group.communicator.name}: {where}>"

    def _readable(self, addresses: Sequence[int]) -> torch.Tensor:
        """``[n]`` int64 addresses in the memory of this rank's GPU, where its kernels can read them.

        Mapped, and so beyond the first 4 GiB, as a GPU's memory is: where Python's heap begins below them, Triton would take
        the address of what lies in it for an int32."""
        made = reserved_zeros(torch.int64, (len(addresses),), (1,))
        made.copy_(torch.tensor(list(addresses), dtype=torch.int64))
        self._simulation.storages.adopt(made, self._simulation.hosts.current(), "table of addresses")
        return made

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def group_name(self) -> str:
        """Of the group that met."""
        return self._group.group_name

    @property
    def device(self) -> torch.device:
        """The GPU of this rank."""
        return torch.device("cuda", self._own.device)

    @property
    def buffer_size(self) -> int:
        """Bytes of each member's buffer."""
        return self._own.nbytes

    @property
    def signal_pad_size(self) -> int:
        """Bytes of each member's signal pad."""
        return self._own.pad.nbytes

    @property
    def buffer_ptrs(self) -> list[int]:
        """Addresses of all members' buffers."""
        return [part.storage().data_ptr() for part in self._parts]

    @property
    def signal_pad_ptrs(self) -> list[int]:
        """Addresses of all members' signal pads."""
        return [part.pad.data_ptr() for part in self._parts]

    @property
    def buffer_ptrs_dev(self) -> int:
        """Address of ``buffer_ptrs`` as int64 in this GPU's memory."""
        return self._table("buffers", self.buffer_ptrs)

    @property
    def signal_pad_ptrs_dev(self) -> int:
        """Address of ``signal_pad_ptrs`` as int64 in this GPU's memory."""
        return self._table("signal pads", self.signal_pad_ptrs)

    def _table(self, what: str, addresses: Sequence[int]) -> int:
        tables, key = self._own.tables, (self._group.communicator, what)
        if key not in tables:
            tables[key] = self._readable(addresses)
        return tables[key].data_ptr()

    def has_multicast_support(self) -> bool:
        """Whether there is a switch."""
        return self._simulation.topology.system.sips.reduces_in_switch

    @property
    def multicast_ptr(self) -> int:
        """Address through which ``multimem`` instructions reach all members' buffers; 0 where no switch multicasts."""
        if not self.has_multicast_support():
            return 0
        near = [part.storage().data_ptr() if isinstance(part, Part) else _NOWHERE for part in self._parts]
        return self._simulation.kernels.memory.multicast.address_of(near, self.buffer_size)

    # -- tensors -----------------------------------------------------------------------------------------------------

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        """Member ``rank``'s buffer as a contiguous tensor; ``storage_offset`` counts elements."""
        self._check_rank("get_buffer", rank)
        needed = (storage_offset + math.prod(sizes)) * dtype.itemsize
        if needed > self.buffer_size:
            raise RuntimeError(
                f"get_buffer: {tuple(sizes)} of {dtype} at offset {storage_offset} take {needed} bytes, and the buffer has "
                f"{self.buffer_size}"
            )
        return _tensor(self._parts[rank].storage(), dtype, storage_offset, sizes)

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The tensor at ``peer`` that lies where the one that was brought lies here."""
        return self.get_buffer(peer, sizes, dtype, self.offset // dtype.itemsize)

    def get_signal_pad(
        self, rank: int, sizes: Sequence[int] = (), dtype: torch.dtype | None = None, storage_offset: int = 0
    ) -> torch.Tensor:
        """Member ``rank``'s signal pad, all of it (as uint32) by default."""
        self._check_rank("get_signal_pad", rank)
        kind = torch.uint32 if dtype is None else dtype
        shape = tuple(sizes) or (self.signal_pad_size // kind.itemsize - storage_offset,)
        if (storage_offset + math.prod(shape)) * kind.itemsize > self.signal_pad_size:
            raise RuntimeError(
                f"get_signal_pad: {shape} of {kind} at offset {storage_offset} do not fit {self.signal_pad_size} bytes"
            )
        return _tensor(self._parts[rank].pad.untyped_storage(), kind, storage_offset, shape)

    # -- signals -----------------------------------------------------------------------------------------------------

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """What this stream does next happens after every member's stream has come to its barrier on ``channel``."""
        self._check_channel("barrier", channel)
        chains = [
            [self._put(peer, channel), self._wait(peer, channel)]
            for peer in range(self.world_size)
            if peer != self.rank
        ]
        self._launch("barrier", channel, timeout_ms, chains)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Raise this rank's signal on ``channel`` at a member, once the one before it has been taken down."""
        self._check_rank("put_signal: dst_rank", dst_rank)
        self._check_channel("put_signal", channel)
        self._launch("put_signal", channel, timeout_ms, [[self._put(dst_rank, channel)]])

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Wait for a member's signal on ``channel``, and take it down."""
        self._check_rank("wait_signal: src_rank", src_rank)
        self._check_channel("wait_signal", channel)
        self._launch("wait_signal", channel, timeout_ms, [[self._wait(src_rank, channel)]])

    def _launch(self, name: str, channel: int, timeout_ms: int, chains: list[list[Swap]]) -> Operation:
        kernels, deadlines = self._simulation.kernels, self._simulation.deadlines
        timeout = timeout_ms / 1e3 if timeout_ms > 0 else None
        remark = self._simulation.remarks.setdefault
        return submit_signals(kernels, deadlines, f"symm_mem {name}", chains, user_location(), timeout, remark)

    def _put(self, peer: int, channel: int) -> Swap:
        members = self._group.communicator.ranks
        text = (
            f"rank {members[peer]} to take down the signal that rank {members[self.rank]} has raised before on channel "
            f"{channel} (wait_signal, or its barrier)"
        )
        return self._swap(peer, self.world_size * channel + self.rank, 0, 1, text)

    def _wait(self, peer: int, channel: int) -> Swap:
        text = f"a signal from rank {self._group.communicator.ranks[peer]} on channel {channel} (put_signal, or its barrier)"
        sender = self._group.communicator.ranks[peer]
        return self._swap(self.rank, self.world_size * channel + peer, 1, 0, text, sender)

    def _swap(self, at: int, index: int, expected: int, value: int, text: str, sender: int | None = None) -> Swap:
        pad = self._parts[at].pad
        allocation = self._simulation.engine.memory.find_host(pad.data_ptr())
        assert allocation is not None
        with self._simulation.hosts.current().as_one():  # views of the simulator's, which no host pays for
            words = values_of(pad.view(torch.int32))
        return Swap(words, index, expected, value, allocation.words, text, sender)

    def _check_rank(self, what: str, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise RuntimeError(f"{what} {rank} must be in [0, {self.world_size})")

    def _check_channel(self, what: str, channel: int) -> None:
        most = self.signal_pad_size // 4 // self.world_size
        if not 0 <= channel < most:
            raise RuntimeError(
                f"{what}: channel {channel} is beyond the maximum supported channel {most - 1} of a signal pad of "
                f"{self.signal_pad_size} bytes (symm_mem.set_signal_pad_size)"
            )

    # -- the class's own static methods, also on a handle ------------------------------------------------------------

    def stream_write_value32(self, tensor: torch.Tensor, offset: int, val: int) -> torch.Tensor:
        """Write a word when the stream comes to it."""
        return torch._C._distributed_c10d._SymmetricMemory.stream_write_value32(tensor, offset, val)

    def memset32(self, tensor: torch.Tensor, offset: int, val: int, count: int = 1) -> torch.Tensor:
        """Write ``count`` words when the stream comes to it."""
        return torch._C._distributed_c10d._SymmetricMemory.memset32(tensor, offset, val, count)


def _tensor(storage: Any, dtype: torch.dtype, offset: int, sizes: Sequence[int]) -> torch.Tensor:
    strides = torch._prims_common.make_contiguous_strides_for(tuple(sizes))
    return torch.empty(0, dtype=dtype).set_(storage, offset, tuple(sizes), strides)
