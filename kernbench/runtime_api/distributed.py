"""``ctx.distributed``: ``torch.distributed`` of a context's ranks.

The names are thin ways to the process group that torch's own functions call inside a rank: nothing here moves data or waits by
itself. What has no method here (``all_gather_object``, ``batch_isend_irecv``, ...) is ``torch.distributed``'s, for this rank's
groups. ``init_process_group`` may be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.schedule import Schedule
from kernbench.errors import ConfigError, KernbenchError
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.process_groups import world
from kernbench.torch_backend.process_groups.group import SimProcessGroup
from kernbench.torch_backend.process_groups.making import DEFAULT_TIMEOUTS, GroupMaker
from kernbench.torch_backend.process_groups.work import Work

Group = SimProcessGroup | None
"""A process group; None: the default one, of all ranks."""


class Distributed:
    """``torch.distributed`` of a context.

    ``group``: of this context or of torch; default: the world. Collectives return None, or a
    :class:`~kernbench.torch_backend.process_groups.work.Work` if ``async_op``. ``algorithm``: an entry of ``ccl.yaml``;
    default: the one that it names.
    """

    ReduceOp = ReduceOp

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._rank_by_greenlet = simulation.scheduler.rank_by_greenlet
        self._maker: GroupMaker | None = None
        self._default: dict[int, SimProcessGroup] = {}
        self._backends: dict[int, str] = {}
        self._made: dict[int, int] = {}

    # -- world -------------------------------------------------------------------------------------------------------

    def open(self, maker: GroupMaker) -> None:
        """Ranks begin to run, whose groups ``maker`` makes."""
        self._maker = maker

    def close(self) -> None:
        """They have ended."""
        self._maker = None
        self._default.clear()
        self._backends.clear()
        self._made.clear()

    def is_available(self) -> bool:
        """True."""
        return True

    def is_initialized(self) -> bool:
        """Whether this rank has called :meth:`init_process_group`."""
        return self._simulation.hosts.current().rank in self._backends

    def init_process_group(
        self,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: object = None,
        group_name: str = "",
        **kwargs: object,
    ) -> None:
        """Join the world that ``spawn`` has made. ``rank`` and ``world_size``, if given, must agree with it."""
        me = self._simulation.hosts.current()
        if me.rank is None:
            raise KernbenchError("init_process_group is for ranks: call it inside the function given to spawn")
        if me.rank in self._backends:
            raise KernbenchError(f"rank {me.rank}: trying to initialize the default process group twice")
        size = self._simulation.world.require()
        if rank not in (-1, me.rank):
            raise ConfigError(f"init_process_group(rank={rank}) on the rank that spawn calls {me.rank}")
        if world_size not in (-1, size):
            raise ConfigError(f"init_process_group(world_size={world_size}) in a world of {size} ranks")
        self._backends[me.rank] = backend or "kernbench"

    def destroy_process_group(self, group: Group = None) -> None:
        """Leave the world (``group=None``), or drop a sub-group."""
        if group is None:
            self._backends.pop(self._rank(), None)

    def get_backend(self, group: Group = None) -> str:
        """The backend name that was asked for."""
        return self._backends.get(self._rank(), "kernbench")

    def get_rank(self, group: Group = None) -> int:
        """This rank's number in ``group`` (default: the world), -1 if it is not a member."""
        rank = self._rank()
        return rank if group is None else group.rank()

    def get_world_size(self, group: Group = None) -> int:
        """Number of ranks of ``group`` (default: the world), -1 if this rank is not a member.

        Outside ranks: the size a world would have if not given, from ``ccl.yaml``, else the number of SIPs.
        """
        if group is not None:
            return group.size() if group.rank() >= 0 else -1
        simulation = self._simulation
        return simulation.world.size or simulation.ccl_config.world_size(len(simulation.sips))

    def get_process_group_ranks(self, group: Group = None) -> list[int]:
        """The ranks of ``group``, in group order."""
        return list((group or self.group()).communicator.ranks)

    def new_group(
        self,
        ranks: Sequence[int] | None = None,
        timeout: timedelta | None = None,
        backend: str | None = None,
        **kwargs: object,
    ) -> SimProcessGroup:
        """A group of ``ranks`` (default: all). Every rank of the world calls this, members or not, in the same order."""
        size = self._simulation.world.require()
        members = tuple(range(size) if ranks is None else sorted(ranks))
        wrong = [rank for rank in members if not 0 <= rank < size]
        if wrong or len(set(members)) != len(members) or not members:
            raise ConfigError(
                f"new_group({list(members)}): expected distinct ranks of 0..{size - 1}"
                + (f", found {wrong}" if wrong else "")
            )
        mine = self._rank()
        number = self._made[mine] = self._made.get(mine, 0) + 1
        return self._make(f"{number}", members, members.index(mine) if mine in members else -1, timeout, backend)

    def _make(
        self,
        name: str,
        members: tuple[int, ...],
        rank: int,
        timeout: timedelta | None = None,
        backend: str | None = None,
    ) -> SimProcessGroup:
        self._simulation.world.require()
        assert self._maker is not None
        return self._maker.make(
            members=members, rank=rank, backend=backend or self.get_backend(), timeout=timeout or DEFAULT_TIMEOUTS[0],
            name=name,
        )  # fmt: skip

    def group(self) -> SimProcessGroup:
        """This rank's default group."""
        mine = self._rank()
        found = self._default.get(mine)
        if found is None:
            size = self._simulation.world.require()
            found = self._default[mine] = self._make("0", tuple(range(size)), mine)
        return found

    def _rank(self) -> int:
        return self._simulation.hosts.current_rank()

    def __getattr__(self, name: str) -> Any:
        """What is not here ``torch.distributed`` has, as long as that is public; it is passed this rank's default group."""
        if name.startswith("_") or not hasattr(dist, name):
            raise AttributeError(f"neither ctx.distributed nor torch.distributed has {name!r}")
        if self._maker is not None and self._simulation.hosts.current().rank is not None and not dist.is_initialized():
            world.enter(self.group(), "0")
        return getattr(dist, name)

    # -- collectives -------------------------------------------------------------------------------------------------

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: object = ReduceOp.SUM,
        group: Group = None,
        async_op: bool = False,
        *,
        out: torch.Tensor | None = None,
        algorithm: str | None = None,
    ) -> Work | None:
        """Reduce ``tensor`` over all members of ``group``; every member gets the result.

        Args:
            tensor: any shape; fp16, bf16, fp32, fp64 or an integer dtype. Same shape and dtype on every member.
            op: ``ReduceOp``, torch's or ours, or its name: sum, prod, min, max, avg, band, bor, bxor.
            out: where the result goes; default: ``tensor``.
        """
        work = (group or self.group()).allreduce([tensor], ReduceOp.parse(op), out=out, algorithm=algorithm)
        return self._finish(work, async_op)

    def broadcast(
        self,
        tensor: torch.Tensor,
        src: int | None = None,
        group: Group = None,
        async_op: bool = False,
        *,
        group_src: int | None = None,
    ) -> Work | None:
        """Give every member of ``group`` the tensor of rank ``src`` (a rank of the world; ``group_src``: of the group)."""
        members = group or self.group()
        return self._finish(members.broadcast([tensor], members.communicator.root(src, group_src)), async_op)

    def reduce(
        self,
        tensor: torch.Tensor,
        dst: int | None = None,
        op: object = ReduceOp.SUM,
        group: Group = None,
        async_op: bool = False,
        *,
        group_dst: int | None = None,
    ) -> Work | None:
        """Reduce ``tensor`` over all members; rank ``dst`` (of the world; ``group_dst``: of the group) gets the result."""
        members = group or self.group()
        root = members.communicator.root(dst, group_dst)
        return self._finish(members.reduce([tensor], root, ReduceOp.parse(op)), async_op)

    def all_gather_into_tensor(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Group = None, async_op: bool = False
    ) -> Work | None:
        """Every member gets all members' ``input_tensor`` ``[n, ...]``, in group order: ``[members * n, ...]``, or stacked
        as ``[members, n, ...]``. ``output_tensor`` is contiguous."""
        return self._finish((group or self.group()).all_gather_single(output_tensor, input_tensor), async_op)

    def all_gather(
        self, tensor_list: Sequence[torch.Tensor], tensor: torch.Tensor, group: Group = None, async_op: bool = False
    ) -> Work | None:
        """Every member gets all members' ``tensor`` in the tensors of ``tensor_list``."""
        return self._finish((group or self.group()).allgather([tensor_list], [tensor]), async_op)

    def reduce_scatter_tensor(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        op: object = ReduceOp.SUM,
        group: Group = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduce ``input`` ``[members * n, ...]`` over all members; member i gets part i, ``[n, ...]``, in ``output``."""
        work = (group or self.group()).reduce_scatter_single(output, input, ReduceOp.parse(op))
        return self._finish(work, async_op)

    def reduce_scatter(
        self,
        output: torch.Tensor,
        input_list: Sequence[torch.Tensor],
        op: object = ReduceOp.SUM,
        group: Group = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduce the members' i-th inputs; member i gets that in ``output``."""
        work = (group or self.group()).reduce_scatter([output], [input_list], ReduceOp.parse(op))
        return self._finish(work, async_op)

    def gather(
        self,
        tensor: torch.Tensor,
        gather_list: Sequence[torch.Tensor] | None = None,
        dst: int | None = None,
        group: Group = None,
        async_op: bool = False,
        *,
        group_dst: int | None = None,
    ) -> Work | None:
        """Rank ``dst`` gets all members' ``tensor`` in ``gather_list``, which the others leave out."""
        members = group or self.group()
        root = members.communicator.root(dst, group_dst)
        return self._finish(members.gather([gather_list or []], [tensor], root), async_op)

    def scatter(
        self,
        tensor: torch.Tensor,
        scatter_list: Sequence[torch.Tensor] | None = None,
        src: int | None = None,
        group: Group = None,
        async_op: bool = False,
        *,
        group_src: int | None = None,
    ) -> Work | None:
        """Member i gets the i-th tensor of rank ``src``'s ``scatter_list``, which the others leave out, in ``tensor``."""
        members = group or self.group()
        root = members.communicator.root(src, group_src)
        return self._finish(members.scatter([tensor], [scatter_list or []], root), async_op)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        group: Group = None,
        async_op: bool = False,
    ) -> Work | None:
        """Rows ``input_split_sizes[j]`` of ``input`` go to member j; without sizes, dimension 0 is cut evenly."""
        members = group or self.group()
        return self._finish(members.all_to_all_single(output, input, output_split_sizes, input_split_sizes), async_op)

    def all_to_all(
        self,
        output_tensor_list: Sequence[torch.Tensor],
        input_tensor_list: Sequence[torch.Tensor],
        group: Group = None,
        async_op: bool = False,
    ) -> Work | None:
        """Tensor j of ``input_tensor_list`` goes to member j, which keeps it as its tensor i."""
        return self._finish((group or self.group()).alltoall(output_tensor_list, input_tensor_list), async_op)

    def barrier(self, group: Group = None, async_op: bool = False, device_ids: object = None) -> Work | None:
        """Return when every member has called it. Takes the time of an all-reduce of one element, as NCCL's does."""
        return self._finish((group or self.group()).barrier(), async_op)

    def isend(self, tensor: torch.Tensor, dst: int, group: Group = None, tag: int = 0) -> Work:
        """Start to send ``tensor`` to rank ``dst`` of the world."""
        members = group or self.group()
        return members.send([tensor], self._peer(members, dst), tag)

    def irecv(self, tensor: torch.Tensor, src: int | None = None, group: Group = None, tag: int = 0) -> Work:
        """Start to receive into ``tensor`` from rank ``src`` of the world; None: from the first sender."""
        members = group or self.group()
        if src is None:
            return members.recv_anysource([tensor], tag)
        return members.recv([tensor], self._peer(members, src), tag)

    def send(self, tensor: torch.Tensor, dst: int, group: Group = None, tag: int = 0) -> None:
        """Send ``tensor`` to rank ``dst`` of the world."""
        self.isend(tensor, dst, group, tag).wait()

    def recv(self, tensor: torch.Tensor, src: int | None = None, group: Group = None, tag: int = 0) -> None:
        """Receive into ``tensor`` from rank ``src`` of the world."""
        self.irecv(tensor, src, group, tag).wait()

    @staticmethod
    def _peer(members: SimProcessGroup, rank: int) -> int:
        number = members.communicator.rank(rank)
        if number < 0:
            communicator = members.communicator
            raise ConfigError(f"rank {rank} is not a member of {communicator.name} ({list(communicator.ranks)})")
        return number

    @staticmethod
    def _finish(work: Work, async_op: bool) -> Work | None:
        if async_op:
            return work
        work.wait()
        return None

    def schedule_of(
        self, collective: str, count: int, dtype: torch.dtype, group: Group = None, root: int | None = None
    ) -> Schedule:
        """The schedule that a collective over ``group`` (default: the world) runs with a work buffer of ``count`` elements.

        For checks: it says in which order values are reduced.
        """
        communicator = (group or self.group()).communicator
        return self._simulation.runs.request_for(collective, count, dtype, communicator, root).schedule
