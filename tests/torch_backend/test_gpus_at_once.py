"""A program that uses several GPUs itself: each operation is on the GPU of its tensors, on the stream that is current there."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench

SIZE = 1024


class Matrices:
    """A matrix on each of two GPUs, with a stream beside the default one."""

    def __init__(self) -> None:
        self.a, self.b = (torch.ones(SIZE, SIZE, device=f"cuda:{number}") for number in range(2))
        self.beside = [torch.cuda.Stream(number) for number in range(2)]

    def on_one(self) -> None:
        self.a @ self.a
        self.a @ self.a

    def on_both(self) -> None:
        self.a @ self.a
        self.b @ self.b

    def on_streams_of_both(self) -> None:
        with torch.cuda.stream(self.beside[0]):
            self.a @ self.a
        with torch.cuda.stream(self.beside[1]):
            self.b @ self.b

    def in_threads(self) -> None:
        both = [threading.Thread(target=torch.mm, args=(each, each)) for each in (self.a, self.b)]
        for each in both:
            each.start()
        for each in both:
            each.join()

    def custom(self) -> None:
        twice(self.a)
        twice(self.b)

    def backward(self) -> None:
        leaves = [each.detach().requires_grad_() for each in (self.a, self.b)]
        products = [leaf @ leaf for leaf in leaves]
        torch.autograd.backward(products, [torch.ones_like(each) for each in products])

    def ordered_by_event(self) -> None:
        self.a @ self.a
        done = torch.cuda.current_stream(0).record_event()
        torch.cuda.current_stream(1).wait_event(done)
        self.b @ self.b

    def ordered_by_copy(self) -> None:
        (self.a @ self.a).to("cuda:1") @ self.b

    def ordered_by_host(self) -> None:
        (self.a @ self.a).sum().item()
        self.b @ self.b


@torch.library.custom_op("several_gpus::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x @ x + x


def products(what: Callable[[Matrices], None], *, data: bool = True) -> list[tuple[int, float, float]]:
    """The GPU, the start and the end of each product, and of whatever stands for one."""
    with kernbench.simulate(system="dgx_h100", enable_data=data) as ctx:

        def body(rank: int) -> None:
            what(Matrices())
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)

        ctx.multiprocessing.spawn(body, nprocs=1)
        found = [op for op in ctx.engine.op_log.records() if op.name.partition(".")[0] in ("mm", "several_gpus::twice")]
        return [(op.sip, op.start, op.end) for op in found if op.start is not None and op.end is not None]


def overlap(found: list[tuple[int, float, float]]) -> bool:
    (_, start, end), (_, start_2, end_2) = found[0], found[-1]
    return start < end_2 and start_2 < end


@pytest.mark.parametrize("data", [True, False], ids=["data", "no data"])
@pytest.mark.parametrize("name", ["on_both", "on_streams_of_both", "in_threads", "backward"])
def test_two_gpus_compute_at_once(name: str, data: bool) -> None:
    found = products(getattr(Matrices, name), data=data)
    assert [sip for sip, _, _ in found[:2]] == [0, 1]
    assert overlap(found[:2])
    assert {sip for sip, _, _ in found} == {0, 1}


def test_an_operation_of_the_program_is_where_its_tensors_are() -> None:
    assert [sip for sip, _, _ in products(Matrices.custom)] == [0, 1]


def test_one_gpu_does_not() -> None:
    found = products(Matrices.on_one)
    assert [sip for sip, _, _ in found] == [0, 0]
    assert not overlap(found)


@pytest.mark.parametrize("data", [True, False], ids=["data", "no data"])
@pytest.mark.parametrize("name", ["ordered_by_event", "ordered_by_copy", "ordered_by_host"])
def test_they_wait_for_each_other(name: str, data: bool) -> None:
    found = products(getattr(Matrices, name), data=data)
    assert [sip for sip, _, _ in found] == [0, 1]
    assert not overlap(found)


def test_each_gpu_has_a_current_stream() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        beside = [torch.cuda.Stream(number) for number in range(2)]

        def current() -> tuple[Any, ...]:
            return (torch.cuda.current_device(), torch.cuda.current_stream(0), torch.cuda.current_stream(1))

        defaults = (0, torch.cuda.default_stream(0), torch.cuda.default_stream(1))
        assert current() == defaults
        assert defaults[1].cuda_stream == defaults[2].cuda_stream == 0
        with torch.cuda.stream(beside[1]):
            assert current() == (1, defaults[1], beside[1])
            with torch.cuda.device(0):
                assert torch.cuda.current_stream() == defaults[1]
                with torch.cuda.stream(beside[0]):
                    assert current() == (0, beside[0], beside[1])
                assert current() == (0, defaults[1], beside[1])
            assert current() == (1, defaults[1], beside[1])
        assert current() == defaults
        torch.cuda.set_stream(beside[1])
        torch.cuda.set_device(0)
        assert current() == (0, defaults[1], beside[1])
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        assert seen == [defaults]


def test_the_host_waits_for_the_gpu_that_it_names() -> None:
    with kernbench.simulated_gpu("dgx_h100") as ctx:
        matrices = Matrices()
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        matrices.on_one()
        begin = ctx.now()
        torch.cuda.synchronize(1)
        assert ctx.now() - begin < 1e-6
        assert not torch.cuda.current_stream(0).query()
        torch.cuda.synchronize(0)
        assert torch.cuda.current_stream(0).query()


def test_memory_is_of_the_stream_that_is_current_where_it_is() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        stream = torch.cuda.Stream(1)
        with torch.cuda.stream(stream), torch.cuda.device(0):
            torch.empty(1 << 20, device="cuda:1")
        (segment,) = (each for each in torch.cuda.memory_snapshot() if each["device"] == 1)
        assert segment["stream"] == stream.cuda_stream


@pytest.mark.parametrize("make", [torch.ones, torch.empty, torch.randn, torch.full], ids=lambda make: make.__name__)
def test_what_is_made_on_a_gpu_is_made_there(make: Any) -> None:
    args = ((4,), 1.0) if make is torch.full else (4,)
    with kernbench.simulate(system="dgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda rank: make(*args, device="cuda:1"), nprocs=1)
        assert {op.sip for op in ctx.engine.op_log.records()} <= {1}


@pytest.mark.parametrize("waits", [True, False])
def test_races_between_gpus(waits: bool) -> None:
    """Memory of one GPU that is written on another one's stream."""

    def body(rank: int) -> None:
        x = torch.ones(SIZE, device="cuda:0")
        torch.cuda.synchronize(0)
        with torch.cuda.stream(torch.cuda.Stream(0)):
            x.add_(1)
            done = torch.cuda.current_stream().record_event()
        if waits:
            torch.cuda.current_stream(0).wait_event(done)
        x.to("cuda:1")

    with kernbench.simulate(system="dgx_h100", races="error") as ctx:
        if waits:
            ctx.multiprocessing.spawn(body, nprocs=1)
        else:
            with pytest.raises(Exception, match="race: read after write"):
                ctx.multiprocessing.spawn(body, nprocs=1)


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize("name", ["all_reduce", "send"])
def test_communication_is_on_the_gpu_of_its_tensors(name: str, isolation: Any) -> None:
    """In order with the stream that is current there."""

    def body(rank: int) -> None:
        dist.init_process_group("nccl", rank=rank, world_size=2)
        torch.cuda.set_device(2 * rank)
        x = torch.ones(SIZE, SIZE, device=f"cuda:{2 * rank + 1}")
        y = x @ x
        if name == "all_reduce":
            dist.all_reduce(y)
        else:
            (dist.recv if rank else dist.send)(y, 1 - rank)
        y @ y
        torch.cuda.synchronize(2 * rank + 1)

    with kernbench.simulate(system="dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2, isolation=isolation)
        for rank in range(2):
            found = [op for op in ctx.engine.op_log.records() if op.rank == rank and op.sip == 2 * rank + 1]
            wanted = [op for op in found if op.name.partition(".")[0] in ("mm", "all_reduce", "send", "recv")]
            ends = [(op.start or 0.0, op.end or 0.0) for op in wanted]
            assert len(ends) == 3
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends)), ends
