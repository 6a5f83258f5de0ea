"""The process group that torch's own functions call inside a simulated rank.

Every method posts to the context's :class:`~kernbench.runtime_api.matching.Matcher` and returns a
:class:`~kernbench.torch_backend.work.SimWork`. Names and arguments are those of ``torch.distributed.ProcessGroup`` in torch
2.13 (``all_gather_single``, ``reduce_scatter_single``, ``all_to_all_single``), with the older names beside them.

Relies on: Python classes may derive from ``ProcessGroup``, whose C++ calls the methods of these names; a backend name other
than ``gloo`` from ``getBackendName`` (DDP's logger would ask for a gloo object).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from kernbench.ccl.reduce_op import ReduceOp
from kernbench.runtime_api.groups import ProcessGroup as Communicator
from kernbench.runtime_api.groups import Signature
from kernbench.sim_engine.operation import Operation
from kernbench.torch_backend.placement import block_of
from kernbench.torch_backend.work import SimWork

if TYPE_CHECKING:
    from kernbench.torch_backend.environment import Environment

Tensors = Sequence[torch.Tensor]

_BACKEND_DEVICES = {"gloo": ("cpu",), "mpi": ("cpu",), "nccl": ("cuda",)}


def _one(tensors: Any) -> torch.Tensor:
    """The tensor of a call that takes a list with one entry per local device, of which a rank has one."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"expected one tensor per rank, found {len(tensors)}: a rank drives one device")
    first = tensors[0]
    return first if isinstance(first, torch.Tensor) else _one(first)


def _many(lists: Any) -> list[torch.Tensor]:
    """The tensors of a call that takes a list of lists, or a list."""
    if lists and not isinstance(lists[0], torch.Tensor):
        lists = lists[0]
    return list(lists)


def _reduction(opts: Any, dtype: torch.dtype) -> ReduceOp:
    """The reduction of options, of a torch ``ReduceOp``, or sum."""
    wanted = getattr(opts, "reduceOp", opts)
    if wanted is None or isinstance(wanted, timedelta):
        return ReduceOp.SUM
    reduction = _parsed(getattr(wanted, "op", wanted))
    reduction.check_dtype(dtype)
    return reduction


_parsed = functools.cache(ReduceOp.parse)


def _root(opts: Any) -> int:
    return int(getattr(opts, "rootRank", opts))


def _timeout_of(opts: Any) -> timedelta | None:
    timeout = getattr(opts, "timeout", None)
    return timeout if isinstance(timeout, timedelta) and timeout > timedelta(0) else None


class BackendStandIn:
    """What ``ProcessGroup._get_backend`` returns: the answers that torch's Python code asks it for."""

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def __init__(self, group: Any) -> None:
        self._group = group
        self.splits = 0
        self.options = BackendOptions(group.backend_name, group.timeout)

    def name(self) -> str:
        return self._group.backend_name

    def rank(self) -> int:
        return self._group.rank()

    def size(self) -> int:
        return self._group.size()

    def comm_split_count(self) -> int:
        return self.splits

    def set_timeout(self, timeout: timedelta) -> None:
        self._group.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Sequence numbers exist from the start."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Nothing is shared that a non-member would have to take part in."""

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Simulated links need no connection."""

    def abort(self) -> None:
        """Nothing to stop."""

    shutdown = abort


class BackendOptions:
    """The options of a backend: a timeout and what torch's code notes in them."""

    def __init__(self, backend: str = "nccl", timeout: timedelta = timedelta(minutes=10), **kwargs: Any) -> None:
        self.backend = backend
        self._timeout = timeout
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.is_high_priority_stream = bool(kwargs.get("is_high_priority_stream", False))
        self.config = _AnyConfig()
        self.split_from: Any = None
        self.split_color = 0


class _AnyConfig:
    """NCCL's tuning knobs: kept, without effect."""


_ProcessGroup: Any = dist.ProcessGroup  # its stub has overloads that name C++ options; ours take what torch passes


