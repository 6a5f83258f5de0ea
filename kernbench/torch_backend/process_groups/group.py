"""The process group that torch's own functions call inside a simulated rank: its collectives and messages.

Every method posts to the context's :class:`~kernbench.simulation.matching.matcher.Matcher` and returns a
:class:`~kernbench.torch_backend.process_groups.work.Work`. Names and arguments are those of
``torch.distributed.ProcessGroup`` in torch 2.13 (``all_gather_single``, ``reduce_scatter_single``,
``all_to_all_single``), with the older names beside them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from kernbench.ccl.reduce_op import ReduceOp
from kernbench.errors import CallError
from kernbench.simulation.memory.tensor_queries import plain
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.process_groups import (
    backend_classes,
    flat_lists,
    in_place,
    monitored_barrier,
    nccl_rules,
)
from kernbench.torch_backend.process_groups.arguments import (
    Tensors,
    cells_of,
    in_one_piece,
    one_tensor,
    reduction_of,
    require_contiguous,
    root_of,
    tensor_list,
)
from kernbench.torch_backend.process_groups.backend_options import BackendStandIn
from kernbench.torch_backend.process_groups.dispatched import any_reduction, as_lists, as_sizes, as_tensors, dispatched
from kernbench.torch_backend.process_groups.flat_lists import FlatList
from kernbench.torch_backend.process_groups.group_class import GroupClass
from kernbench.torch_backend.process_groups.posting_group import PostingGroup
from kernbench.torch_backend.process_groups.work import Work


class SimProcessGroup(PostingGroup, metaclass=GroupClass):
    """A group of simulated ranks."""

    # -- collectives -------------------------------------------------------------------------------------------------

    @dispatched("allreduce_", lambda group, given, *_: (as_tensors(given), group, any_reduction(), None))
    def allreduce(
        self, tensors: object, opts: object = None, timeout: object = None, *, out: torch.Tensor | None = None,
        algorithm: str | None = None,
    ) -> Work:  # fmt: skip
        """``out``: where the result goes, by default the tensor itself; ``algorithm``: an entry of ``ccl.yaml``."""
        tensor = one_tensor(tensors)
        if tensor.is_sparse:
            return self._sparse_all_reduce(tensor, opts)
        given = outputs = (tensor,)
        if out is not None:
            target = plain(out)
            if target.shape != tensor.shape or target.dtype != tensor.dtype:
                raise CallError(
                    f"all_reduce: out has {tuple(target.shape)} {target.dtype}, tensor has {tuple(tensor.shape)} {tensor.dtype}"
                )
            outputs = (target,)
        return self._post(
            "all_reduce", given, outputs, opts, shape=tensor.shape, dtype=tensor.dtype,
            reduction=reduction_of(opts), algorithm=algorithm,
        )  # fmt: skip

    @dispatched("allreduce_coalesced_", lambda group, given, *_: (as_tensors(given), group, any_reduction()))
    def allreduce_coalesced(self, tensors: Tensors, opts: object = None) -> Work:
        """All tensors in one collective."""
        if any(tensor.is_sparse for tensor in tensors):
            return self._joined([self.allreduce([tensor], opts) for tensor in tensors])
        given = tuple(tensors)
        return self._post(
            "all_reduce", given, given, opts, shape=tuple(tensor.numel() for tensor in tensors),
            dtype=tensors[0].dtype, reduction=reduction_of(opts),
        )  # fmt: skip

    def _sparse_all_reduce(self, tensor: torch.Tensor, opts: object) -> Work:
        """Every member gets the coalesced sum: gather the entries, add them up in rank order."""
        if self._library_for((tensor,)) in ("nccl", "rccl"):
            raise RuntimeError(nccl_rules.SPARSE)
        if reduction_of(opts) is not ReduceOp.SUM:
            raise CallError("all_reduce of sparse tensors only supports sum")
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
        return Work(self.simulation, self._futures, work.operations, (tensor,))

    @dispatched("broadcast_", lambda group, given, opts=0, *_: (as_tensors(given), group, root_of(opts), 0))
    def broadcast(self, tensors: object, opts: object = 0, timeout: object = None) -> Work:
        tensor = one_tensor(tensors, "broadcast")
        root = self._root("broadcast", opts, tensor)
        given = (tensor,)
        return self._post("broadcast", given, given, opts, shape=tuple(tensor.shape), dtype=tensor.dtype, root=root)

    @dispatched(
        "reduce_", lambda group, given, opts=None, *_: (as_tensors(given), group, any_reduction(), root_of(opts), 0)
    )
    def reduce(self, tensors: object, opts: object = None, op: object = None, timeout: object = None) -> Work:
        tensor = one_tensor(tensors, "reduce", self.backend_name)
        root = self._root("reduce", opts, tensor)
        reduction = reduction_of(op if op is not None else opts if hasattr(opts, "reduceOp") else None)
        outputs = (tensor,) if root == self._rank else ()
        work = self._post(
            "reduce", (tensor,), outputs, opts, shape=tuple(tensor.shape),
            dtype=tensor.dtype, reduction=reduction, root=root,
        )  # fmt: skip
        work.tensors = (tensor,)  # also where nothing is written, as torch's works have it
        return work

    @dispatched("allgather_", lambda group, got, given, *_: (as_lists(got), as_tensors(given), group))
    def allgather(self, output_tensors: object, input_tensors: object, opts: object = None) -> Work:
        outputs, tensor = tensor_list(output_tensors), one_tensor(input_tensors)
        shape, splits = self._cells("all_gather", "gives", tensor, "output", outputs)
        flat = self._flat("all_gather", tensor, outputs)
        work = self._post("all_gather", (tensor,), outputs, opts, shape=shape, dtype=tensor.dtype, splits=splits)
        if flat is not None:
            work.operations = (*work.operations, flat.copy_after(work.operation.stream))
            work.flat = flat
            flat.write()
        return work

    @dispatched("_allgather_base_", lambda group, got, given, *_: (got, given, group))
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: object = None) -> Work:
        output, input = plain(output), plain(input)
        words = nccl_rules.all_gather(output, input) if self._is_nccls(output) else ""
        if output.numel() != input.numel() * self.size():
            raise CallError(
                f"{words}all_gather: output has {output.numel()} elements, expected {self.size()} times the input's "
                f"{input.numel()}"
            )
        if words:
            in_place.look(self.simulation, "all_gather", input, output, self._rank)
        whole = in_one_piece("all_gather", output, self.backend_name)
        cells = cells_of(whole.view(-1), input.numel()) if input.numel() else [output] * self.size()
        work = self._post("all_gather", (input,), cells, opts, shape=tuple(input.shape), dtype=input.dtype)
        work.tensors = (output,)
        return work

    _allgather_base = all_gather_single

    @dispatched("allgather_coalesced_", lambda group, got, given, *_: (as_lists(got), as_tensors(given), group))
    def allgather_coalesced(self, output_lists: Any, input_list: Tensors, opts: object = None) -> Work:
        """``output_lists[r]`` gets the inputs of rank r."""
        if len(output_lists) != self.size():
            raise CallError(f"all_gather: expected {self.size()} output lists, one per rank, found {len(output_lists)}")
        outputs = [output for of_rank in output_lists for output in of_rank]
        sizes = [tensor.numel() for tensor in input_list]
        for of_rank in output_lists:
            if [output.numel() for output in of_rank] != sizes:
                raise CallError(
                    f"all_gather: inputs have {sizes} elements, and the outputs for one rank "
                    f"{[output.numel() for output in of_rank]}"
                )
        return self._post("all_gather", tuple(input_list), outputs, opts, shape=tuple(sizes), dtype=input_list[0].dtype)

    @dispatched(
        "allgather_into_tensor_coalesced_", lambda group, got, given, *_: (as_tensors(got), as_tensors(given), group)
    )
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> Work:
        pairs = zip(outputs, inputs, strict=True)
        return self._joined([self.all_gather_single(output, tensor, opts) for output, tensor in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @dispatched(
        "gather_", lambda group, got, given, opts=None, *_: (as_lists(got), as_tensors(given), group, root_of(opts))
    )
    def gather(
        self, output_tensors: object, input_tensors: object, opts: object = None, timeout: object = None
    ) -> Work:
        tensor = one_tensor(input_tensors, "gather", self.backend_name)
        root = self._root("gather", opts, tensor)
        outputs = tensor_list(output_tensors) if root == self._rank else []
        if root == self._rank:
            if self._is_nccls(tensor):
                nccl_rules.rooted("gather", "output", tensor, outputs, self.size())
            self._check_count("gather", "output", outputs, tensor.numel())
        return self._post("gather", (tensor,), outputs, opts, shape=tuple(tensor.shape), dtype=tensor.dtype, root=root)

    @dispatched(
        "scatter_", lambda group, got, given, opts=None, *_: (as_tensors(got), as_lists(given), group, root_of(opts))
    )
    def scatter(
        self, output_tensors: object, input_tensors: object, opts: object = None, timeout: object = None
    ) -> Work:
        tensor = one_tensor(output_tensors, "scatter", self.backend_name)
        root = self._root("scatter", opts, tensor)
        inputs = tensor_list(input_tensors) if root == self._rank else []
        if root == self._rank:
            if self._is_nccls(tensor):
                nccl_rules.rooted("scatter", "input", tensor, inputs, self.size())
            self._check_count("scatter", "input", inputs, tensor.numel())
        return self._post("scatter", inputs, (tensor,), opts, shape=tuple(tensor.shape), dtype=tensor.dtype, root=root)

    @dispatched(
        "reduce_scatter_", lambda group, got, given, *_: (as_tensors(got), as_lists(given), group, any_reduction())
    )
    def reduce_scatter(
        self, output_tensors: object, input_tensors: object, opts: object = None, timeout: object = None
    ) -> Work:
        tensor = one_tensor(output_tensors, "reduce_scatter", self.backend_name)
        inputs = tensor_list(input_tensors)
        shape, splits = self._cells("reduce_scatter", "wants", tensor, "input", inputs)
        flat = self._flat("reduce_scatter", tensor, inputs)
        if flat is not None:
            flat.copy_before(self.communicator.stream)
        work = self._post(
            "reduce_scatter", inputs, (tensor,), opts, shape=shape, dtype=tensor.dtype, splits=splits,
            reduction=reduction_of(opts),
        )  # fmt: skip
        work.stashed = flat
        return work

    @dispatched("_reduce_scatter_base_", lambda group, got, given, *_: (got, given, group, any_reduction()))
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: object = None) -> Work:
        output, input = plain(output), plain(input)
        words = nccl_rules.reduce_scatter(output, input) if self._is_nccls(output) else ""
        if input.numel() != output.numel() * self.size():
            raise CallError(
                f"{words}reduce_scatter: input has {input.numel()} elements, expected {self.size()} times the output's "
                f"{output.numel()}"
            )
        if words:
            in_place.look(self.simulation, "reduce_scatter", output, input, self._rank)
        whole = in_one_piece("reduce_scatter", input, self.backend_name)
        cells = cells_of(whole.reshape(-1), output.numel()) if output.numel() else [input] * self.size()
        return self._post(
            "reduce_scatter", cells, (output,), opts, shape=tuple(output.shape), dtype=output.dtype,
            reduction=reduction_of(opts), given=(input,),
        )  # fmt: skip

    _reduce_scatter_base = reduce_scatter_single

    @dispatched(
        "reduce_scatter_tensor_coalesced_",
        lambda group, got, given, *_: (as_tensors(got), as_tensors(given), group, any_reduction()),
    )
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> Work:
        pairs = zip(outputs, inputs, strict=True)
        return self._joined([self.reduce_scatter_single(output, tensor, opts) for output, tensor in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @dispatched("alltoall_", lambda group, got, given, *_: (as_tensors(got), as_tensors(given), group))
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: object = None) -> Work:
        outputs, inputs = tensor_list(output_tensors), tensor_list(input_tensors)
        self._check_count("all_to_all", "output", outputs)
        self._check_count("all_to_all", "input", inputs)
        if self._is_nccls(outputs[0]) and self.size() > 1:
            in_place.look_at_exchange(self.simulation, outputs, inputs)
        return self._post("all_to_all", inputs, outputs, opts, shape=None, dtype=inputs[0].dtype)

    @dispatched(
        "alltoall_base_",
        lambda group, got, given, to=None, by=None, *_: (got, given, group, as_sizes(to), as_sizes(by)),
    )
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: object = None,
    ) -> Work:
        """Rows ``input_split_sizes[j]`` of ``input`` go to rank j; without sizes, dimension 0 is cut evenly."""
        for sizes in (output_split_sizes, input_split_sizes):
            if isinstance(sizes, torch.Tensor):
                raise TypeError(
                    "all_to_all_single(): incompatible function arguments: split sizes are a list of numbers, found a Tensor; "
                    "give its tolist()"
                )
        output, input = plain(output), plain(input)
        outputs = self._rows("output", output, output_split_sizes)
        inputs = self._rows("input", input, input_split_sizes)
        if self._is_nccls(output) and self.size() > 1:
            in_place.look_at_exchange(self.simulation, (output,), (input,))
        work = self._post("all_to_all", inputs, outputs, opts, shape=None, dtype=input.dtype, given=(input,))
        work.tensors = (output,)
        return work

    alltoall_base = all_to_all_single

    def _rows(self, what: str, tensor: torch.Tensor, sizes: Sequence[int] | None) -> Tensors:
        rows = tensor.shape[0] if tensor.dim() else 0
        sizes = (
            [] if sizes is None else [operator.index(size) for size in sizes]
        )  # may be numpy's numbers, or a tensor's
        words = nccl_rules.split_words(len(sizes) != self.size(), bool(sizes)) if self._is_nccls(tensor) else ""
        if not sizes:
            if rows % self.size():
                raise CallError(
                    f"{words}all_to_all: dimension 0 of the {what}, {rows}, does not divide equally across the group of "
                    f"{self.size()}: give split sizes"
                )
            sizes = [rows // self.size()] * self.size()
        if len(sizes) != self.size() or sum(sizes) != rows:
            raise CallError(
                f"{words}all_to_all: {what} split sizes {sizes} must be {self.size()} numbers whose sum is the size of "
                f"dimension 0, {rows}"
            )
        return tensor.split(sizes)

    @dispatched("barrier", lambda group, *_: (torch.empty(0), group, []))
    def barrier(self, opts: object = None, timeout: object = None) -> Work:
        for each in getattr(opts, "device_ids", None) or ():
            if self.backend_name == "nccl":
                self._device.number(int(each))
        work = self._post("barrier", (), (), opts, shape=None, dtype=None)
        work.of_nccl = self._libraries[1] in ("nccl", "rccl")
        work.on_failure = self._has_failed if work.of_nccl else None
        return work

    def _cells(
        self, op: str, verb: str, own: torch.Tensor, what: str, cells: Tensors
    ) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Shape and splits of the signature of a call with one cell per rank, of which this rank's is as long as ``own``.

        What members must agree on is the length of each cell where cells are not all alike, in length or in shape.
        """
        self._check_count(op, what, cells)
        sizes = tuple(cell.numel() for cell in cells)
        if sizes[self._rank] != own.numel():
            raise CallError(
                f"{op}: rank {self._rank} {verb} {own.numel()} elements, and its {what} for itself has "
                f"{sizes[self._rank]}"
            )
        alike = all(cell.shape == cells[0].shape for cell in cells)
        return (tuple(own.shape), None) if alike else (sizes, sizes)

    def _flat(self, op: str, own: torch.Tensor, parts: Tensors) -> FlatList | None:
        """What torch makes of the list of a call, if it makes something of it."""
        if own.numel() and self._is_nccls(own) and flat_lists.takes_one(parts):
            require_contiguous(op, (own,))
            block = block_of(parts[0])
            return None if block is None else FlatList(self.simulation, parts, block)  # None: refused when it is posted
        return None

    def _check_count(self, op: str, what: str, tensors: Tensors, numel: int | None = None) -> None:
        if len(tensors) != self.size():
            raise CallError(f"{op}: expected {self.size()} {what} tensors, one per rank, found {len(tensors)}")
        if numel is not None and any(tensor.numel() != numel for tensor in tensors):
            raise CallError(
                f"{op}: {what} tensors have {[tensor.numel() for tensor in tensors]} elements, expected {numel} each"
            )

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """As gloo's: rank 0 names the ranks that have not come in time (virtual), the others say that rank 0 failed."""
        monitored_barrier.wait(self, timeout, wait_all_ranks)

    # -- point to point ----------------------------------------------------------------------------------------------

    def send(self, tensors: object, dst: int, tag: int = 0) -> Work:
        return self._post_message(tensors, "send", dst, tag)

    def recv(self, tensors: object, src: int, tag: int = 0) -> Work:
        return self._post_message(tensors, "recv", src, tag, lambda: src)

    def recv_anysource(self, tensors: object, tag: int = 0) -> Work:
        tensor = one_tensor(tensors, "message", self.backend_name)
        if self._is_nccls(tensor):
            nccl_rules.from_any()
        operation = self.matcher.mailbox.post(self.communicator, tensor, peer=None, tag=tag, sends=False)
        self._limit(operation, None)

        def source() -> int:
            self.simulation.waits.wait(operation)
            return self.communicator.index[(operation.detail or {})["source"]]

        return self._work(operation, (tensor,), source)


class GroupMadeDirectly(SimProcessGroup, simulated=True):
    """A group that a program has made by its backend's class: it is what C++ calls a backend, too.

    A class of its own, because torch.compile reads nothing of a group whose class answers for names that it has not.
    """

    made_directly = True

    def __getattr__(self, name: str) -> Any:
        """What backends have and groups do not."""
        if hasattr(BackendStandIn, name):
            return getattr(backend_classes.backend_of(self, self.name()), name)
        raise AttributeError(f"'ProcessGroup' object has no attribute {name!r}", name=name, obj=self)
