"""The operations ``torch.ops.symm_mem.*``.

Collectives over symmetric buffers are posted like others, each with the algorithm of :mod:`kernbench.ccl` that it is on
hardware, on a stream of their own; the current stream waits for them. Sums are made in the order of the ranks and kept wide.
Those that torch writes in Python (fused products, low-contention collectives) run as they are.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from kernbench.ccl.reduce_op import ReduceOp
from kernbench.cost.work import LEAST, stated_cost
from kernbench.errors import KernbenchError
from kernbench.order.regions import ByteRegion
from kernbench.order.shadow import Shadow
from kernbench.simulation.matching.groups import Communicator, Signature
from kernbench.simulation.order.kernel_order import SignalOrder
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values.capture_rollback import keep
from kernbench.torch_backend.gpu.device.devices import Devices
from kernbench.torch_backend.gpu.tensors.placement import values_of
from kernbench.torch_backend.operations.recorder import open_recorder
from kernbench.torch_backend.process_groups.group import SimProcessGroup
from kernbench.torch_backend.relies_on import Reliance
from kernbench.torch_backend.symmetric_memory.handle import part_of
from kernbench.torch_backend.symmetric_memory.kernel_rules import require_summable
from kernbench.triton_engine.memory import write_epoch
from kernbench.triton_engine.signals import WORD, Party, Words


class Meetings(Protocol):
    """The symmetric memory of the ranks that run, as far as operations need it."""

    devices: Devices

    @property
    def simulation(self) -> Simulation:
        """Theirs."""

    def rendezvous(self, tensor: torch.Tensor, group_name: str) -> object:
        """Meet the others of a group over a tensor; None if it is not in symmetric memory."""


NAMESPACE = "symm_mem"

MODULE = "torch.distributed._symmetric_memory"

WRITTEN_IN_PYTHON = {
    "fused_all_gather_matmul": "_fused_all_gather_matmul",
    "fused_all_gather_scaled_matmul": "_fused_all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter": "_fused_matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter": "_fused_scaled_matmul_reduce_scatter",
    "_low_contention_all_gather": "_low_contention_all_gather",
    "_low_contention_reduce_scatter": "_low_contention_reduce_scatter",
    "get_remote_tensors": "_get_remote_tensors_default",
}
"""Operations that torch registers for CUDA only, and the functions of its module that compute them."""


RELIES_ON = (
    Reliance(MODULE, "these compute what is registered for CUDA only", has=tuple(WRITTEN_IN_PYTHON.values())),
    Reliance(
        "torch._C._dispatch_get_all_op_names", "the operations are read off the dispatcher",
        holds=lambda names: f"{NAMESPACE}::one_shot_all_reduce" in names(),
    ),
    Reliance("torch._C._dispatch_has_kernel_for_dispatch_key", "those that the CPU computes are left alone"),
    Reliance("torch.distributed.distributed_c10d._resolve_process_group", "groups are known by name"),
    Reliance("torch.distributed.distributed_c10d.GroupName", "its type of a group's name"),
)  # fmt: skip

_known: set[str] = set()
"""Operations that have been classified."""


@functools.cache
def _library() -> Any:
    """Where our kernels are registered; as long as the process lives, since torch keeps a kernel that it once had."""
    return torch.library.Library(NAMESPACE, "IMPL")


@functools.lru_cache(maxsize=2)
def operations(imported: bool) -> list[str]:
    """All of them, ``namespace::name.overload``; importing torch's module adds some."""
    everything: Any = torch._C._dispatch_get_all_op_names()
    return sorted(name for name in everything if name.startswith(f"{NAMESPACE}::"))


def register(current: Callable[[], Meetings | None]) -> None:
    """Give the operations that nothing on this machine computes kernels for the simulated GPUs of the ``current`` ranks."""
    names = operations(MODULE in sys.modules)
    if len(names) == len(_known):
        return
    has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in names:
        keys = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
        if name not in _known and not any(has_kernel(name, key) for key in keys):
            short = name.partition("::")[2].removesuffix(".")
            _library().impl(short, _kernel(current, short), "CPU")
        _known.add(name)


