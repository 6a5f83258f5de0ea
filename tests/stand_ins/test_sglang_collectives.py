"""SGLang's collectives of its own between GPUs: values, the algorithm that its Python chooses, wherever the ranks live."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.compiled_operators.sglang.collectives import (
    _ALGORITHMS,
    _GATHERED_IN_SWITCH,
    _IN_SWITCH,
    communicate_in_graphs,
    gather_in_switch,
    reduce_in_peers,
)


class CustomAllReduceV2:
    """What of SGLang's class is replaced, and reads what it is replaced by."""

    max_push_size, max_pull_size, pull_enabled = 1 << 10, 1 << 12, True

    def __init__(self, group: Any, push_blocks: int = 6, pull_blocks: int = 4) -> None:
        self.group, self.device = group, torch.device("cuda", torch.cuda.current_device())
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.config: Any = _Config(num_pull_blocks=pull_blocks, num_push_blocks=push_blocks, num_mc_blocks=2)
        self._graph_inputs = [(1, 2)]
        self._init_workspace()
        self._register_graph_inputs()

    def _init_workspace(self) -> None: ...

    def _register_graph_inputs(self) -> None: ...


class _Config(SimpleNamespace):
    def _replace(self, **changes: object) -> _Config:
        return _Config(**{**vars(self), **changes})


def _allocate(nbytes: int, device: torch.device, group: Any) -> tuple[torch.Tensor, Any]:
    return torch.empty(nbytes, dtype=torch.uint8, device=device), SimpleNamespace(multicast_ptr=1)


OWN: Any = SimpleNamespace(
    CustomAllReduceV2=CustomAllReduceV2, _allocate_symmetric_memory=_allocate, _SEMAPHORE_BYTES=128,
    all_gather_inner=lambda *_: None,
)  # fmt: skip
reduce_in_peers(OWN)
gather_in_switch(OWN)


def _collectives(rank: int, size: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    comm = CustomAllReduceV2(dist.new_group(backend="gloo"))
    assert comm._symm_tensor.numel() == 2 * size * (1 << 10) + (1 << 12) + 128 * 4  # type: ignore[attr-defined]
    assert comm._graph_inputs == []
    mine = torch.arange(6.0, device="cuda").view(2, 3) + 10 * rank
    wanted = size * torch.arange(6.0).view(2, 3) + 10 * sum(range(size))
    module = OWN.get_all_reduce_module(torch.float32, size)
    for name in ("1shot_push", "2shot_push", "1shot_pull", "2shot_pull"):
        found = OWN.custom_all_reduce(comm.obj, mine, SimpleNamespace(algo_name=name))  # type: ignore[attr-defined]
        assert torch.equal(found.cpu(), wanted)
        assert torch.equal(module.all_reduce(comm.obj, mine, name, None, False).cpu(), wanted)  # type: ignore[attr-defined]
    assert torch.equal(module.all_reduce(comm.obj, mine, "2shot_pull", None, True).cpu(), wanted)  # type: ignore[attr-defined]
    buffer = torch.zeros(4, 3 * size + 1, device="cuda")
    state = SimpleNamespace(comm_buff=buffer, group=dist.group.WORLD, world_size=size)
    for safe in (True, False):
        found = OWN.all_gather_inner(state, mine, 3 * size, safe=safe)
        rows = torch.cat([torch.arange(6.0).view(2, 3) + 10 * peer for peer in range(size)], 1)
        assert torch.equal(found.cpu(), rows)
    assert not buffer[2:].any()
    assert not buffer[:, -1].any()


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_values_of_the_members(isolation: Any) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_collectives, args=(4,), nprocs=4, isolation=isolation)
        log = [each for each in ctx.engine.op_log.operations if each.rank == 0]
    posted = [str((each.detail or {}).get("algorithm")) for each in log]
    own = [each for each in posted if each in {*_ALGORITHMS.values(), _IN_SWITCH, _GATHERED_IN_SWITCH}]
    assert own == [*(each for each in _ALGORITHMS.values() for _ in "12"), _IN_SWITCH, *[_GATHERED_IN_SWITCH] * 2]


def _timed(rank: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    group = dist.new_group(backend="gloo")
    comm, narrow = CustomAllReduceV2(group, 132, 64), CustomAllReduceV2(group, 36, 36)
    mine = torch.empty(1 << 23, dtype=torch.bfloat16, device="cuda")
    for each, name in ((comm, "1shot_push"), (comm, "1shot_pull"), (narrow, "1shot_push")):
        OWN.custom_all_reduce(each.obj, mine, SimpleNamespace(algo_name=name))  # type: ignore[attr-defined]
    dist.all_reduce(mine)


def test_many_blocks_fill_the_links() -> None:
    """16 MiB between two GPUs of Hopper: SGLang's tables, which were tuned there, take what pushes in one step, not NCCL's."""
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(_timed, nprocs=2)
        log = [each for each in ctx.engine.op_log.operations if each.rank == 0 and each.kind == "collective"]
    took = [each.end - each.start for each in log if each.end - each.start > 2e-5]
    push, pull, narrow, library = took
    assert push < pull < library < narrow
    assert push > (1 << 24) / 450e9


class PyNcclCommunicator:
    """What of SGLang's class is replaced where NCCL's library is not there."""

    all_reduce: Any
    outplace_all_reduce: Any
    all_gather: Any
    reduce_scatter: Any
    broadcast: Any

    def __init__(self, group: Any, device: Any) -> None:
        self.world_size, self.available, self.disabled = dist.get_world_size(group), False, True


communicate_in_graphs(SimpleNamespace(PyNcclCommunicator=PyNcclCommunicator))  # type: ignore[arg-type]


def _by_library(rank: int, captured: bool) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    comm = PyNcclCommunicator(dist.new_group(backend="gloo"), rank)
    assert comm.available
    mine = torch.arange(4.0, device="cuda") + 10 * rank
    assert comm.outplace_all_reduce(mine) is None  # it is off
    comm.disabled = False
    summed, gathered, part = mine.clone(), torch.empty(2, 4, device="cuda"), torch.empty(2, device="cuda")

    def step() -> torch.Tensor:
        comm.all_reduce(summed)
        comm.all_gather(gathered, mine)
        comm.reduce_scatter(part, mine, sizes=[2, 2])
        found: torch.Tensor = comm.outplace_all_reduce(mine)
        return found

    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
        mine += 1
        summed.copy_(mine)
        graph.replay()
        for each in (mine, found, summed, gathered, part):
            each -= 1 if each is mine or each is gathered else 2
    else:
        found = step()
    assert mine.tolist() == [10 * rank + at for at in range(4)]
    assert found.tolist() == summed.tolist() == [10, 12, 14, 16]
    assert gathered.tolist() == [[0, 1, 2, 3], [10, 11, 12, 13]]
    assert part.tolist() == [[10, 12], [14, 16]][rank]
    for refused, words in (
        (lambda: comm.broadcast(mine, 0), "broadcast by NCCL's library"),
        (lambda: comm.all_gather(gathered, mine, sizes=[3, 5]), "several sizes"),
        (lambda: comm.all_reduce(mine, dist.ReduceOp.MAX), "adds up"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            refused()


@pytest.mark.parametrize("captured", [True, False])
def test_its_own_calls_of_nccls_library(captured: bool) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_by_library, args=(captured,), nprocs=2)