class SimProcessGroup(_ProcessGroup):
    """A group of simulated ranks.

    Args:
        environment: of the spawn that the rank belongs to.
        communicator: the members, shared by all of them.
        rank: this rank's number in the group.
        backend: the name that the program asked for.
        timeout: of its operations, virtual time.
        asked_for: whether the program gave that timeout.
    """

    bound_device_id: Any = None

    def __init__(
        self,
        environment: Environment,
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
        self._environment = environment
        self._ctx = environment.ctx
        self._post_to = environment.ctx.distributed.matcher
        self.communicator = communicator
        self._rank = rank
        self.backend_name = backend
        self.timeout = timeout
        self._asked_for = asked_for
        self._name = name
        self._description = description
        self._store = store
        self._coalescing: list[SimWork] | None = None
        self._sequence = 0

    # -- what it is --------------------------------------------------------------------------------------------------

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self.communicator.size

    getRank = rank
    getSize = size

    def name(self) -> str:
        return self.backend_name

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
        return [torch.device(name) for name in _BACKEND_DEVICES.get(self.backend_name, ("cpu", "cuda"))]

    def _get_backend(self, device: Any) -> BackendStandIn:
        return BackendStandIn(self)

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout
        self._asked_for = True

    def _has_hooks(self) -> bool:
        return False

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Sequence numbers exist from the start."""

    def shutdown(self) -> None:
        """Nothing to stop: what was posted completes or is reported."""

    abort = shutdown

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> SimProcessGroup | None:
        """The part of this group that ``new_ranks`` (numbers in this group) are; None if this rank is not in it."""
        if self._rank not in new_ranks:
            return None
        return self._environment.make_group(
            members=tuple(self.communicator.ranks[rank] for rank in new_ranks),
            rank=new_ranks.index(self._rank),
            backend=self.backend_name,
            timeout=timeout or self.timeout,
            name=group_name or f"{self._name}:split",
            description=group_desc or "undefined",
            store=dist.PrefixStore(f"{group_name}/", self._store),
        )

    def __repr__(self) -> str:
        return f"<{self.backend_name} process group {self._name}: rank {self._rank} of {self.size()}>"

    # -- posting -----------------------------------------------------------------------------------------------------

    def _post(
        self,
        op: str,
        inputs: Tensors,
        outputs: Tensors,
        opts: Any,
        *,
        shape: tuple[int, ...] | None,
        dtype: torch.dtype | None,
        reduction: ReduceOp | None = None,
        root: int | None = None,
        splits: tuple[int, ...] | None = None,
        given: Tensors | None = None,
    ) -> SimWork:
        for tensor in outputs:
            if tensor.is_sparse:
                raise ValueError(f"{op}: sparse tensors are supported by all_reduce only")
        signature = Signature(
            op,
            shape,
            dtype,
            None if reduction is None else reduction.value,
            None if root is None else self.communicator.ranks[root],
            self._ctx.ccl_config.algorithm_for(op),
        )
        self._sequence += 1
        operation = self._post_to.post(self.communicator, signature, inputs, outputs, splits=splits, given=given)
        self._limit(operation, _timeout_of(opts))
        return self._work(operation, outputs)

    def _limit(self, operation: Operation, own: timedelta | None) -> None:
        """Give an operation its deadline."""
        timeout = (own or self.timeout).total_seconds()

        def expire(at: float) -> None:
            situation = "\n".join(self._ctx.distributed._report().splitlines()[1:])
            self._post_to.give_up(
                operation,
                dist.DistBackendError(
                    f"Rank {self._rank}: Timed out waiting {round(timeout * 1000)}ms (virtual time) for {operation.name} on "
                    f"{self.communicator.name}.\n{situation}"
                ),
                at,
            )

        asked_for = self._asked_for or own is not None
        self._ctx.deadlines.add(operation, operation.enqueue + timeout, expire, asked_for=asked_for)

    def _work(self, operation: Operation, tensors: Tensors, source: Any = None) -> SimWork:
        on_stream = any(block_of(tensor) is not None for tensor in tensors)
        work = SimWork(self._ctx, (operation,), tensors, source, on_stream)
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _joined(self, works: Sequence[SimWork]) -> SimWork:
        operations = [operation for work in works for operation in work._operations]
        tensors = [tensor for work in works for tensor in work._tensors]
        return SimWork(self._ctx, operations, tensors, on_stream=any(work.on_stream for work in works))

    def _start_coalescing(self, device: Any) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: Any) -> SimWork:
        works, self._coalescing = self._coalescing or [], None
        return self._joined(works)

    # -- collectives -------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        tensor = _one(tensors)
        if tensor.is_sparse:
            return self._sparse_all_reduce(tensor, opts)
        reduction = _reduction(opts, tensor.dtype)
        return self._post(
            "all_reduce", (tensor,), (tensor,), opts, shape=tuple(tensor.shape), dtype=tensor.dtype, reduction=reduction
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> SimWork:
        """All tensors in one collective."""
        if any(tensor.is_sparse for tensor in tensors):
            return self._joined([self.allreduce([tensor], opts) for tensor in tensors])
        return self._post(
            "all_reduce", tuple(tensors), tuple(tensors), opts, shape=tuple(tensor.numel() for tensor in tensors),
            dtype=tensors[0].dtype, reduction=_reduction(opts, tensors[0].dtype),
        )  # fmt: skip

    def _sparse_all_reduce(self, tensor: torch.Tensor, opts: Any) -> SimWork:
        """Every member gets the coalesced sum: gather the entries, add them up in rank order."""
        if _reduction(opts, tensor.dtype) is not ReduceOp.SUM:
            raise ValueError("all_reduce of sparse tensors only supports sum")
        mine = tensor.detach().coalesce()
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size())]
        self.allgather([counts], [torch.tensor([mine._nnz()])], opts).wait()
        indices, values = mine.indices(), mine.values()
        all_indices = [indices.new_empty((int(n), indices.shape[0])) for n in counts]
        all_values = [values.new_empty((int(n), *values.shape[1:])) for n in counts]
        self.allgather([all_indices], [indices.t().contiguous()], opts).wait()
        work = self.allgather([all_values], [values.contiguous()], opts)
        work.wait()
        total = torch.sparse_coo_tensor(torch.cat(all_indices).t(), torch.cat(all_values), tensor.shape).coalesce()
        with torch.no_grad():
            tensor.copy_(total)
        return SimWork(self._ctx, work._operations, (tensor,))

    def broadcast(self, tensors: Any, opts: Any = 0, timeout: Any = None) -> SimWork:
        tensor = _one(tensors)
        root = _root(opts)
        return self._post(
            "broadcast", (tensor,), (tensor,), opts, shape=tuple(tensor.shape), dtype=tensor.dtype, root=root
        )

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> SimWork:
        tensor = _one(tensors)
        root = _root(opts)
        reduction = _reduction(op if op is not None else opts if hasattr(opts, "reduceOp") else None, tensor.dtype)
        outputs = (tensor,) if root == self._rank else ()
        return self._post(
            "reduce", (tensor,), outputs, opts, shape=tuple(tensor.shape), dtype=tensor.dtype, reduction=reduction,
            root=root,
        )  # fmt: skip

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> SimWork:
        outputs, tensor = _many(output_tensors), _one(input_tensors)
        self._check_count("all_gather", "output", outputs)
        sizes = tuple(output.numel() for output in outputs)
        if sizes[self._rank] != tensor.numel():
            raise ValueError(
                f"all_gather: rank {self._rank} gives {tensor.numel()} elements, and its output for itself has "
                f"{sizes[self._rank]}"
            )
        even = all(size == sizes[0] for size in sizes)
        return self._post(
            "all_gather", (tensor,), outputs, opts, dtype=tensor.dtype, shape=tuple(tensor.shape) if even else sizes,
            splits=None if even else sizes,
        )  # fmt: skip

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> SimWork:
        if output.numel() != input.numel() * self.size():
            raise ValueError(
                f"all_gather: output has {output.numel()} elements, expected {self.size()} times the input's "
                f"{input.numel()}"
            )
        cells = output.view(-1).split(input.numel()) if input.numel() else [output] * self.size()
        work = self._post("all_gather", (input,), cells, opts, shape=tuple(input.shape), dtype=input.dtype)
        work._tensors = (output,)
        return work

    _allgather_base = all_gather_single

    def allgather_coalesced(self, output_lists: Any, input_list: Tensors, opts: Any = None) -> SimWork:
        """``output_lists[r]`` gets the inputs of rank r."""
        if len(output_lists) != self.size():
            raise ValueError(
                f"all_gather: expected {self.size()} output lists, one per rank, found {len(output_lists)}"
            )
        outputs = [output for of_rank in output_lists for output in of_rank]
        sizes = [tensor.numel() for tensor in input_list]
        for of_rank in output_lists:
            if [output.numel() for output in of_rank] != sizes:
                raise ValueError(
                    f"all_gather: inputs have {sizes} elements, and the outputs for one rank "
                    f"{[output.numel() for output in of_rank]}"
                )
        return self._post("all_gather", tuple(input_list), outputs, opts, shape=tuple(sizes), dtype=input_list[0].dtype)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> SimWork:
        pairs = zip(outputs, inputs, strict=True)
        return self._joined([self.all_gather_single(output, tensor, opts) for output, tensor in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        tensor, root = _one(input_tensors), _root(opts)
        outputs = _many(output_tensors) if root == self._rank else []
        if root == self._rank:
            self._check_count("gather", "output", outputs, tensor.numel())
        return self._post("gather", (tensor,), outputs, opts, shape=tuple(tensor.shape), dtype=tensor.dtype, root=root)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        tensor, root = _one(output_tensors), _root(opts)
        inputs = _many(input_tensors) if root == self._rank else []
        if root == self._rank:
            self._check_count("scatter", "input", inputs, tensor.numel())
        return self._post("scatter", inputs, (tensor,), opts, shape=tuple(tensor.shape), dtype=tensor.dtype, root=root)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        tensor, inputs = _one(output_tensors), _many(input_tensors)
        self._check_count("reduce_scatter", "input", inputs)
        sizes = tuple(part.numel() for part in inputs)
        if sizes[self._rank] != tensor.numel():
            raise ValueError(
                f"reduce_scatter: rank {self._rank} wants {tensor.numel()} elements, and its input for itself has "
                f"{sizes[self._rank]}"
            )
        even = all(size == sizes[0] for size in sizes)
        return self._post(
            "reduce_scatter", inputs, (tensor,), opts, dtype=tensor.dtype, reduction=_reduction(opts, tensor.dtype),
            shape=tuple(tensor.shape) if even else sizes, splits=None if even else sizes,
        )  # fmt: skip

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> SimWork:
        if input.numel() != output.numel() * self.size():
            raise ValueError(
                f"reduce_scatter: input has {input.numel()} elements, expected {self.size()} times the output's "
                f"{output.numel()}"
            )
        cells = input.reshape(-1).split(output.numel()) if output.numel() else [input] * self.size()
        return self._post(
            "reduce_scatter", cells, (output,), opts, shape=tuple(output.shape), dtype=output.dtype,
            reduction=_reduction(opts, output.dtype), given=(input,),
        )  # fmt: skip

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> SimWork:
        pairs = zip(outputs, inputs, strict=True)
        return self._joined([self.reduce_scatter_single(output, tensor, opts) for output, tensor in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> SimWork:
        outputs, inputs = list(output_tensors), list(input_tensors)
        self._check_count("all_to_all", "output", outputs)
        self._check_count("all_to_all", "input", inputs)
        return self._post("all_to_all", inputs, outputs, opts, shape=None, dtype=inputs[0].dtype)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> SimWork:
        """Rows ``input_split_sizes[j]`` of ``input`` go to rank j; without sizes, dimension 0 is cut evenly."""
        outputs = self._rows("output", output, output_split_sizes)
        inputs = self._rows("input", input, input_split_sizes)
        work = self._post("all_to_all", inputs, outputs, opts, shape=None, dtype=input.dtype, given=(input,))
        work._tensors = (output,)
        return work

    alltoall_base = all_to_all_single

    def _rows(self, what: str, tensor: torch.Tensor, sizes: Sequence[int] | None) -> Tensors:
        rows = tensor.shape[0] if tensor.dim() else 0
        if not sizes:
            if rows % self.size():
                raise RuntimeError(
                    f"all_to_all: dimension 0 of the {what}, {rows}, does not divide equally across the group of "
                    f"{self.size()}: give split sizes"
                )
            sizes = [rows // self.size()] * self.size()
        if len(sizes) != self.size() or sum(sizes) != rows:
            raise RuntimeError(
                f"all_to_all: {what} split sizes {list(sizes)} must be {self.size()} numbers whose sum is the size of "
                f"dimension 0, {rows}"
            )
        return tensor.split(list(sizes))

    def barrier(self, opts: Any = None, timeout: Any = None) -> SimWork:
        return self._post("barrier", (), (), opts, shape=None, dtype=None)

    def _check_count(self, op: str, what: str, tensors: Tensors, numel: int | None = None) -> None:
        if len(tensors) != self.size():
            raise ValueError(f"{op}: expected {self.size()} {what} tensors, one per rank, found {len(tensors)}")
        if numel is not None and any(tensor.numel() != numel for tensor in tensors):
            raise ValueError(
                f"{op}: {what} tensors have {[tensor.numel() for tensor in tensors]} elements, expected {numel} each"
            )

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """As gloo's: rank 0 names the ranks that have not come in time (virtual), the others say that rank 0 failed."""
        limit = self.timeout if timeout is None else timeout
        members = self.communicator
        signature = Signature("monitored_barrier", None, None, None, None, self._ctx.ccl_config.algorithm)
        operation = self._post_to.post(members, signature, (), ())
        milliseconds = round(limit.total_seconds() * 1000)
        collective = self._post_to.collective_of(operation)

        def expire(at: float) -> None:
            missing = [members.index[rank] for rank in collective.missing]
            if 0 in missing:
                self._post_to.give_up(
                    operation,
                    RuntimeError(
                        f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting "
                        "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
                    ),
                    at,
                )
                return
            if milliseconds == 0:
                text = "Rank 0 timed out in monitoredBarrier after 0 ms"
            elif wait_all_ranks:
                text = f"Ranks {', '.join(map(str, missing))} failed to pass monitoredBarrier in {milliseconds} ms"
            else:
                text = f"Rank {missing[0]} failed to pass monitoredBarrier in {milliseconds} ms"
            for rank, arrival in collective.arrivals.items():
                number = members.index[rank]
                self._post_to.give_up(
                    arrival.op,
                    RuntimeError(
                        text
                        if number == 0
                        else f"Rank {number} successfully reached monitoredBarrier, but received errors while waiting "
                        f"for send/recv from rank 0. Please check rank 0 logs for faulty rank. ({text})"
                    ),
                    at,
                )

        asked_for = self._asked_for or timeout is not None
        self._ctx.deadlines.add(operation, operation.enqueue + limit.total_seconds(), expire, asked_for=asked_for)
        self._ctx.wait(operation)

    # -- point to point ----------------------------------------------------------------------------------------------

    def send(self, tensors: Any, dst: int, tag: int = 0) -> SimWork:
        tensor = _one(tensors)
        operation = self._post_to.post_message(
            self.communicator, tensor, peer=self.communicator.ranks[dst], tag=tag, sends=True
        )
        self._limit(operation, None)
        return self._work(operation, (tensor,))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> SimWork:
        tensor = _one(tensors)
        operation = self._post_to.post_message(
            self.communicator, tensor, peer=self.communicator.ranks[src], tag=tag, sends=False
        )
        self._limit(operation, None)
        return self._work(operation, (tensor,), lambda: src)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> SimWork:
        tensor = _one(tensors)
        operation = self._post_to.post_message(self.communicator, tensor, peer=None, tag=tag, sends=False)
        self._limit(operation, None)

        def source() -> int:
            self._ctx.wait(operation)
            return self.communicator.index[(operation.detail or {})["source"]]

        return self._work(operation, (tensor,), source)