def _kernel(current: Callable[[], Meetings | None], name: str) -> Callable[..., Any]:
    def kernel(*args: object, **kwargs: object) -> Any:
        memory = current()
        if memory is None:
            raise NotImplementedError(
                f"torch.ops.symm_mem.{name}: nothing computes it on the CPU outside simulated ranks"
            )
        ours = _Operations(memory)
        if name in WRITTEN_IN_PYTHON:
            with ours.recording():
                return getattr(sys.modules[MODULE], WRITTEN_IN_PYTHON[name])(*args, **kwargs)
        return (getattr(ours, name.strip("_"), None) or _refusal(name))(*args, **kwargs)

    return kernel


def _refusal(name: str) -> Callable[..., object]:
    def raises(*args: object, **kwargs: object) -> Any:
        raise KernbenchError(
            f"torch.ops.symm_mem.{name} is not simulated: use a collective, one of torch.ops.symm_mem's one_shot, two_shot, "
            "multimem or fused operations, or a Triton kernel over the peers' buffers (docs/symmetric_memory.md)"
        )

    return raises


class StreamWrites:
    """Words that a stream writes: what ``cuStreamWriteValue32`` and ``cuMemsetD32Async`` do."""

    def __init__(self, memory: Meetings) -> None:
        self._devices = memory.devices

    def stream_write_value32(self, input: torch.Tensor, offset: int, val: int) -> torch.Tensor:
        """Word ``offset`` of ``input``, once the current stream has come to it."""
        return self.memset32(input, offset, val, 1, name="write value")

    def memset32(
        self, input: torch.Tensor, offset: int, val: int, count: int = 1, *, name: str = "memset"
    ) -> torch.Tensor:
        """``count`` words of ``input`` from word ``offset`` on."""
        if input.element_size() != WORD:
            raise RuntimeError(f"{name}: expected a tensor of 32-bit words, found {input.dtype}")
        if not input.is_contiguous():
            raise RuntimeError(f"{name}: expected a contiguous tensor")
        if offset < 0 or count <= 0 or offset + count > input.numel():
            raise RuntimeError(f"{name}: words {offset} to {offset + count} of a tensor that has {input.numel()}")
        simulation = self._devices.simulation
        me = simulation.hosts.current()
        simulation.values.settle_stream()
        words = input.detach().view(torch.int32).view(-1)
        values_of(words[offset : offset + count])[:] = torch.tensor(val, dtype=torch.int64).to(torch.int32).item()
        op = self._devices.mine().enqueue(name, stated_cost(LEAST))
        allocation = simulation.storages.allocation_of(input, me)
        if me.order is not None:
            wrote = SignalOrder(simulation.engine.memory, simulation.hosts, op.moment, name, user_location())
            for word in range(offset, offset + count):
                wrote.stored(input.data_ptr() + word * WORD)
        if allocation.words is None:
            allocation.words = Words(allocation.sip)
        party = Party([op])
        party.finished = True
        first = (input.data_ptr() - allocation.host_address) + offset * WORD
        allocation.words.write(party, range(first, first + count * WORD, WORD))
        write_epoch.bump()
        return input


