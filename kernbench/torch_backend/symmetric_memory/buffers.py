"""Symmetric memory: buffers of all members of a group that each of them can address.

torch's Python module ``torch.distributed._symmetric_memory`` runs as it is; what it asks of C++, the static methods of
``_SymmetricMemory``, is answered here, and the operations ``torch.ops.symm_mem.*`` by :mod:`.operations`. A buffer is a
tensor on the rank's simulated GPU; ranks share a process, so a peer's buffer is that tensor's own memory. What crosses
links when it is touched is known by where it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.types import Device

from kernbench.errors import KernbenchError
from kernbench.simulation.matching.groups import Communicator
from kernbench.simulation.order.shadow_memory import allocated, forget
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values.known_values import keep
from kernbench.torch_backend.gpu.tensors.placement import place_shared
from kernbench.torch_backend.modes import plain_torch
from kernbench.torch_backend.operations.filling import fill_fresh
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance
from kernbench.torch_backend.symmetric_memory import operations as symmetric_ops
from kernbench.torch_backend.symmetric_memory.handle import ATTRIBUTE, FarPart, Handle, Part, part_of
from kernbench.triton_engine.signals import Words

if TYPE_CHECKING:
    from kernbench.torch_backend.gpu.device.devices import Devices
    from kernbench.torch_backend.process_groups.group import SimProcessGroup

MODULE = symmetric_ops.MODULE

BACKENDS = ("CUDA", "NVSHMEM", "NCCL")


_OWN_REFERENCES = 2  # to the storage of a persistent allocation: of the tensor that keeps it, and of its Python object


def _counts_references(count: Any) -> bool:
    kept = torch.zeros(1)
    return bool(count(kept.untyped_storage()._cdata) == _OWN_REFERENCES)


_STATIC = (
    "empty_strided_p2p", "rendezvous", "set_backend", "get_backend", "has_multicast_support", "is_symm_mem_tensor",
)  # fmt: skip
_STREAM_WRITES = ("memset32", "stream_write_value32")
_PER_RANK = ("_group_name_to_store", "_group_name_to_workspace_tensor", "_backend_streams", "_symm_mem_pools")
_LEFT_SET = ("_is_test_mode", "_mocked_group_names")

RELIES_ON = (
    Reliance("torch._C._distributed_c10d._SymmetricMemory", "torch's Python module asks these static methods of it", has=(
        *_STATIC, *_STREAM_WRITES, "set_group_info", "get_mempool_allocator", "signal_pad_size",
    )),
    Reliance(
        "torch._C._distributed_c10d._SymmetricMemory.signal_pad_size", "it is a static property of pybind11",
        holds=lambda size: isinstance(size, int),
    ),
    Reliance(MODULE, "it keeps these per process, and asks whether there are memory pools and NVSHMEM", has=(
        *_PER_RANK, *_LEFT_SET, "_should_use_implicit_mempool", "is_nvshmem_available",
    )),
    Reliance("torch._C._storage_Use_Count", "it tells whether the program has dropped a tensor", holds=_counts_references),
    Reliance("torch.distributed.distributed_c10d._resolve_process_group", "groups are known by name"),
    Reliance("torch.distributed.distributed_c10d.GroupName", "its type of a group's name"),
)  # fmt: skip


class DictPerRank(MutableMapping[Any, Any]):
    """A dictionary of a module, one per rank."""

    def __init__(self, rank: Callable[[], int | None]) -> None:
        self._rank = rank
        self._of: defaultdict[int | None, dict[object, Any]] = defaultdict(dict)

    def _mine(self) -> dict[object, Any]:
        return self._of[self._rank()]

    def __getitem__(self, key: Any) -> Any:
        return self._mine()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mine()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._mine()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mine())

    def __len__(self) -> int:
        return len(self._mine())


class _Meeting:
    """One rendezvous of a group: what each member has brought, by its number. Buffers live until all have their handles."""

    def __init__(self) -> None:
        self.parts: dict[int, Part] = {}
        self.storages: dict[int, object] = {}
        self.left = 0


class SymmetricMemory:
    """The symmetric memory of the ranks that run: what C++ does on hardware."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self._default_pad_size: int = torch._C._distributed_c10d._SymmetricMemory.signal_pad_size
        self._forget()

    def _forget(self) -> None:
        self._backend = "CUDA"
        self._pad_sizes: dict[int | None, int] = {}
        self._meetings: dict[tuple[Communicator, int], _Meeting] = {}
        self._calls: defaultdict[tuple[Communicator, int | None], int] = defaultdict(int)
        self._persistent: dict[tuple[int | None, int], torch.Tensor] = {}
        self._allocated = False

    def open(self) -> None:
        """Serve the ranks of a spawn, also through ``torch.ops``."""
        _open.append(self)
        symmetric_ops.register(current)

    def close(self) -> None:
        """Forget what they had. Idempotent."""
        if self in _open:
            _open.remove(self)
            self._forget()

    @property
    def simulation(self) -> Simulation:
        """Their simulation."""
        return self.devices.simulation

    def rank(self) -> int | None:
        """The rank that runs."""
        return self.simulation.scheduler.current_rank()

    # -- what _SymmetricMemory does ----------------------------------------------------------------------------------

    @property
    def signal_pad_size(self) -> int:
        """Bytes of the signal pads of what this rank allocates."""
        return self._pad_sizes.get(self.rank(), self._default_pad_size)

    def set_pad_size(self, nbytes: int) -> None:
        """Choose it for what this rank allocates from now on."""
        if nbytes <= 0:
            raise RuntimeError(f"signal_pad_size must be positive, found {nbytes}")
        self._pad_sizes[self.rank()] = int(nbytes)

    def set_backend(self, name: str) -> None:
        """Choose who allocates; all are simulated alike, but for what each of them can reach."""
        if name not in BACKENDS:
            raise RuntimeError(f"symmetric memory backend {name!r}: expected one of {', '.join(BACKENDS)}")
        if self._allocated and name != self._backend:
            raise RuntimeError(
                f"symmetric memory backend {name!r}: memory has been allocated with {self._backend!r}, and the backend cannot "
                "be changed afterwards"
            )
        self._backend = name

    def get_backend(self, device: torch.device | str | int) -> str | None:
        """The one that was set."""
        return self._backend if torch.device(device).type == "cuda" else None

    def has_multicast_support(self, device_type: object, device_index: int) -> bool:
        """Whether the switch between the SIPs of a node multicasts and reduces (NVLink SHARP)."""
        return str(device_type).endswith("CUDA") and self.simulation.topology.system.sips.reduces_in_switch

    def empty_strided_p2p(
        self,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str | int,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> torch.Tensor:
        """A tensor that can be brought to a rendezvous, of zeros unless fresh memory is filled.

        The backend CUDA clears what it allocates; no backend promises it.
        """
        where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if where.type != "cuda":
            raise RuntimeError(f"symmetric memory does not support device type {where.type}: give device='cuda'")
        if alloc_id is not None:
            key = (self.rank(), alloc_id)
            before = self._persistent.get(key)
            if before is not None:
                if torch._C._storage_Use_Count(before.untyped_storage()._cdata) > _OWN_REFERENCES:
                    raise RuntimeError(
                        f"empty_strided_p2p: the allocation with alloc_id {alloc_id} is still in use: it can be had again "
                        "once its tensor is gone"
                    )
                if before.nbytes == _bytes_of(size, stride, dtype):
                    return _view(before.untyped_storage(), dtype, size, stride)
        flat = torch.zeros(max(_bytes_of(size, stride, dtype), 1), dtype=torch.uint8)
        storage = flat.untyped_storage()
        self._place(flat, where)
        self._undefine(_view(storage, dtype, size, stride))
        setattr(
            storage, ATTRIBUTE, Part(self.rank(), self.devices.number(where), storage, self._pad(where), group_name)
        )
        self._allocated = self.simulation.kernels.memory.signals = True
        if alloc_id is not None:
            self._persistent[key] = flat
        return _view(storage, dtype, size, stride)

    def is_symm_mem_tensor(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in a buffer."""
        return part_of(tensor) is not None

    def rendezvous(self, tensor: torch.Tensor, group_name: str | None = None) -> Handle | None:
        """Meet the other members of the group, each with its own buffer; None for a tensor that is not symmetric memory.

        The second time, for the same buffer and group, no ranks have to meet.
        """
        part = part_of(tensor)
        if part is None:
            return None
        name = group_name if group_name is not None else part.group_name
        if name is None:
            raise RuntimeError(
                "rendezvous: no group was given, neither here nor to empty_strided_p2p: say rendezvous(tensor, group)"
            )
        import torch.distributed.distributed_c10d as c10d

        group: Any = c10d._resolve_process_group(c10d.GroupName(name))
        offset = int(tensor.storage_offset()) * tensor.element_size()
        parts = part.meetings.get(group.communicator)
        if parts is None:
            return self._meet(part, group, offset)
        return Handle(self.simulation, group, parts, offset)

    def _meet(self, part: Part, group: SimProcessGroup, offset: int) -> Handle:
        communicator = group.communicator
        self.simulation.hosts.need(communicator.ranks, "symmetric memory")
        self._require_reach(group)
        if self.simulation.world.apart:
            group.barrier().wait()
            apart = [part if rank == self.rank() else FarPart(rank) for rank in communicator.ranks]
            return self._met(part, group, apart, offset)
        number = self._calls[communicator, self.rank()]
        self._calls[communicator, self.rank()] += 1
        meeting = self._meetings.setdefault((communicator, number), _Meeting())
        meeting.parts[group.rank()] = part
        meeting.storages[group.rank()] = part.storage()
        group.barrier().wait()
        parts = [meeting.parts[rank] for rank in range(group.size())]
        for what, sizes in (
            ("bytes", [each.nbytes for each in parts]), ("bytes of signals", [each.pad.nbytes for each in parts])
        ):  # fmt: skip
            other = next((rank for rank, size in enumerate(sizes) if size != sizes[0]), None)
            if other is not None:
                raise RuntimeError(
                    f"rendezvous on {communicator.name}: rank 0 of the group brings {sizes[0]} {what} and rank {other} "
                    f"brings {sizes[other]}: symmetric memory has the same size everywhere"
                )
        handle = self._met(part, group, parts, offset)
        meeting.left += 1
        if meeting.left == group.size():
            del self._meetings[communicator, number]
        return handle

    def _met(self, part: Part, group: SimProcessGroup, parts: Sequence[Part | FarPart], offset: int) -> Handle:
        part.meetings[group.communicator] = parts
        return Handle(self.simulation, group, parts, offset)

    def _require_reach(self, group: SimProcessGroup) -> None:
        """Loads and stores reach the SIPs of a node; what goes further takes a library."""
        topology = self.simulation.topology
        nodes = {topology.node_of(self.simulation.hosts.of_rank[rank].sip) for rank in group.communicator.ranks}
        if len(nodes) > 1 and self._backend == "CUDA":
            raise RuntimeError(
                f"rendezvous on {group.communicator.name}: its ranks are on {len(nodes)} nodes, whose GPUs cannot address each "
                "other's memory. Use a group inside a node, or symm_mem.set_backend('NVSHMEM')"
            )

    def _place(self, flat: torch.Tensor, where: torch.device) -> None:
        place_shared(flat, self.devices.memory_at(where))
        self._note(flat, "symmetric buffer")
        self.devices.mine().host.uses_gpu = True

    def _undefine(self, tensor: torch.Tensor) -> None:
        """The memory of a tensor is unwritten."""
        simulation = self.simulation
        if not simulation.engine.enable_data:
            return
        with plain_torch():
            fill_fresh(tensor, simulation.fill_uninitialized)
        order = simulation.hosts.current().order
        if order is not None:
            forget(tensor.untyped_storage())  # that it was made of zeros, on the host
            zeros = self._backend == "CUDA" and simulation.fill_uninitialized == "off"
            allocated(order, tensor, "symm_mem.empty", zeros=zeros)

    def _pad(self, where: torch.device) -> torch.Tensor:
        pad = torch.zeros(self.signal_pad_size // 4, dtype=torch.int32).view(torch.uint32)
        keep(self.simulation.storages, pad)  # signals steer the program, also where no data is computed
        place_shared(pad, self.devices.memory_at(where))
        self._note(pad, "signal pad")
        return pad

    def _note(self, tensor: torch.Tensor, name: str) -> None:
        """Remember the writers of its words."""
        allocation = self.simulation.storages.allocation_of(tensor, self.simulation.hosts.current(), name)
        allocation.words = Words(allocation.sip)


def _bytes_of(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes from the first element to the end of the last."""
    if math.prod(size) == 0:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))) * dtype.itemsize


