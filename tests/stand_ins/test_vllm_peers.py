"""vLLM's collectives of its own between GPUs: values, algorithms by size, and the same time wherever the ranks live."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.compiled_operators.operators import Operators
from kernbench.compiled_operators.vllm import stable

# as vLLM 0.33.0's wheel has them in its library
SCHEMAS = """
meta_size() -> int
init_custom_ar(int[] ipc_tensors, Tensor rank_data, int rank, bool fully_connected) -> int
all_reduce(int fa, Tensor inp, Tensor! out, int reg_buffer, int reg_buffer_sz_bytes) -> ()
custom_all_gather(int fa, Tensor inp, Tensor! out, int reg_buffer, int reg_buffer_sz_bytes) -> ()
custom_reduce_scatter(int fa, Tensor inp, Tensor! out, int reg_buffer, int reg_buffer_sz_bytes) -> ()
register_buffer(int fa, int[] ipc_tensors) -> ()
dispose(int fa) -> ()
get_graph_buffer_ipc_meta(int fa) -> (int[], int[])
register_graph_buffers(int fa, int[][] handles, int[][] offsets) -> ()
allocate_shared_buffer_and_handle(int size) -> (int, Tensor)
open_mem_handle(Tensor mem_handle) -> int
free_shared_buffer(int ptr) -> ()
"""

BUFFER = 1 << 20
"""Bytes of a rank's buffer."""


@pytest.fixture(scope="module", autouse=True)
def _defined() -> None:
    """The operators of the shipped stand-in under a namespace of their own, as the wheel is not here."""
    operators = Operators("kernbench_test_peers", schemas=SCHEMAS.strip().splitlines())
    operators.programs = stable.operators.programs
    operators.define("vllm 0.33.0")


class _Custom:
    """One rank's communicator, made as vLLM's Python makes it."""

    def __init__(self, rank: int, size: int) -> None:
        self.ops: Any = torch.ops.kernbench_test_peers
        self.buffers = [self._shared(rank, size, nbytes) for nbytes in (self.ops.meta_size() + BUFFER, BUFFER)]
        self.rank, self.table = rank, torch.empty(1 << 10, dtype=torch.uint8, device="cuda")
        self.number = self.ops.init_custom_ar(self.buffers[0], self.table, rank, True)
        self.ops.register_buffer(self.number, self.buffers[1])

    def _shared(self, rank: int, size: int, nbytes: int) -> list[int]:
        pointer, handle = self.ops.allocate_shared_buffer_and_handle(nbytes)
        handles = [torch.empty_like(handle) for _ in range(size)]
        dist.all_gather(handles, handle)
        return [pointer if at == rank else self.ops.open_mem_handle(each) for at, each in enumerate(handles)]

    def __call__(self, name: str, inp: torch.Tensor, out: torch.Tensor, *, registered: bool = False) -> torch.Tensor:
        buffer = (0, 0) if registered else (self.buffers[1][self.rank], BUFFER)
        getattr(self.ops, name)(self.number, inp, out, *buffer)
        return out

    def close(self) -> None:
        self.ops.dispose(self.number)
        for each in self.buffers:
            self.ops.free_shared_buffer(each[self.rank])


def _collectives(rank: int, size: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    custom = _Custom(rank, size)
    with torch.inference_mode():
        mine = torch.arange(8.0, device="cuda") + 10 * rank
        for registered in (True, False):
            summed = custom("all_reduce", mine, torch.empty_like(mine), registered=registered)
            expected = size * torch.arange(8.0) + 10 * sum(range(size))
            assert torch.equal(summed.cpu(), expected)
        gathered = custom("custom_all_gather", mine, torch.empty(8 * size, device="cuda"))
        assert torch.equal(gathered.cpu(), torch.cat([torch.arange(8.0) + 10 * each for each in range(size)]))
        part = custom("custom_reduce_scatter", mine, torch.empty(8 // size, device="cuda"))
        assert torch.equal(part.cpu(), expected.chunk(size)[rank])
        with pytest.raises(RuntimeError, match="1048576 bytes, and the input 2097152"):
            custom("all_reduce", torch.empty(1 << 19, device="cuda"), torch.empty(1 << 19, device="cuda"))
    held = torch.cuda.memory_allocated()
    custom.close()
    assert held - torch.cuda.memory_allocated() >= 2 * BUFFER


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize("size", [2, 4])
def test_values(size: int, isolation: str) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_collectives, args=(size,), nprocs=size, isolation=isolation)


def _timed(rank: int, size: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    custom = _Custom(rank, size)
    for numel in (1 << 10, 1 << 18):
        x = torch.ones(numel, device="cuda")
        for registered in (True, False):
            custom("all_reduce", x, torch.empty_like(x), registered=registered)
    torch.cuda.synchronize()


def _operations(size: int, isolation: str, *, data: bool) -> list[tuple[str, float, float]]:
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(_timed, args=(size,), nprocs=size, isolation=isolation)
        log = ctx.engine.op_log.operations
        return [(str((each.detail or {}).get("algorithm")), each.start, each.end) for each in log if each.rank == 0]


@pytest.mark.parametrize("size", [2, 4])
def test_algorithm_and_time(size: int) -> None:
    """One step between two, two steps beyond half a MiB between four; the same wherever ranks are, with data or without."""
    found = _operations(size, "carrier", data=True)
    for isolation, data in (("carrier", False), ("process", True), ("process", False)):
        assert _operations(size, isolation, data=data) == found
    direct = [each for each in found if each[0].endswith("_pull")]
    longer = "one_shot_pull" if size == 2 else "two_shot_pull"
    assert [name for name, *_ in direct] == ["one_shot_pull", "one_shot_pull", longer, longer]


def test_outside_ranks() -> None:
    with pytest.raises(kernbench.KernbenchError, match="are for ranks"):
        torch.ops.kernbench_test_peers.allocate_shared_buffer_and_handle(16)


def test_peers_of_other_nodes() -> None:
    def far(rank: int) -> None:
        torch.ops.kernbench_test_peers.init_custom_ar([1234, 1234], torch.empty(8, device="cuda"), rank, False)

    with kernbench.simulate("dgx_h100") as ctx, pytest.raises(kernbench.SpawnException, match="several nodes"):
        ctx.multiprocessing.spawn(far, nprocs=2)