class _Operations:
    """A method per operation that C++ writes on hardware; names without the underscores at their ends."""

    def __init__(self, memory: Meetings) -> None:
        self._memory = memory
        self._simulation = memory.simulation
        self._writes = StreamWrites(memory)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What an operation consists of is recorded: torch has stepped out of the mode that does that."""
        with open_recorder(self._memory.devices.recorder_of(self._simulation.hosts.current_rank())):
            yield

    # -- all-reduce --------------------------------------------------------------------------------------------------

    def one_shot_all_reduce(self, input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
        return self.one_shot_all_reduce_out(input, reduce_op, group_name, self._like(input))

    def one_shot_all_reduce_out(
        self, input: torch.Tensor, reduce_op: str, group_name: str, out: torch.Tensor
    ) -> torch.Tensor:
        return self._all_reduce("one_shot_all_reduce", "one_shot_pull", input, reduce_op, group_name, out)

    def one_shot_all_reduce_copy(
        self, symm_buffer: torch.Tensor, local_input: torch.Tensor, reduce_op: str, group_name: str
    ) -> torch.Tensor:
        out = self._like(local_input)
        return self.one_shot_all_reduce_copy_out(symm_buffer, local_input, reduce_op, group_name, out)

    def one_shot_all_reduce_copy_out(
        self, symm_buffer: torch.Tensor, local_input: torch.Tensor, reduce_op: str, group_name: str, out: torch.Tensor
    ) -> torch.Tensor:
        if local_input.numel() > symm_buffer.numel():
            raise RuntimeError(
                f"one_shot_all_reduce_copy: the input has {local_input.numel()} elements and the symmetric buffer "
                f"{symm_buffer.numel()}"
            )
        buffer = symm_buffer.reshape(-1)[: local_input.numel()].view(local_input.shape)
        with self.recording():
            buffer.copy_(local_input)
        return self.one_shot_all_reduce_out(buffer, reduce_op, group_name, out)

    def two_shot_all_reduce(self, input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
        return self.two_shot_all_reduce_out(input, reduce_op, group_name, input)

    def two_shot_all_reduce_out(
        self, input: torch.Tensor, reduce_op: str, group_name: str, output: torch.Tensor
    ) -> torch.Tensor:
        return self._all_reduce("two_shot_all_reduce", "two_shot_pull", input, reduce_op, group_name, output)

    def multimem_all_reduce(self, input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
        self._require_multicast("multimem_all_reduce_")
        return self._all_reduce("multimem_all_reduce_", "multimem_allreduce", input, reduce_op, group_name, input)

    def multimem_one_shot_all_reduce(self, input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
        return self.multimem_one_shot_all_reduce_out(input, reduce_op, group_name, self._like(input))

    def multimem_one_shot_all_reduce_out(
        self, input: torch.Tensor, reduce_op: str, group_name: str, out: torch.Tensor
    ) -> torch.Tensor:
        self._require_multicast("multimem_one_shot_all_reduce")
        return self._all_reduce("multimem_one_shot_all_reduce", "multimem_allreduce", input, reduce_op, group_name, out)

    def _all_reduce(
        self, name: str, algorithm: str, input: torch.Tensor, reduce_op: str, group_name: str, out: torch.Tensor
    ) -> torch.Tensor:
        group = self._group(name, input, group_name)
        if reduce_op != "sum":
            raise RuntimeError(f"{name}: only sum is supported for now, found {reduce_op!r}")
        if out.shape != input.shape or out.dtype != input.dtype:
            raise RuntimeError(
                f"{name}: out has {tuple(out.shape)} {out.dtype}, input {tuple(input.shape)} {input.dtype}"
            )
        require_summable(name, input)
        return self._post(group, "all_reduce", algorithm, [input], [out], input, ReduceOp.SUM, out)

    # -- others ------------------------------------------------------------------------------------------------------

    def multimem_all_gather_out(self, input: torch.Tensor, group_name: str, out: torch.Tensor) -> torch.Tensor:
        self._require_multicast("multimem_all_gather_out")
        group = self._group("multimem_all_gather_out", out, group_name)
        if out.numel() != input.numel() * group.size():
            raise RuntimeError(
                f"multimem_all_gather_out: out has {out.numel()} elements, expected {group.size()} times the input's "
                f"{input.numel()}"
            )
        cells = out.view(-1).split(input.numel())
        return self._post(group, "all_gather", "nvls_allgather", [input], cells, input, None, out)

    def reduce_scatter_out(
        self, input: torch.Tensor, group_name: str, split_last_dim: bool, output: torch.Tensor
    ) -> torch.Tensor:
        group = self._group("reduce_scatter_out", input, group_name)
        dim = input.dim() - 1 if split_last_dim else 0
        if input.shape[dim] % group.size() or output.numel() * group.size() != input.numel():
            raise RuntimeError(
                f"reduce_scatter_out: input {tuple(input.shape)} cannot be scattered over {group.size()} ranks along "
                f"dimension {dim} into output {tuple(output.shape)}"
            )
        require_summable("reduce_scatter", input, "two_shot_all_reduce")
        cells = [cell.contiguous() for cell in input.chunk(group.size(), dim)]
        return self._post(
            group, "reduce_scatter", "direct_reducescatter", cells, [output], output, ReduceOp.SUM, output
        )

    def all_to_all_vdev(
        self,
        input: torch.Tensor,
        out: torch.Tensor,
        in_splits: torch.Tensor,
        out_splits_offsets: torch.Tensor,
        group_name: str,
    ) -> None:
        """Rows ``in_splits[j]`` of ``input`` go to rank j. ``out_splits_offsets`` ``[2, ranks]`` gets how many rows came from
        each rank, and where in ``out`` they begin."""
        group = self._group("all_to_all_vdev", input, group_name)
        size = group.size()
        if in_splits.numel() != size or tuple(out_splits_offsets.shape) != (2, size):
            raise RuntimeError(
                f"all_to_all_vdev: in_splits {tuple(in_splits.shape)} and out_splits_offsets "
                f"{tuple(out_splits_offsets.shape)}: expected ({size},) and (2, {size})"
            )
        received = out_splits_offsets[0]
        self._post(
            group, "all_to_all", "direct_alltoall", in_splits.reshape(-1).split(1), received.split(1), None, None, received,
            in_splits.dtype,
        )  # fmt: skip
        counts = values_of(received.detach()).tolist()
        offsets = [sum(counts[:rank]) for rank in range(size)]
        out_splits_offsets[1].copy_(torch.tensor(offsets, dtype=out_splits_offsets.dtype))
        if sum(counts) > out.shape[0]:
            raise RuntimeError(
                f"all_to_all_vdev: {sum(counts)} rows come to rank {group.rank()}, and out has {out.shape[0]}"
            )
        rows = values_of(in_splits.detach()).tolist()
        sent = input[: sum(rows)].split(rows)
        self._post(
            group, "all_to_all", "direct_alltoall", sent, out[: sum(counts)].split(counts), None, None, out, input.dtype
        )

    def stream_write_value32(self, input: torch.Tensor, offset: int, val: int) -> torch.Tensor:
        return self._writes.stream_write_value32(input, offset, val)

    def memset32(self, input: torch.Tensor, offset: int, val: int, count: int) -> torch.Tensor:
        return self._writes.memset32(input, offset, val, count)

    # -- how ---------------------------------------------------------------------------------------------------------

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    def _group(self, name: str, tensor: torch.Tensor, group_name: str) -> SimProcessGroup:
        """The group, which has met over ``tensor``'s buffer (or does now)."""
        if self._memory.rendezvous(tensor, group_name) is None:
            raise RuntimeError(f"{name}: the tensor must be in symmetric memory: allocate it with symm_mem.empty")
        if not tensor.is_contiguous():
            raise RuntimeError(f"{name}: the tensor must be contiguous")
        self._take_turn(name, tensor)
        import torch.distributed.distributed_c10d as c10d

        group: Any = c10d._resolve_process_group(c10d.GroupName(group_name))
        return group

    def _take_turn(self, name: str, tensor: torch.Tensor) -> None:
        """Note that the current stream uses the signal pad, where races are looked for: an operation of another stream must
        come after, because both wait for the same words of their peers."""
        host = self._simulation.hosts.current()
        order, part = host.order, part_of(tensor)
        if order is None or part is None or host.capture is not None:
            return
        access = order.access(order.enqueued(host.stream).strand, f"{name} (its signals)")
        if part.turns is None:
            part.turns = Shadow(order.report, WORD)
            part.turns.made, part.turns.tensor = access, (torch.uint32, (1,))
        part.turns.write(access, ByteRegion(0, WORD))

    def _require_multicast(self, name: str) -> None:
        if not self._simulation.topology.system.sips.reduces_in_switch:
            raise RuntimeError(
                f"{name}: requires multicast support, which the switches of {self._simulation.topology.system.name} do not "
                "have: use one_shot_all_reduce or two_shot_all_reduce_, or a system with NVLink SHARP (dgx_h100)"
            )

    def _post(
        self,
        group: SimProcessGroup,
        op: str,
        algorithm: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        shape_of: torch.Tensor | None,
        reduction: ReduceOp | None,
        result: torch.Tensor,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Meet the other members in a collective; the current stream waits for it."""
        shape = None if shape_of is None else tuple(shape_of.shape)
        kind = dtype if shape_of is None else shape_of.dtype
        signature = Signature(op, shape, kind, None if reduction is None else reduction.value, None, algorithm)
        post(self._simulation, group.communicator.peers, signature, inputs, outputs)
        return result


def post(
    simulation: Simulation,
    peers: Communicator,
    signature: Signature,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> None:
    """The current rank's part of a collective in the memory of its peers; the current stream waits for it.

    A graph that is being captured has it in each replay.
    """
    simulation.values.settle_stream()
    host = simulation.hosts.current()
    graph = host.capture
    if graph is not None:
        keep(host, outputs)
    with torch.no_grad():
        operation = simulation.matcher.post(host, peers.plan(signature), inputs, outputs)
        simulation.wait_on_stream(operation)
    if graph is not None:
        graph.posted.append(operation)
        graph.add_on_stream(host, functools.partial(post, simulation, peers, signature, inputs, outputs))


__all__ = ["MODULE", "StreamWrites", "operations", "post", "register"]
