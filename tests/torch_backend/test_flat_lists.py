"""NCCL's all_gather and reduce_scatter of lists go through one flat tensor: its memory, its copies, and what futures show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench

WORLD = 2
SIZE = 1 << 20
MIB = 1 << 20


def run(program: Callable[[int], Any], **options: Any) -> tuple[dict[int, Any], Any]:
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        found[rank] = program(rank)
        dist.destroy_process_group()

    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=WORLD)
        return found, sorted(ctx.engine.op_log.operations, key=lambda op: (op.start, op.end))


def parts(size: int = SIZE) -> list[torch.Tensor]:
    return [torch.zeros(size, device="cuda") for _ in range(WORLD)]


def peak_and_after(call: Callable[[], object]) -> tuple[float, float]:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    peak = torch.cuda.max_memory_allocated() - before
    del kept
    return peak / MIB, (torch.cuda.memory_allocated() - before) / MIB


@pytest.mark.parametrize("data", [True, False])
def test_the_flat_tensor_takes_memory_while_it_is_needed(data: bool) -> None:
    def program(rank: int) -> list[tuple[float, float]]:
        whole, own, out = parts(), torch.zeros(SIZE, device="cuda"), torch.zeros(WORLD * SIZE, device="cuda")
        uneven = [torch.zeros(SIZE + each, device="cuda") for each in range(WORLD)]
        dist.all_reduce(own)
        return [
            peak_and_after(lambda: dist.all_gather(whole, own)),
            peak_and_after(lambda: dist.all_gather(whole, own, async_op=True)),
            peak_and_after(lambda: dist.reduce_scatter(own, whole)),
            peak_and_after(lambda: dist.all_gather_into_tensor(out, own)),
            peak_and_after(lambda: dist.all_gather(uneven, uneven[rank])),
        ]

    flat = WORLD * SIZE * 4 / MIB
    found, _ = run(program, enable_data=data)
    assert all(each == [(flat, 0), (flat, 0), (flat, 0), (0, 0), (0, 0)] for each in found.values())


def test_works_keep_it_as_long_as_torchs() -> None:
    def program(rank: int) -> list[float]:
        whole, own = parts(), torch.zeros(SIZE, device="cuda")
        before = torch.cuda.memory_allocated()
        kept = []
        for work in (dist.all_gather(whole, own, async_op=True), dist.reduce_scatter(own, whole, async_op=True)):
            work.wait()
            kept.append((torch.cuda.memory_allocated() - before) / MIB)
        del work
        return kept

    found, _ = run(program)  # results of the first are in it: they are the work's; parts of the second are let go
    assert found[0] == [2 * WORLD * SIZE * 4 / MIB, WORLD * SIZE * 4 / MIB]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_copies_are_on_the_collectives_stream(asynchronous: bool) -> None:
    def program(rank: int) -> None:
        whole, own = parts(), torch.ones(SIZE, device="cuda")
        works = [
            dist.reduce_scatter(own, whole, async_op=asynchronous), dist.all_gather(whole, own, async_op=asynchronous),
        ]  # fmt: skip
        for work in works:
            if work is not None:
                work.wait()
        own.add_(1)

    _, operations = run(program)
    mine = [op for op in operations if op.rank == 0]
    by_name = {op.name: op for op in mine}
    names = [op.name for op in mine if op.stream == next(each.stream for each in mine if each.kind == "collective")]
    assert names == ["aten::copy_", "reduce_scatter", "all_gather", "aten::copy_"]
    copies = [op for op in mine if op.name == "aten::copy_"]
    scattered, gathered, last = (
        by_name["reduce_scatter"],
        by_name["all_gather"],
        next(op for op in mine if "add_" in op.name),
    )
    assert copies[0].end <= scattered.start < scattered.end <= gathered.start < gathered.end <= copies[1].start
    assert copies[1].end <= last.start
    assert copies[1].nbytes == 2 * WORLD * SIZE * 4  # each part is read and written


def test_a_future_shows_the_flat_tensor() -> None:
    def program(rank: int) -> Any:
        work = dist.all_gather(parts(3), torch.full((3,), rank + 1.0, device="cuda"), async_op=True)
        future = work.get_future()
        own = dist.reduce(torch.ones(2, device="cuda"), 0, async_op=True).get_future()
        own.wait()
        (flat,), (reduced,) = future.wait(), own.value()
        return flat.tolist(), flat.device.index, reduced.shape

    found, _ = run(program)
    values = [[1.0] * 3, [2.0] * 3]
    assert found == {0: (values, 0, (2,)), 1: (values, 1, (2,))}


def test_quantized_gradients() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_pertensor_hook

    def program(rank: int) -> torch.Tensor:
        model = torch.nn.Linear(8, 8, bias=False).cuda()
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        wrapped.register_comm_hook(dist.group.WORLD, quantization_pertensor_hook)
        wrapped(torch.full((2, 8), rank + 1.0, device="cuda")).sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad.cpu()

    found, _ = run(program)
    assert torch.allclose(found[0], torch.full((8, 8), 3.0), atol=0.1)


def test_autograd_sees_what_the_copies_write() -> None:
    def program(rank: int) -> Any:
        whole, own = parts(2), torch.ones(2, device="cuda")
        saved = torch.ones(2, device="cuda", requires_grad=True) * whole[0]
        versions = [part._version for part in whole]
        dist.all_gather(whole, own)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.sum().backward()
        out = torch.zeros(2 * WORLD, device="cuda")
        dist.all_gather_into_tensor(out, own)  # NCCL writes memory past autograd
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            dist.all_gather([part.requires_grad_() for part in parts(2)], own)
        with torch.no_grad():
            dist.all_gather([part.requires_grad_() for part in parts(2)], own)
        return [part._version - before for part, before in zip(whole, versions, strict=True)], out._version

    found, _ = run(program)
    assert found[0] == ([1, 1], 0)


def test_a_captured_call_copies_at_each_replay() -> None:
    def program(rank: int) -> Any:
        whole, own = parts(4), torch.full((4,), rank + 1.0, device="cuda")
        dist.all_gather(whole, own)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_gather(whole, own)
            total = whole[0] + whole[1]
        own.fill_(rank + 5.0)
        graph.replay()
        return total.tolist()

    found, operations = run(program)
    assert found == {rank: [11.0] * 4 for rank in range(WORLD)}
    mine = [op for op in operations if op.rank == 0 and op.name == "aten::copy_"]
    last = next(op for op in reversed(operations) if op.rank == 0 and "add" in op.name)
    assert len(mine) == 2
    assert mine[-1].end <= last.start
