"""Looking drains: each entry point of the closed registry, and nothing else."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import kernbench
from kernbench.runtime_api.tensor import _HOST_READ_BARRIERS

LOOKS = {
    "numpy": lambda x: x.numpy().tolist(),
    "data": lambda x: x.data.as_subclass(torch.Tensor).tolist(),
    "item": lambda x: [x[0].item()] * 4,
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu().as_subclass(torch.Tensor).tolist(),
    "is_nonzero": lambda x: [2.0] * 4 if (x.sum() - 8.0).eq(0).is_nonzero() else None,
    "equal": lambda x: [2.0] * 4 if x.equal(torch.full((4,), 2.0)) else None,
    "allclose": lambda x: [2.0] * 4 if torch.allclose(x, torch.full((4,), 2.0)) else None,
    "storage": lambda x: list(x.storage()),
    "untyped_storage": lambda x: np.frombuffer(bytes(x.untyped_storage()), dtype=np.float32).tolist(),
    "__getitem__": lambda x: [x[i].as_subclass(torch.Tensor).tolist() for i in range(4)],
    "__repr__": lambda x: [2.0] * 4 if "[2., 2., 2., 2.]" in repr(x) else repr(x),
    "__str__": lambda x: [2.0] * 4 if "[2., 2., 2., 2.]" in str(x) else str(x),
    "__format__": lambda x: [float(f"{x[0]:.1f}")] * 4,
    "__bool__": lambda x: [2.0] * 4 if bool(x[0] == 2.0) else None,
    "__float__": lambda x: [float(x[0])] * 4,
    "__int__": lambda x: [float(int(x[0]))] * 4,
    "__index__": lambda x: [float([0, 1, 2][x.to(torch.int64)[0]])] * 4,
    "__complex__": lambda x: [complex(x[0]).real] * 4,
    "__array__": lambda x: np.asarray(x).tolist(),
    "__iter__": lambda x: [float(each) for each in x],
    "__contains__": lambda x: [2.0] * 4 if 2.0 in x else None,
    "__dlpack__": lambda x: torch.from_dlpack(x).tolist(),
    "__reduce_ex__": lambda x: pickle.loads(pickle.dumps(x)).tolist(),
    "__deepcopy__": lambda x: copy.deepcopy(x).tolist(),
}


def _double(program, x):
    x.mul_(2)


def test_the_registry_is_closed():
    """Every entry point is looked at below, and torch has no way to a value that is not in it."""
    assert set(LOOKS) == set(_HOST_READ_BARRIERS)
    to_python = {
        "item",
        "tolist",
        "numpy",
        "cpu",
        "storage",
        "untyped_storage",
        "data",
        "is_nonzero",
        "equal",
        "allclose",
    }
    dunders = {
        "__getitem__", "__repr__", "__format__", "__bool__", "__float__", "__int__", "__index__", "__complex__",
        "__array__", "__iter__", "__contains__", "__dlpack__", "__reduce_ex__", "__deepcopy__",
    }  # fmt: skip
    offered = {name for name in to_python | dunders if hasattr(torch.Tensor, name)}
    assert offered <= set(_HOST_READ_BARRIERS)
    conversions = {name for name in vars(torch._C.TensorBase) if name.startswith("__") and name.strip("_") in (
        "bool", "float", "int", "index", "complex", "long", "nonzero", "getitem", "contains", "array", "dlpack")}  # fmt: skip
    assert conversions - {"__long__", "__nonzero__"} <= set(_HOST_READ_BARRIERS)


@pytest.mark.parametrize("name", _HOST_READ_BARRIERS)
def test_each_entry_point_drains_what_the_value_depends_on(ctx, name):
    x = ctx.ones(4)
    handle = ctx.launch(_double, 1, x)
    assert not handle.done
    assert LOOKS[name](x) == [2.0] * 4
    assert handle.done


@pytest.mark.parametrize("name", ["numpy", "tolist", "__getitem__", "__repr__"])
@pytest.mark.parametrize("isolation", ["greenlet", "carrier"])
def test_in_ranks_too(ctx, name, isolation):
    def worker(rank):
        x = ctx.ones(4)
        ctx.launch(_double, 1, x)
        assert LOOKS[name](x) == [2.0] * 4

    ctx.multiprocessing.spawn(worker, nprocs=3, isolation=isolation)


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.shape, lambda x: x.dtype, lambda x: x.device, lambda x: x.stride(), lambda x: len(x), lambda x: x.numel(),
        lambda x: x.view(2, 2), lambda x: x.t(), lambda x: x.detach(), lambda x: x.data_ptr(), lambda x: x.requires_grad,
        lambda x: x.is_contiguous(), lambda x: x.grad, lambda x: hash(x),
    ],
)  # fmt: skip
def test_metadata_and_views_do_not_drain(ctx, look):
    x = ctx.ones(4)
    handle = ctx.launch(_double, 1, x)
    look(x)
    assert not handle.done


def test_an_operation_that_depends_on_a_launch_sees_its_result(ctx):
    x = ctx.ones(4)
    ctx.launch(_double, 1, x)
    assert (x + 1).tolist() == [3.0] * 4
    ctx.launch(_double, 1, x)
    assert x.view(2, 2).t().reshape(4).type_as(torch.ones(1, dtype=torch.int64)).tolist() == [4] * 4


def test_a_pending_collective_is_no_reason_to_drain(ctx):
    """Rank 0 looks at the tensor of a collective that rank 1 joins only after rank 0 has gone on (ADR 0004)."""
    seen = []

    def worker(rank):
        x = ctx.ones(4)
        if rank == 0:
            work = ctx.distributed.all_reduce(x, async_op=True)
            seen.append(x.tolist())
            ctx.distributed.barrier(groups)
            work.wait()
        else:
            ctx.distributed.barrier(groups)
            ctx.distributed.all_reduce(x)
        seen.append(x.tolist())

    groups = None

    def with_group(rank):
        nonlocal groups
        groups = ctx.distributed.new_group([0, 1])
        worker(rank)

    ctx.multiprocessing.spawn(with_group, nprocs=2)
    assert seen == [[1.0] * 4, [2.0] * 4, [2.0] * 4]


def test_copy_drains_its_source_only(ctx):
    """A barrier on the target would wait for a collective that this rank has yet to join (ADR 0005)."""
    x, y = ctx.ones(4), ctx.zeros(4)
    source = ctx.launch(_double, 1, x)
    y.copy_(x)
    assert source.done
    assert y.tolist() == [2.0] * 4

    def worker(rank):
        target = ctx.zeros(4)
        if rank == 0:
            work = ctx.distributed.all_reduce(target, async_op=True)
            ctx.zeros(4).copy_(target)  # kernbench: ordered: what it gets does not matter, only that it does not wait
            target.copy_(ctx.ones(4))  # kernbench: ordered: nobody looks at it
            work.wait()
        else:
            ctx.distributed.all_reduce(target)

    ctx.multiprocessing.spawn(worker, nprocs=2)


def test_plain_tensors_of_a_launch_are_final_when_it_returns(ctx):
    x = torch.ones(4)
    ctx.launch(_double, 1, x)
    assert x.tolist() == [2.0] * 4


def test_a_look_costs_the_copy(ctx):
    x = ctx.ones(1 << 20)
    handle = ctx.launch(_double, 1, x)
    ctx.wait(handle)
    before = ctx.now()
    x.numpy()
    launch, link = ctx.topology.device.launch, ctx.topology.device.host_link
    route = ctx.topology.host_route(0, "d2h")
    assert ctx.now() - before == pytest.approx(
        launch.overhead + launch.latency + route.latency + x.nbytes / (route.bandwidth * link.pageable)
    )
    assert route.latency >= link.latency


def test_an_unread_failure_surfaces_at_a_look(ctx):
    def fail(program, x):
        raise ValueError("kernel failed")

    x = ctx.ones(4)
    ctx.launch(fail, 1, x)
    ctx.launch(_double, 1, x)
    with pytest.raises(ValueError, match="kernel failed"):
        x.tolist()


def test_fresh_memory_is_poisoned(ctx):
    assert ctx.empty(3).isnan().all()
    assert torch.empty_like(ctx.ones(3)).isnan().all()
    assert ctx.ones(3).new_empty(2).isnan().all()
    assert ctx.empty(2, dtype="int32").tolist() == [2**31 - 1] * 2
    assert ctx.zeros(3).tolist() == [0.0] * 3


def test_without_data_looks_at_what_is_unknown_say_what_to_do():
    with kernbench.simulate(enable_data=False, unknown="error") as ctx:
        x = ctx.ones(64, 64)
        assert x[1:, :2].shape == (63, 2)
        assert (x @ x).shape == (64, 64)
        for look in (torch.Tensor.tolist, torch.Tensor.numpy, lambda x: x[0, 0].item(), lambda x: bool(x[0, 0])):
            with pytest.raises(kernbench.KernbenchError, match="enable_data=False"):
                look(x)
        assert ctx.ones(4).tolist() == [1.0] * 4
