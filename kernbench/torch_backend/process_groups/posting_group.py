"""What every process group of a simulated rank has, whatever is called on it: its names, and the way to the matcher."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

from kernbench.ccl.libraries import Library, as_the_library_computes, library_of, refusal
from kernbench.ccl.reduce_op import ReduceOp, Reduction
from kernbench.memory.ledger import BACKWARD, PHASES
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.matching.groups import Communicator, Signature
from kernbench.simulation.matching.messages import CONNECTION, MessageRoute
from kernbench.simulation.memory.storages import Block
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values.capture_rollback import keep
from kernbench.simulation.values.collective_cells import wholes
from kernbench.simulation.values.collective_values import note_copies
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.device.software_versions import NCCL
from kernbench.torch_backend.gpu.memory.memory_owners import claim_communication
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, block_of, place
from kernbench.torch_backend.process_groups import absent_members, backend_classes, nccl_rules
from kernbench.torch_backend.process_groups.absent_calls import AbsentInGroups
from kernbench.torch_backend.process_groups.arguments import (
    SumOfMultiples,
    Tensors,
    in_memory,
    memory_of_message,
    one_tensor,
    parts_of,
    require_contiguous_message,
    require_dense_for_gloo,
    root_of,
    timeout_of,
)
from kernbench.torch_backend.process_groups.backend_options import BackendOptions, BackendStandIn
from kernbench.torch_backend.process_groups.futures import Futures
from kernbench.torch_backend.process_groups.group_class import STOCK
from kernbench.torch_backend.process_groups.places_of_tensors import is_reordered, look_for_host
from kernbench.torch_backend.process_groups.work import Work
from kernbench.torch_backend.relies_on import Reliance

c10d: Any = torch.distributed.distributed_c10d

_NCCL = frozenset({"nccl", "cpu:gloo,cuda:nccl", "undefined"})
"""Backends whose collectives of GPUs are NCCL's."""

_SWITCHED_ON = frozenset({"1", "y", "yes", "t", "true", "on"})
_NOT_LOOKED_FOR = "TORCH_NCCL_NAN_CHECK is set: what collectives are given is not searched for NaN here"


RELIES_ON = (
    Reliance("torch.distributed.ProcessGroup", "C++ calls the methods of a Python class that derives from it", subclassed=True,
             has=("allreduce", "broadcast", "barrier", "name", "rank", "size")),
    Reliance("torch.distributed.get_debug_level", "DETAIL asks for checks at once"),
)  # fmt: skip


