"""``ctx.distributed``: process groups and collectives of simulated ranks, with ``torch.distributed``'s names.

The calls are posted to and matched by :mod:`kernbench.runtime_api.matching`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.schedule import Schedule
from kernbench.errors import ConfigError, KernbenchError
from kernbench.runtime_api.groups import Collective, ProcessGroup, Signature
from kernbench.runtime_api.handles import Work
from kernbench.runtime_api.matching import Matcher
from kernbench.runtime_api.posting import rank_of
from kernbench.runtime_api.reports import deadlock_report
from kernbench.sim_engine.operation import COMM_STREAM

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

BACKENDS = ("kernbench", "gloo", "nccl", "mpi", "ccl", "xccl", "hccl", "ahbm")

__all__ = ["Collective", "Distributed", "ProcessGroup"]


class Distributed:
    """``torch.distributed`` of a context."""

    ReduceOp = ReduceOp

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx
        self._rank_by_greenlet = ctx.scheduler.rank_by_greenlet
        self.matcher = Matcher(ctx)
        self._world: ProcessGroup | None = None
        self._groups: dict[tuple[int, ...], list[ProcessGroup]] = {}
        self._group_calls: dict[tuple[int, tuple[int, ...]], int] = {}
        self._backends: dict[int, str] = {}

    # -- world -------------------------------------------------------------------------------------------------------

    def _open_world(self, size: int) -> None:
        self._reset()
        self.matcher.history.clear()
        self._world = ProcessGroup("default", tuple(range(size)))

    def _reset(self) -> None:
        self._world = None
        self._groups.clear()
        self._group_calls.clear()
        self._backends.clear()
        self.matcher.reset()

    def is_available(self) -> bool:
        """True."""
        return True

    def is_initialized(self) -> bool:
        """Whether this rank has called :meth:`init_process_group`."""
        return self._ctx._me().rank in self._backends

    def init_process_group(
        self,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        group_name: str = "",
        **kwargs: Any,
    ) -> None:
        """Join the world that ``spawn`` has made. ``rank`` and ``world_size``, if given, must agree with it."""
        me = self._ctx._me()
        if me.rank is None:
            raise KernbenchError("init_process_group is for ranks: call it inside the function given to spawn")
        if me.rank in self._backends:
            raise KernbenchError(f"rank {me.rank}: trying to initialize the default process group twice")
        world = self._require_world()
        if rank not in (-1, me.rank):
            raise ConfigError(f"init_process_group(rank={rank}) on the rank that spawn calls {me.rank}")
        if world_size not in (-1, world.size):
            raise ConfigError(f"init_process_group(world_size={world_size}) in a world of {world.size} ranks")
        self._backends[me.rank] = backend or "kernbench"

    def destroy_process_group(self, group: ProcessGroup | None = None) -> None:
        """Leave the world (``group=None``), or drop a sub-group."""
        if group is None:
            self._backends.pop(self._rank(), None)

    def get_backend(self, group: ProcessGroup | None = None) -> str:
        """The backend name that was asked for."""
        return self._backends.get(self._rank(), "kernbench")

    def get_rank(self, group: ProcessGroup | None = None) -> int:
        """This rank's number in ``group`` (default: the world), -1 if it is not a member."""
        rank = self._rank()
        return rank if group is None else group.index.get(rank, -1)

    def get_world_size(self, group: ProcessGroup | None = None) -> int:
        """Number of ranks of ``group`` (default: the world), -1 if this rank is not a member.

        Outside ranks: the size a world would have if nobody says, from ``ccl.yaml``, else the number of SIPs.
        """
        if group is not None:
            return group.size if self._rank() in group.index else -1
        if self._world is not None:
            return self._world.size
        return self._ctx.ccl_config.world_size(len(self._ctx.sips))

    def get_process_group_ranks(self, group: ProcessGroup | None = None) -> list[int]:
        """The ranks of ``group``, in group order."""
        return list((group or self._require_world()).ranks)

    def new_group(
        self, ranks: Sequence[int] | None = None, timeout: Any = None, backend: str | None = None, **kwargs: Any
    ) -> ProcessGroup:
        """A group of ``ranks`` (default: all). Every rank of the world calls this, members or not, in the same order."""
        world = self._require_world()
        members = tuple(world.ranks if ranks is None else sorted(ranks))
        wrong = [rank for rank in members if rank not in world.index]
        if wrong or len(set(members)) != len(members) or not members:
            raise ConfigError(
                f"new_group({list(members)}): expected distinct ranks of 0..{world.size - 1}"
                + (f", found {wrong}" if wrong else "")
            )
        # the k-th call of a rank with these members gives the k-th group of these members
        key = (self._rank(), members)
        nth = self._group_calls.get(key, 0)
        self._group_calls[key] = nth + 1
        made = self._groups.setdefault(members, [])
        if nth == len(made):
            number = sum(map(len, self._groups.values()))
            made.append(ProcessGroup(f"group {number} {list(members)}", members, f"{COMM_STREAM} {number}"))
        return made[nth]

    def _rank(self) -> int:
        return rank_of(self._ctx._me())

    def _require_world(self) -> ProcessGroup:
        if self._world is None:
            raise KernbenchError(
                "there is no world: collectives are called inside ranks, see ctx.multiprocessing.spawn"
            )
        return self._world

    # -- collectives -------------------------------------------------------------------------------------------------

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: Any = ReduceOp.SUM,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        out: torch.Tensor | None = None,
        algorithm: str | None = None,
    ) -> Work | None:
        """Reduce ``tensor`` over all members of ``group``; every member gets the result.

        Args:
            tensor: any shape; fp16, bf16, fp32, fp64 or an integer dtype. Same shape and dtype on every member.
            op: ``ReduceOp``, torch's or ours, or its name: sum, prod, min, max, avg, band, bor, bxor.
            group: default: the world.
            async_op: return a :class:`Work` at once.
            out: where the result goes; default: ``tensor``.
            algorithm: entry of ``ccl.yaml``; default: the one it names.
        """
        reduction = ReduceOp.parse(op)
        reduction.check_dtype(tensor.dtype)
        target = tensor if out is None else out
        if target.shape != tensor.shape or target.dtype != tensor.dtype:
            raise KernbenchError(
                f"all_reduce: out has {tuple(target.shape)} {target.dtype}, tensor has {tuple(tensor.shape)} {tensor.dtype}"
            )
        signature = Signature(
            "all_reduce",
            tuple(tensor.shape),
            tensor.dtype,
            reduction.value,
            None,
            algorithm or self._ctx.ccl_config.algorithm,
        )
        return self._post(signature, (tensor,), (target,), group, async_op)

    def broadcast(
        self,
        tensor: torch.Tensor,
        src: int | None = None,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        group_src: int | None = None,
    ) -> Work | None:
        """Give every member of ``group`` the tensor of rank ``src`` (a rank of the world; ``group_src``: of the group)."""
        members = group or self._require_world()
        root = members.root(src, group_src)
        signature = Signature("broadcast", tuple(tensor.shape), tensor.dtype, None, root, self._algorithm("broadcast"))
        return self._post(signature, (tensor,), (tensor,), group, async_op)

    def reduce(
        self,
        tensor: torch.Tensor,
        dst: int | None = None,
        op: Any = ReduceOp.SUM,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        group_dst: int | None = None,
    ) -> Work | None:
        """Reduce ``tensor`` over all members; rank ``dst`` (of the world; ``group_dst``: of the group) gets the result."""
        members = group or self._require_world()
        root = members.root(dst, group_dst)
        signature = self._signature("reduce", tensor, op=op, root=root)
        outputs = (tensor,) if root == self._rank() else ()
        return self._post(signature, (tensor,), outputs, group, async_op)

    def all_gather_into_tensor(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Every member gets all members' ``input_tensor`` ``[n, ...]``, in group order: ``[members * n, ...]``, or stacked
        as ``[members, n, ...]``. ``output_tensor`` is contiguous."""
        members = group or self._require_world()
        outputs = self._parts("all_gather_into_tensor", "output_tensor", output_tensor, input_tensor, members)
        signature = self._signature("all_gather", input_tensor)
        return self._post(signature, (input_tensor,), outputs, group, async_op)

    def all_gather(
        self,
        tensor_list: Sequence[torch.Tensor],
        tensor: torch.Tensor,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Every member gets all members' ``tensor`` in the tensors of ``tensor_list``, all of one shape."""
        self._check_list("all_gather", "tensor_list", tensor_list, tensor, group or self._require_world())
        return self._post(self._signature("all_gather", tensor), (tensor,), tensor_list, group, async_op)

    def reduce_scatter_tensor(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        op: Any = ReduceOp.SUM,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduce ``input`` ``[members * n, ...]`` over all members; member i gets part i, ``[n, ...]``, in ``output``."""
        members = group or self._require_world()
        inputs = self._parts("reduce_scatter_tensor", "input", input, output, members)
        signature = self._signature("reduce_scatter", output, op=op)
        return self._post(signature, inputs, (output,), group, async_op)

    def reduce_scatter(
        self,
        output: torch.Tensor,
        input_list: Sequence[torch.Tensor],
        op: Any = ReduceOp.SUM,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduce the members' i-th inputs; member i gets that in ``output``."""
        self._check_list("reduce_scatter", "input_list", input_list, output, group or self._require_world())
        signature = self._signature("reduce_scatter", output, op=op)
        return self._post(signature, input_list, (output,), group, async_op)

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, group: ProcessGroup | None = None, async_op: bool = False
    ) -> Work | None:
        """Part j of ``input`` goes to member j, which keeps it as part i: an even split of dimension 0."""
        members = group or self._require_world()
        rows = input.shape[0] if input.dim() else 0
        if rows % members.size or output.shape != input.shape:
            raise KernbenchError(
                f"all_to_all_single: rank {self._rank()} has input {tuple(input.shape)} and output {tuple(output.shape)}: "
                f"expected one shape whose dimension 0 divides by {members.size}"
            )
        parts = rows // members.size
        signature = Signature("all_to_all", None, input.dtype, None, None, self._algorithm("all_to_all"))
        return self._post(signature, input.split(parts), output.split(parts), group, async_op)

    def isend(self, tensor: torch.Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> Work:
        """Start to send ``tensor`` to rank ``dst`` of the world."""
        return self._message(tensor, dst, group, tag, sends=True)

    def irecv(
        self, tensor: torch.Tensor, src: int | None = None, group: ProcessGroup | None = None, tag: int = 0
    ) -> Work:
        """Start to receive into ``tensor`` from rank ``src`` of the world; None: from whoever sends first."""
        return self._message(tensor, src, group, tag, sends=False)

    def send(self, tensor: torch.Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
        """Send ``tensor`` to rank ``dst`` of the world."""
        self.isend(tensor, dst, group, tag).wait()

    def recv(
        self, tensor: torch.Tensor, src: int | None = None, group: ProcessGroup | None = None, tag: int = 0
    ) -> None:
        """Receive into ``tensor`` from rank ``src`` of the world."""
        self.irecv(tensor, src, group, tag).wait()

    def _message(
        self, tensor: torch.Tensor, peer: int | None, group: ProcessGroup | None, tag: int, *, sends: bool
    ) -> Work:
        members = group or self._require_world()
        if peer is not None and peer not in members.index:
            raise ConfigError(f"rank {peer} is not a member of {members.name} ({list(members.ranks)})")
        op = self.matcher.mailbox.post(members, tensor, peer=peer, tag=tag, sends=sends)
        return Work(self._ctx, op, (tensor,))

    def _signature(self, name: str, tensor: torch.Tensor, *, op: Any = None, root: int | None = None) -> Signature:
        reduction = None
        if op is not None:
            reduction = ReduceOp.parse(op)
            reduction.check_dtype(tensor.dtype)
        return Signature(
            name,
            tuple(tensor.shape),
            tensor.dtype,
            None if reduction is None else reduction.value,
            root,
            self._algorithm(name),
        )

    def _algorithm(self, collective: str) -> str:
        return self._ctx.ccl_config.algorithm_for(collective)

    def _parts(
        self, op: str, what: str, whole: torch.Tensor, part: torch.Tensor, members: ProcessGroup
    ) -> Sequence[torch.Tensor]:
        """``whole`` cut into one ``[n]`` view per member, each as large as ``part``."""
        if whole.numel() != part.numel() * members.size or whole.dtype != part.dtype or not whole.is_contiguous():
            raise KernbenchError(
                f"{op}: rank {self._rank()} has {what} {tuple(whole.shape)} {whole.dtype} for parts of "
                f"{tuple(part.shape)} {part.dtype}: expected a contiguous tensor of {members.size} times as many elements, "
                "of one dtype"
            )
        flat = whole.view(-1)
        return flat.split(part.numel()) if part.numel() else [flat] * members.size

    def _check_list(
        self, op: str, what: str, tensors: Sequence[torch.Tensor], part: torch.Tensor, members: ProcessGroup
    ) -> None:
        shapes = {(tuple(tensor.shape), tensor.dtype) for tensor in tensors}
        if len(tensors) != members.size or shapes != {(tuple(part.shape), part.dtype)}:
            raise KernbenchError(
                f"{op}: rank {self._rank()} has {len(tensors)} tensors in {what}: expected {members.size} of shape "
                f"{tuple(part.shape)} and dtype {part.dtype}"
            )

    def barrier(self, group: ProcessGroup | None = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
        """Return when every member has called it. Takes the time of an all-reduce of one element, as NCCL's does."""
        signature = Signature("barrier", None, None, None, None, self._ctx.ccl_config.algorithm)
        return self._post(signature, (), (), group, async_op)

    def schedule_of(
        self,
        collective: str,
        count: int,
        dtype: torch.dtype,
        group: ProcessGroup | None = None,
        root: int | None = None,
    ) -> Schedule:
        """The schedule that a collective over ``group`` (default: the world) runs with a work buffer of ``count`` elements.

        For checks: it says in which order values are reduced.
        """
        return self.matcher.runs.request_for(collective, count, dtype, group or self._require_world(), root).schedule

    # -- posting and matching ----------------------------------------------------------------------------------------

    def _post(
        self,
        signature: Signature,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        group: ProcessGroup | None,
        async_op: bool,
    ) -> Work | None:
        op = self.matcher.post(group if group is not None else self._require_world(), signature, inputs, outputs)
        if async_op:
            return Work(self._ctx, op, outputs)
        self._ctx.wait(op)
        self._ctx._me().last = None  # whatever it had enqueued has ended
        return None

    def _forget_unmatched(self) -> None:
        """Drop what can never be matched."""
        self.matcher.forget_unmatched()

    def _unmatched_ranks(self) -> set[int]:
        """The ranks that have called a collective which others have not."""
        pending = self._ctx._pending_collectives
        return {rank for collective in pending if not collective.matched for rank in collective.arrivals}

    def _report(self) -> str:
        return deadlock_report(self._ctx)