def _view(
    storage: torch.UntypedStorage, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(size), tuple(stride))


# -- installing ----------------------------------------------------------------------------------------------------------


_open: list[SymmetricMemory] = []
"""Those that serve ranks; the last one's run."""


def current() -> SymmetricMemory | None:
    """The symmetric memory of the ranks that run."""
    return _open[-1] if _open else None


def install(patches: Patches, memory: SymmetricMemory) -> None:
    """Let ``memory`` answer torch's Python module, for as long as the patches are in place."""
    symmetric: object = torch._C._distributed_c10d._SymmetricMemory
    for name in _STATIC:
        patches.set(symmetric, name, staticmethod(getattr(memory, name)))
    for name in _STREAM_WRITES:
        patches.set(symmetric, name, staticmethod(getattr(symmetric_ops.StreamWrites(memory), name)))
    patches.set(symmetric, "set_group_info", staticmethod(lambda *args, **kwargs: None))
    patches.set(symmetric, "get_mempool_allocator", staticmethod(_no_pool))
    static_property: Any = type(vars(symmetric)["signal_pad_size"])
    size = static_property(
        lambda cls: memory.signal_pad_size, lambda cls, nbytes: memory.set_pad_size(nbytes), None, ""
    )
    patches.set(symmetric, "signal_pad_size", size)


def install_module(patches: Patches, module: ModuleType) -> None:
    """What torch's Python module keeps per process, per rank; and what it would do by CUDA's memory pools."""
    memory = current()
    if memory is None:
        return
    symmetric_ops.register(current)  # importing it has defined some
    for name in _PER_RANK:
        patches.set(module, name, DictPerRank(memory.rank))
    patches.set(module, "_should_use_implicit_mempool", lambda: False)
    patches.set(module, "is_nvshmem_available", lambda: False)
    for name in _LEFT_SET:  # a rank that is unwound leaves them as it set them
        patches.set(module, name, getattr(module, name))


def _no_pool(device: Device) -> Any:
    raise KernbenchError(
        "symmetric memory from a torch.cuda.MemPool is not simulated: allocate with symm_mem.empty(...), which needs no pool"
    )


__all__ = ["SymmetricMemory", "current", "install", "install_module", "part_of"]