class PostingGroup(AbsentInGroups, STOCK):
    """A group of simulated ranks, as torch's bookkeeping sees it; its operations are those of a derived class.

    Args:
        simulation: of the rank.
        device: of the rank.
        futures: keeps what works promise, if they do.
        communicator: the members, shared by all of them.
        rank: this rank's number in the group.
        backend: the name that the program asked for.
        timeout: of its operations, virtual time.
        asked_for: whether the program gave that timeout.

    Attributes:
        matcher: what it posts to.
        splits: how many groups this rank has split off it.
        made_directly: whether the program called its backend's class, so that it is what C++ calls a backend.
    """

    bound_device_id: Any = None
    made_directly = False

    def __init__(
        self,
        simulation: Simulation,
        device: RankDevice,
        futures: Futures | None,
        communicator: Communicator,
        rank: int,
        backend: str,
        timeout: timedelta,
        asked_for: bool,
        name: str,
        description: str,
        store: Any,
    ) -> None:
        super().__init__(rank, communicator.size)
        self.simulation = simulation
        self.matcher = simulation.matcher
        self._device = device
        self._futures = futures
        self.communicator = communicator
        self._connected = False
        self._connected_to: set[int] = set()
        self._batches = 0
        self._seen = communicator.size == 1 or backend not in _NCCL
        self.splits = 0
        self._rank = rank
        self.backend_name = backend
        self.timeout = timeout
        self._timeout_seconds = timeout.total_seconds()
        self.asked_for = asked_for
        self._name = name
        self._description = description
        self._store = store
        self._coalescing: list[Work] | None = None
        self._sequence = 0
        if backend in _NCCL and os.environ.get("TORCH_NCCL_NAN_CHECK", "").lower() in _SWITCHED_ON:
            simulation.remarks.setdefault(_NOT_LOOKED_FOR)
        self._checks_at_once = dist.get_debug_level() == dist.DebugLevel.DETAIL

    # -- what it is --------------------------------------------------------------------------------------------------

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self.communicator.size

    getRank = rank
    getSize = size

    def name(self) -> str:
        """As C++ has it: the default of several backends is NCCL's, then gloo's."""
        backends = self.backends.values()
        return self.backend_name if len({*backends}) == 1 else "nccl" if "nccl" in backends else "gloo"

    def getBackendName(self) -> str:
        return "kernbench"

    def _get_backend_name(self) -> str:
        return self.backend_name

    def getGroupName(self) -> str:
        return self._name

    group_name = property(getGroupName)
    pg_name = group_name

    def getGroupDesc(self) -> str:
        return self._description

    group_desc = property(getGroupDesc)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in self.backends]

    @functools.cached_property
    def backends(self) -> dict[str, str]:
        """Names of the backends by the type of device that they serve."""
        if ":" not in self.backend_name and self.backend_name not in c10d.Backend.backend_list:
            return dict.fromkeys(("cpu", "cuda"), self.backend_name)
        config = c10d.BackendConfig(c10d.Backend(self.backend_name)).get_device_backend_map()
        return {device: str(backend) for device, backend in config.items() if device in ("cpu", "cuda")}

    def _register_backend(self, device: torch.device, backend_type: Any, backend: PostingGroup | None = None) -> None:
        """Tensors of this type of device are communicated by a backend that the program has made."""
        if backend is None:
            return
        self.backends[torch.device(device).type] = backend.backend_name
        names = {*self.backends.values()}
        self.backend_name = (
            names.pop()
            if len(names) == 1
            else ",".join(f"{kind}:{name}" for kind, name in sorted(self.backends.items()))
        )
        self.__dict__.pop("_libraries", None)

    def _get_backend(self, device: torch.device) -> BackendStandIn:
        """Raises RuntimeError, as C++ does, for a type of device that the group has no backend for."""
        kind = torch.device(device).type
        if kind not in self.backends:
            raise RuntimeError(f"No backend type associated with device type {kind}")
        return backend_classes.backend_of(self, self.backends[kind])

    @property
    def options(self) -> BackendOptions:
        """Those of a backend, for programs that take this for one."""
        return BackendStandIn(self, self.name()).options

    def get_group_store(self) -> object:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout
        self._timeout_seconds = timeout.total_seconds()
        self.asked_for = True

    def _has_hooks(self) -> bool:
        return False

    def _enable_collectives_timing(self) -> None:
        """When collectives begin and end is always known."""

    def _wait_for_pending_works(self) -> None:
        """The host waits for what its rank has enqueued."""
        self.simulation.synchronize()

    @property
    def supports_multicast(self) -> bool:
        """Whether the GPUs can reduce in their switches (NVLS), for which memory is allocated by the library."""
        arch = self._target.arch
        return isinstance(arch, int) and arch >= 90

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Sequence numbers exist from the start."""

    @property
    def connected(self) -> bool:
        """Whether the library has what it needs to communicate: once it has, or from the start if the device was given."""
        return self._connected or self.bound_device_id is not None

    def shutdown(self) -> None:
        """What was posted completes or is reported; NCCL's communicator, once it has been used, takes nothing more."""
        if self._connected and "nccl" in self.backends.values():
            self._refuse(nccl_rules.ended(self._rank, f"The group was shut down at {user_location()}"))

    abort = shutdown

    def _has_failed(self, error: dist.DistBackendError) -> None:
        """A wait of the host has met what a collective failed with: NCCL's communicator is aborted then."""
        first = str(error).partition("\n")[0].rstrip(".")
        self._refuse(nccl_rules.ended(self._rank, f"Original reason for failure was: {first}"))

    def _refuse(self, call: Callable[..., Any]) -> None:
        self._post = self._post_message = call  # type: ignore[method-assign]

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> PostingGroup | None:
        """The part of this group that ``new_ranks`` (numbers in this group) are; None if this rank is not in it.

        Members of NCCL's communicators find each other by the number of the split, whatever each calls the group: torch's names
        count the groups that a rank has. Gloo's find each other by that name.
        """
        self.splits += 1
        if self._rank not in new_ranks:
            return None
        members = tuple(self.communicator.ranks[rank] for rank in new_ranks)
        name = group_name or f"{self._name}:split"
        mine = self.communicator.ranks[self._rank]
        by_number = "gloo" not in self.backends.values()
        met_as = f"(split {self.splits} of {self.communicator.name})" if by_number else name
        communicator = self.simulation.world.communicators.of(mine, met_as, members, is_world=False)
        return type(self).made(
            self.simulation, self._device, self._futures, communicator, new_ranks.index(self._rank), self.backend_name,
            timeout or self.timeout, timeout is not None or self.asked_for, name, group_desc or "undefined",
            dist.PrefixStore(f"{group_name}/", self._store),
        )  # fmt: skip

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot pickle 'torch._C._distributed_c10d.ProcessGroup' object")

    def __repr__(self) -> str:
        return f"<{self.backend_name} process group {self._name}: rank {self._rank} of {self.size()}>"

    def checking_at_once(self) -> PostingGroup:
        """This group, whose calls wait until all members have made them: torch's ``DETAIL`` debug level."""
        self._checks_at_once = True
        return self

    # -- posting -----------------------------------------------------------------------------------------------------

    def _post(
        self,
        op: str,
        inputs: Tensors,
        outputs: Tensors,
        opts: object,
        *,
        shape: tuple[int, ...] | None,
        dtype: torch.dtype | None,
        reduction: ReduceOp | SumOfMultiples | None = None,
        root: int | None = None,
        splits: tuple[int, ...] | None = None,
        given: Tensors | None = None,
        algorithm: str | None = None,
    ) -> Work:
        held = wholes(inputs) if inputs is outputs else (*wholes(inputs), *wholes(outputs))
        block, on_gpus = None, 0
        for tensor in held:
            if type(tensor) not in PLAIN and (parts := parts_of(inputs, outputs)) is not None:
                apart = partial(
                    self._post, shape=shape, reduction=reduction, root=root, splits=splits, algorithm=algorithm
                )
                return self._joined(
                    [apart(op, given, got, opts, dtype=(*given, *got)[0].dtype) for given, got in parts]
                )
            there = block_of(tensor)
            if there is not None:
                block, on_gpus = block or there, on_gpus + 1
        simulation, host = self.simulation, self.simulation.hosts.current()
        if block is not None and block.own_sip not in (None, host.sip):  # of another GPU than the current one
            with host.driving(block.own_sip):
                return self._post(
                    op, inputs, outputs, opts, shape=shape, dtype=dtype, reduction=reduction, root=root, splits=splits,
                    given=given, algorithm=algorithm,
                )  # fmt: skip
        for tensor in wholes(outputs):
            if tensor.is_sparse:
                raise ValueError(f"{op}: sparse tensors are supported by all_reduce only")
        moved = outputs
        if block is not None and self.backend_name != "gloo" and is_reordered(op, inputs, outputs):
            given, same = given or inputs, inputs is outputs
            inputs = in_memory(inputs)
            moved = inputs if same else in_memory(outputs)
        library = "" if algorithm else self._libraries[block is not None]  # an algorithm that is named is no library's
        if library == "gloo":
            require_dense_for_gloo(op, (*wholes(inputs), *wholes(outputs)))
        multiples, reduces = (reduction, ReduceOp.SUM) if isinstance(reduction, SumOfMultiples) else (None, reduction)
        communicator = self.communicator
        call = library, op, shape, dtype, reduces, root, algorithm
        plan = communicator.calls.get(call)
        if plan is None:
            plan = communicator.calls[call] = communicator.plan(self._signature(*call))
        self._sequence += 1
        if host.unsettled:
            simulation.values.settle_stream()
        if communicator.players is not None:
            absent_members.check(simulation, communicator, op, plan.signature.root, inputs, outputs)
        summands = multiples.of(inputs, library) if multiples else inputs
        if self._device.doing.collective_unknown:
            note_copies(simulation.storages, inputs)
        if block is not None:
            self._count_memory(held, block)
        if not self._seen:
            self._look_at_device(op, opts, held, block)
        if (
            on_gpus < len(held) and self.backend_name == "nccl" and host.phase % PHASES != BACKWARD
            and self._device.doing.collective_memory is None  # given by the program, and no results of a functional collective
        ):  # fmt: skip
            look_for_host(simulation, host, op, inputs, outputs)
        graph = host.capture
        if graph is not None:
            keep(host, wholes(outputs))
        operation = self.matcher.post(host, plan, summands, moved, splits=splits, given=given)
        self._limit(operation, None if type(opts) is ReduceOp else timeout_of(opts))
        work = self._work(operation, outputs)
        if graph is not None:
            graph.posted.append(operation)
            again = partial(
                self._post, op, inputs, outputs, opts, shape=shape, dtype=dtype, reduction=reduction, root=root,
                splits=splits, given=given, algorithm=algorithm,
            )  # fmt: skip
            graph.add_on_stream(host, lambda: graph.works.__setitem__(work.operation, again()))
        if self._checks_at_once and self._coalescing is None:
            work.wait()  # as torch's wrapper, which meets the others before it calls the collective
        return work

    def _signature(
        self, library: Library, op: str, shape: tuple[int, ...] | None, dtype: torch.dtype | None,
        reduction: ReduceOp | None, root: int | None, algorithm: str | None,
    ) -> Signature:  # fmt: skip
        """Of a call. Raises torch's error of what the library does not take."""
        combined = reduction if dtype is None else self._taken(library, op, dtype, reduction)
        return Signature(
            op,
            None if shape is None else tuple(shape),
            dtype,
            None if combined is None else combined.value,
            None if root is None else self.communicator.ranks[root],
            algorithm or self.simulation.ccl_config.algorithm_for(op),
        )

    @functools.cached_property
    def _libraries(self) -> tuple[Library, Library]:
        """Whose rules hold for tensors of the host, and of GPUs."""
        gpus = self._target.backend
        on_host, on_gpu = (library_of(self.backends.get(kind, ""), gpus) for kind in ("cpu", "cuda"))
        # DDP's reducer gives tensors of the host that are on the GPU on hardware
        return (on_gpu if self.backend_name == "nccl" else on_host), on_gpu

    @property
    def _target(self) -> Any:
        return self.simulation.engine.topology.device.target

    def _library_for(self, tensors: Tensors) -> Library:
        """Whose rules hold for a call with these tensors."""
        return self._libraries[any(block_of(tensor) is not None for tensor in tensors)]

    def _is_nccls(self, tensor: torch.Tensor) -> bool:
        """Whether a call with this tensor of a GPU is NCCL's, or RCCL's. (DDP's reducer gives some of the host.)"""
        return block_of(tensor) is not None and self._libraries[1] in ("nccl", "rccl")

    def _root(self, op: str, opts: Any, tensor: torch.Tensor) -> int:
        """The root's number in the group. Raises the library's error if there is none."""
        root = root_of(opts)
        if not 0 <= root < self.size():
            if self._is_nccls(tensor):
                nccl_rules.root(op, root, self.size())
            raise RuntimeError(f"ProcessGroupGloo::{op}: invalid root rank: {root}")
        return root

    def _taken(self, library: Library, op: str, dtype: torch.dtype, reduction: ReduceOp | None) -> Reduction | None:
        """What the library makes of the reduction that was asked for. Raises torch's error of what it does not take."""
        if library:
            arch = self._target.arch
            row = refusal(library, op, dtype, reduction, arch if isinstance(arch, int) else None, NCCL[:2])
            if row is not None:
                raise row.exception(dtype, reduction)
        if reduction is None:
            return None
        reduction.check_dtype(dtype)
        return as_the_library_computes(library, dtype, reduction)

    def _count_memory(self, tensors: Tensors, block: Block) -> None:
        """Note what takes part, and (once) the buffers that the library makes when a group first communicates on GPUs.

        ``block``: the first of the tensors' on one.
        """
        claim_communication(tensors)
        if not self._connected and self.communicator.size > 1:
            self._connected = True
            block.owner.connect()

    def _look_at_device(self, op: str, opts: object, tensors: Tensors, block: Block | None) -> None:
        """What NCCL would say of where the first collective's tensors are.

        Raises :class:`~nccl_rules.DuplicateGpuError` if another member uses the same GPU.
        """
        if block is not None:
            sip = block.memory.sip
        elif (
            tensors or not self._device.host.uses_gpu
        ):  # of the host: DDP's reducer gives such, which on hardware are not
            return
        else:
            device = getattr(opts, "device", None)  # of a barrier
            if device is not None and device.type == "cpu":
                return
            sip = self._device.sip(device)
        self._seen = True
        me, here = self.communicator.ranks[self._rank], user_location()
        before = self.simulation.world.communicators.drive(self.communicator, me, sip, here)
        if before is not None:
            first, there = before
            raise nccl_rules.DuplicateGpuError(
                f"{op}: duplicate GPU: ranks {first} and {me} of {self.communicator.name} both use cuda:"
                f"{self._device.index_of(sip)}, and {self.backend_name} wants a GPU of its own for each.\n"
                f"  rank {first}: at {there}\n"
                f"  rank {me}: at {here}\n"
                "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything else uses the GPU, in each thread."
            )

    def _limit(self, operation: Operation, own: timedelta | None) -> None:
        """Give an operation its deadline."""
        timeout = self._timeout_seconds if own is None else own.total_seconds()
        asked_for = self.asked_for or own is not None
        self.simulation.limit(operation, timeout, self._rank, self.communicator, asked_for)

    def _work(self, operation: Operation, tensors: Tensors, source: Any = None) -> Work:
        memory = self._device.doing.collective_memory
        if memory is not None:
            for tensor in wholes(tensors):
                place(tensor, memory)
        on_stream = False
        for tensor in wholes(tensors):
            if block_of(tensor) is not None:
                on_stream = True
                break
        work = Work(self.simulation, self._futures, (operation,), tensors, source, on_stream)
        if on_stream:
            work.on_failure = self._has_failed
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _post_message(self, tensors: object, op: str, peer: int, tag: int, source: Any = None) -> Work:
        """Send to, or receive from, a member. Raises torch's error of a type that the library does not take."""
        tensor = one_tensor(tensors, "message", self.backend_name)
        library = self._library_for((tensor,))
        self._taken(library, op, tensor.dtype, None)
        moved = tensor
        if library in ("nccl", "rccl"):
            moved = memory_of_message(op, tensor)
            nccl_rules.member(op, peer, self.size())
        elif library == "gloo":
            require_contiguous_message(op, tensor)
        route = CONNECTION
        if library in ("nccl", "rccl") or (self.backend_name == "kernbench" and block_of(tensor) is not None):
            batch = None if self._coalescing is None else self._batches
            eager = self.bound_device_id is not None
            route = MessageRoute("pair" if batch is None and not eager else "group", batch, eager)
            self._count_memory_of_message(tensor, peer, route)
        host, block = self.simulation.hosts.current(), block_of(tensor)
        if block is None and self.backend_name == "nccl":
            look_for_host(self.simulation, host, op, (tensor,), ())
        with host.driving(None if block is None else block.own_sip):
            operation = self.matcher.mailbox.post(
                self.communicator, moved, peer=self.communicator.ranks[peer], tag=tag, sends=op == "send", route=route
            )
        self._limit(operation, None)
        return self._work(operation, (tensor,), source)

    def _count_memory_of_message(self, tensor: torch.Tensor, peer: int, route: MessageRoute) -> None:
        """Note the buffers of the communicator that carries a message: the group's, or one of the pair's own."""
        block = block_of(tensor)
        if block is None:
            return
        if route.lane == "group":
            self._count_memory((tensor,), block)
        elif peer not in self._connected_to and peer != self._rank:
            self._connected_to.add(peer)
            block.owner.connect()

    def _joined(self, works: Sequence[Work]) -> Work:
        operations = [operation for work in works for operation in work.operations]
        tensors = [tensor for work in works for tensor in work.tensors]
        return Work(
            self.simulation, self._futures, operations, tensors, on_stream=any(work.on_stream for work in works)
        )

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []
        self._batches += 1

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._coalescing = self._coalescing or [], None
        return self._joined(works)
