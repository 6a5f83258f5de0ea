"""What programs ask of a group's class, and the answers that hardware gives."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench

STOCK: Any = dist.ProcessGroup
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def _is_one_of_torchs_class(rank: int) -> None:
    from torch.distributed.distributed_c10d import ProcessGroup, ProcessGroupGloo, ProcessGroupNCCL

    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", rank))
    world: Any = dist.group.WORLD
    for group in (world, dist.new_group([0, 1], backend="nccl"), dist.split_group(world, [[0, 1]])):
        assert type(group) is dist.ProcessGroup is ProcessGroup
        assert group.__class__ is torch._C._distributed_c10d.ProcessGroup
        assert isinstance(group, ProcessGroup)
        assert isinstance(group, STOCK)
        assert not isinstance(group, ProcessGroupNCCL)  # it has one
        assert str(type(group)) == "<class 'torch.distributed.distributed_c10d.ProcessGroup'>"
        assert (group.name(), group.bound_device_id) == ("nccl", torch.device("cuda", rank))
        backend = group._get_backend(GPU)
        assert type(backend) is ProcessGroupNCCL
        assert isinstance(backend, ProcessGroupNCCL)
        assert not isinstance(backend, ProcessGroup | ProcessGroupGloo)
        assert (backend.name(), backend.rank(), backend.size()) == ("nccl", rank, 2)
    assert not isinstance(rank, ProcessGroup)
    dist.destroy_process_group()


def _has_the_backends_that_were_asked_for(rank: int) -> None:
    dist.init_process_group("nccl")
    both, gloo = (dist.new_group([0, 1], backend=name) for name in ("cpu:gloo,cuda:nccl", "gloo"))
    world: Any = dist.group.WORLD
    assert [{device.type for device in group._device_types} for group in (world, both, gloo)] == [
        {"cuda"},
        {"cpu", "cuda"},
        {"cpu", "cuda"},
    ]
    assert type(both._get_backend(CPU)) is type(gloo._get_backend(GPU)) is dist.ProcessGroupGloo
    assert [group.name() for group in (world, both, gloo)] == ["nccl", "nccl", "gloo"]
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        world._get_backend(CPU)
    dist.destroy_process_group()


def _cannot_be_copied(rank: int) -> None:
    dist.init_process_group("nccl")
    stock = STOCK(0, 1)
    copies: tuple[Callable[[Any], Any], ...] = (pickle.dumps, copy.copy, copy.deepcopy)
    for attempt in copies:
        said = []
        for group in (stock, dist.group.WORLD):
            with pytest.raises(TypeError) as refused:
                attempt(group)
            said.append(str(refused.value))
        assert said[0] == said[1]
    dist.destroy_process_group()


def _serves_programs_that_make_or_derive_one(rank: int) -> None:
    class Own(dist.ProcessGroup):  # type: ignore[misc]
        def getBackendName(self) -> str:
            return "own"

    own: Any = Own(0, 1)
    assert [isinstance(own, dist.ProcessGroup), issubclass(Own, dist.ProcessGroup), type(own)] == [True, True, Own]
    assert (own.rank(), own.size(), own.name()) == (0, 1, "own")
    made, stock = (kind(dist.HashStore(), 0, 1) for kind in (dist.ProcessGroup, STOCK))
    for group in (made, stock):
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    assert [isinstance(made, STOCK), isinstance(made, dist.ProcessGroup), _size_of(made)] == [
        True,
        True,
        _size_of(stock),
    ]


def _is_put_together_of_backends(rank: int) -> None:
    torch.cuda.set_device(rank)
    kinds = dist.ProcessGroup.BackendType
    store = dist.FileStore("put_together", 2)
    for attempt in range(2):  # again, as after a failure
        prefixed = dist.PrefixStore(f"{attempt}", store)
        group: Any = dist.ProcessGroup(prefixed, rank, 2)
        gloo: Any = dist.ProcessGroupGloo(prefixed, rank, 2, timedelta(seconds=9))
        nccl: Any = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", prefixed), rank, 2, dist.ProcessGroupNCCL.Options())
        nccl.eager_connect_single_device(torch.device("cuda", rank))
        assert nccl.supports_splitting
        with pytest.raises(AttributeError, match="'ProcessGroup' object has no attribute 'no_such_name'"):
            _ = nccl.no_such_name
        group._set_default_backend(kinds.GLOO)
        group._register_backend(CPU, kinds.GLOO, gloo)
        assert (type(group), group.rank(), group.size(), group.name()) == (dist.ProcessGroup, rank, 2, "gloo")
        assert not isinstance(group, dist.ProcessGroupGloo)
        with pytest.raises(RuntimeError, match="No backend type associated with device type cuda"):
            group._get_backend(GPU)
        x, y = torch.full((3,), rank + 1.0), torch.full((3,), rank + 5.0, device="cuda")
        group.allreduce([x]).wait()
        group._register_backend(GPU, kinds.NCCL, nccl)
        assert [type(group._get_backend(each)) for each in (CPU, GPU)] == [dist.ProcessGroupGloo, dist.ProcessGroupNCCL]
        dist.all_reduce(y, group=group)
        assert (x.tolist(), y.tolist()) == ([3.0] * 3, [11.0] * 3)


def _is_asked_by_a_compiled_function(rank: int) -> None:
    dist.init_process_group("nccl")
    world: Any = dist.group.WORLD

    def answers(x: torch.Tensor, group: Any) -> tuple[torch.Tensor, str, str, bool]:
        return x * group.size() + group.rank(), group._get_backend_name(), group.group_name, group == world

    compiled = torch.compile(answers, backend="eager", fullgraph=True)
    found, *names = compiled(torch.ones(2), world)
    assert (found.tolist(), names) == ([2.0 + rank] * 2, ["nccl", world.group_name, True])
    dist.destroy_process_group()


def _size_of(group: Any) -> int | str:
    """What torch's own says: since 2.14 a group without a backend has none."""
    try:
        size: int = group.size()
    except RuntimeError as error:
        return str(error)
    return size


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize(
    "body",
    [
        _is_one_of_torchs_class,
        _has_the_backends_that_were_asked_for,
        _cannot_be_copied,
        _serves_programs_that_make_or_derive_one,
        _is_put_together_of_backends,
        _is_asked_by_a_compiled_function,
    ],
)
def test_a_group(body, isolation):
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2, isolation=isolation)
    assert dist.ProcessGroup is STOCK


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_splits_of_a_group_meet_by_their_number(isolation: str) -> None:
    """Torch names a split by the number of groups that the rank has, which differs behind a split that is not every rank's."""

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        part = dist.split_group(split_ranks=[[0, 1, 2]])
        sums = []
        for each in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]):
            group = dist.split_group(split_ranks=each)
            value = torch.tensor([float(rank)], device="cuda")
            dist.all_reduce(value, group=group)
            sums.append(value.item())
        assert sums == [[1.0, 2.0], [1.0, 4.0], [5.0, 2.0], [5.0, 4.0]][rank]
        assert (part is None) == (rank == 3)
        dist.destroy_process_group()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=4, isolation=isolation)
