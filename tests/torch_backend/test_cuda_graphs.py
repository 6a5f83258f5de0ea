"""CUDA graphs of simulated GPUs: captured once, replayed as one launch, with the values that the inputs have then."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import kernbench
from kernbench.topology.system import HostSpec


@pytest.fixture
def run() -> Callable[..., list[Any]]:
    """``run(body, ranks)``: what ``body()`` returns in each rank of a DGX H100."""

    def on_gpus(body: Callable[[], Any], ranks: int = 1, **options: Any) -> list[Any]:
        results: list[Any] = [None] * ranks

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            results[rank] = body()
            dist.destroy_process_group()

        with kernbench.simulate("dgx_h100", world_size=ranks, seed=1, **options) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=ranks)
        return results

    return on_gpus


def host_seconds(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


@pytest.mark.parametrize(("system", "least"), [("dgx_a100", 2e-6), ("dgx_h100", 1.2e-6)])
def test_small_kernels_of_a_graph_take_what_they_are_measured_to(system: str, least: float) -> None:
    """The least median of fp16 additions in Vidur's table, whole microseconds: 2 on A100. From one of the smallest kernels to
    the next 1.2 on an H100 (kernbench/validation/data/h100_kernels.json)."""
    took: list[float] = []

    def worker(rank: int) -> None:
        x = torch.zeros(4096, device="cuda", dtype=torch.half)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(100):
                x += x
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) * 1e-3)

    with kernbench.simulate(system, enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert least < took[0] / 100 < 2 * least


def test_a_replay_computes_anew_and_costs_the_launch_of_a_graph(run: Callable[..., list[Any]]) -> None:
    def body() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16)).cuda().eval()

        def step(x: torch.Tensor) -> torch.Tensor:
            y = model(x)
            dist.all_reduce(y)
            return y.add_(x)

        x = torch.zeros(4, 16, device="cuda")
        with torch.no_grad():
            step(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                assert torch.cuda.is_current_stream_capturing()
                result = step(x)
            where = result.data_ptr()
            for _ in range(2):
                x.copy_(torch.randn(4, 16, device="cuda"))
                graph.replay()
                assert torch.equal(result, step(x))
            assert result.data_ptr() == where
            return host_seconds(graph.replay), host_seconds(lambda: step(x))

    for replay, eager in run(body, 2):
        assert HostSpec().graph < replay < HostSpec().graph + 20 * HostSpec().node
        assert eager > replay


def test_kernels_and_streams_of_a_capture(run: Callable[..., list[Any]]) -> None:
    triton = pytest.importorskip("triton", reason="kernels need Triton, which exists for Linux only")
    tl = triton.language

    @triton.jit
    def add(x, number, n: tl.constexpr):
        at = tl.arange(0, n)
        tl.store(x + at, tl.load(x + at) + tl.load(number))  # which the program does not look at

    globals()["tl"] = tl

    def body() -> Any:
        x, y = torch.zeros(16, device="cuda"), torch.zeros(16, device="cuda")
        one = torch.ones(1, dtype=torch.int32, device="cuda")
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            add[(1,)](x, one, 16)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y.copy_(x * 10)
            torch.cuda.current_stream().wait_stream(side)
            z = x + y
        x.zero_()
        for _ in range(3):
            graph.replay()
        return x[0].item(), y[0].item(), z[0].item()

    assert run(body) == [(3.0, 30.0, 33.0)]


@pytest.mark.parametrize(
    ("fork", "join", "words"),
    [
        (True, False, "capturing stream has unjoined work(.|\n)*has not waited for stream"),
        (False, True, "operation failed due to a previous error during capture"),
        (True, True, ""),
    ],
)
@pytest.mark.parametrize("by_events", [False, True])
def test_a_stream_belongs_to_a_capture_that_it_has_waited_for_and_joins_it(
    run: Callable[..., list[Any]], fork: bool, join: bool, words: str, by_events: bool
) -> None:
    def wait(stream: Any, other: Any) -> None:
        stream.wait_event(other.record_event()) if by_events else stream.wait_stream(other)

    def body() -> Any:
        x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        try:
            with torch.cuda.graph(graph):
                first = torch.cuda.current_stream()
                if fork:
                    wait(one, first)
                with torch.cuda.stream(one):
                    y = x * 2
                wait(two, one)
                with torch.cuda.stream(two):
                    z = y + 1
                if join:
                    wait(first, two)  # and with it for the other
        except torch.AcceleratorError as error:
            context = error.__context__
            assert fork or (isinstance(context, kernbench.KernbenchError) and "on stream " in str(context))
            return str(error)
        x.fill_(5)
        graph.replay()
        return z.tolist()

    (found,) = run(body)
    assert re.search(words, found) if words else found == [11.0] * 4


@pytest.mark.parametrize("by_event", [False, True])
def test_a_capture_does_not_wait_for_work_before_it(run: Callable[..., list[Any]], by_event: bool) -> None:
    def body() -> Any:
        side, never = torch.cuda.Stream(), torch.cuda.Event()
        before = side.record_event()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.cuda.current_stream().wait_event(never)  # that has not been recorded: nothing is waited for
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                first = torch.cuda.current_stream()
                first.wait_event(before) if by_event else first.wait_stream(side)
        except torch.AcceleratorError as error:
            return error.error_code, error.__context__.error_code
        return None

    assert run(body) == [(901, 905)]


def test_random_numbers_differ_between_replays(run: Callable[..., list[Any]]) -> None:
    def body() -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x = torch.rand(64, device="cuda")
        graph.replay()
        first = x.clone()
        graph.replay()
        return torch.equal(first, x)

    assert run(body) == [False]


def test_a_graph_draws_from_the_states_that_it_was_captured_with(run: Callable[..., list[Any]]) -> None:
    def body() -> Any:
        default = torch.cuda.default_generators[0]
        default.manual_seed(3)
        own, other = default.graphsafe_get_state(), default.clone_state().manual_seed(5)
        given = torch.Generator(device="cuda").manual_seed(7)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(other)
        graph.register_generator_state(given)
        x, y, w, z = (torch.empty(4, device="cuda") for _ in range(4))
        with torch.cuda.graph(graph):
            x.uniform_()
            default.graphsafe_set_state(other)
            y.uniform_()
            w.uniform_(generator=default)
            z.uniform_(generator=given)
            default.graphsafe_set_state(own)
        drawn = []
        for _ in range(2):
            graph.replay()
            drawn += [x.clone(), y.clone(), w.clone(), z.clone()]
        host = {seed: torch.Generator().manual_seed(seed) for seed in (3, 5, 7)}
        wanted = [torch.rand(4, generator=host[seed]) for _ in range(2) for seed in (3, 5, 5, 7)]
        return [torch.equal(a.cpu(), b) for a, b in zip(drawn, wanted, strict=True)]

    assert run(body) == [[True] * 8]


def test_what_is_computed_again_in_a_graph_draws_again(run: Callable[..., list[Any]]) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * torch.randn(1, device="cuda")

    def body() -> Any:
        one = torch.ones(1, device="cuda", requires_grad=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = checkpoint(noisy, one, use_reentrant=False)
            (grad,) = torch.autograd.grad(out, one)
        drawn = []
        for _ in range(2):
            graph.replay()
            drawn.append((out.item(), grad.item()))
        return [out == grad for out, grad in drawn], drawn[0] != drawn[1]

    assert run(body) == [([True, True], True)]


def test_a_state_from_outside_of_a_capture_is_not_drawn_from(run: Callable[..., list[Any]]) -> None:
    def draws_from(state: torch.Tensor) -> None:
        torch.cuda.set_rng_state(state)
        with pytest.raises(kernbench.KernbenchError, match="has read outside of this capture"):
            torch.rand(1, device="cuda")

    def body() -> None:
        state = torch.cuda.get_rng_state()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            before = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(state)
            torch.cuda.set_rng_state(before)
            torch.rand(1, device="cuda")
        with pytest.raises(torch.AcceleratorError), torch.cuda.graph(torch.cuda.CUDAGraph()):
            draws_from(state)

    run(body)


def test_modes_of_a_capture_have_names(run: Callable[..., list[Any]]) -> None:
    def body() -> None:
        with pytest.raises(RuntimeError, match="Unknown capture error mode"):
            torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="some").__enter__()

    run(body)


def test_a_graph_refuses_a_generator_that_it_does_not_know(run: Callable[..., list[Any]]) -> None:
    def body() -> None:
        generator = torch.Generator(device="cuda")
        x = torch.empty(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="register_generator_state"):
            x.uniform_(generator=generator)
        graph.replay()  # torch has said it before CUDA was called

    run(body)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda x: x.sum().item(), "operation not permitted when stream is capturing"),
        (lambda x: torch.cuda.synchronize(), "operation not permitted when stream is capturing"),
        (lambda x: torch.cuda.current_stream().query(), "operation not permitted when stream is capturing"),
    ],
    ids=["item", "synchronize", "query"],
)
def test_what_cuda_refuses_in_a_capture_is_refused(
    run: Callable[..., list[Any]], act: Callable[[torch.Tensor], Any], message: str
) -> None:
    def body() -> Any:
        x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
        with (
            pytest.raises(torch.AcceleratorError, match="previous error during capture") as failed,
            torch.cuda.graph(graph),
        ):
            act(x)
        assert failed.value.error_code == 901  # type: ignore[attr-defined]
        assert message in str(failed.value.__context__)
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()
        return x.sum().item()  # which is possible again

    assert run(body) == [4.0]


def test_the_default_stream_is_not_captured(run: Callable[..., list[Any]]) -> None:
    def body() -> Any:
        with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
            torch.cuda.CUDAGraph().capture_begin()
        return torch.cuda.is_current_stream_capturing()

    assert run(body) == [False]


def test_graphed_callables_are_trained(run: Callable[..., list[Any]]) -> None:
    def body() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).cuda()
        x = torch.randn(4, 8, device="cuda", requires_grad=True)
        model(x).pow(2).sum().backward()
        expected = [x.grad, *(each.grad for each in model.parameters())]
        x.grad = None
        model.zero_grad()
        graphed = torch.cuda.make_graphed_callables(model, (torch.randn(4, 8, device="cuda", requires_grad=True),))
        graphed(x).pow(2).sum().backward()
        for found, wanted in zip([x.grad, *(each.grad for each in model.parameters())], expected, strict=True):
            torch.testing.assert_close(found, wanted)
        return True

    assert run(body) == [True]


def test_without_data_a_replay_takes_the_same_time(run: Callable[..., list[Any]]) -> None:
    def body() -> Any:
        layer, x, graph = nn.Linear(512, 512).cuda(), torch.zeros(512, 512, device="cuda"), torch.cuda.CUDAGraph()
        with torch.no_grad():
            layer(x)  # cuBLAS has to be called before
        with torch.no_grad(), torch.cuda.graph(graph):
            layer(x).relu_()
        begin = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    assert run(body) == run(body, enable_data=False)


@pytest.mark.parametrize("factor", [None, 3.0])
def test_a_graph_of_a_sharded_model_gathers_its_parameters_again(
    run: Callable[..., list[Any]], factor: float | None
) -> None:
    """FSDP takes the memory of gathered parameters away as soon as they have been used."""

    def body() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).cuda()
        for part in (model[0], model[2], model):
            fully_shard(part)
            if factor is not None:
                part.set_gradient_divide_factor(factor)
        x = torch.randn(4, 16, device="cuda")

        def step() -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            return loss

        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.synchronize()
        model.zero_grad()
        with torch.cuda.graph(graph):
            loss = step()
        found = []
        for seed in (1, 2):
            x.copy_(torch.randn(4, 16, generator=torch.Generator().manual_seed(seed)))
            for parameter in model.parameters():
                parameter.grad.zero_()
            graph.replay()
            replayed = [loss.item(), *(each.grad.to_local().clone() for each in model.parameters())]
            for parameter in model.parameters():
                parameter.grad.zero_()
            found.append((replayed, [step().item(), *(each.grad.to_local().clone() for each in model.parameters())]))
        return found

    for rank in run(body, 2):
        for replayed, eager in rank:
            assert replayed[0] == eager[0]
            for one, other in zip(replayed[1:], eager[1:], strict=True):
                torch.testing.assert_close(one, other)
        assert rank[0][0][0] != rank[1][0][0]


def test_a_replayed_step_of_ddp_waits_for_its_sums() -> None:
    """C++ code waits for them by their futures, which a replay does as it is captured."""
    found = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8, device="cuda"))
            x = torch.full((2, 8), rank + 1.0, device="cuda")
            for _ in range(3):
                model(x).sum().backward()
        torch.cuda.current_stream().wait_stream(side)
        model.zero_grad()
        with torch.cuda.graph(graph):
            model(x).sum().backward()
            gradient = model.module.weight.grad * 1
        x.fill_(rank + 5.0)
        graph.replay()
        found[rank] = gradient[0, 0].item()

    with kernbench.simulate("dgx_h100", races=True) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert found == {0: 11.0, 1: 11.0}


def test_a_capture_leaves_memory_as_it_was(run: Callable[..., list[Any]]) -> None:
    """A whole step as torch's documentation captures it, with the optimizer, and what else keeps a state."""

    def body() -> Any:
        def trained(steps: int, captured: bool) -> list[Any]:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4)).cuda()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)
            count, x = torch.zeros(1, device="cuda"), torch.zeros(4, 8, device="cuda")

            def step() -> torch.Tensor:
                optimizer.zero_grad(set_to_none=False)
                loss = model(x).square().mean()
                loss.backward()
                total = loss.detach().clone()
                dist.all_reduce(total)
                dist.all_reduce(count.add_(1))
                optimizer.step()
                return total

            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step()
            torch.cuda.synchronize()
            if captured:
                before = [count.clone(), *(each.detach().clone() for each in model.parameters())]
                with torch.cuda.graph(graph):
                    total = step()
                now = [count, *(each.detach() for each in model.parameters())]
                assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))
            found = []
            for number in range(steps):
                x.copy_(torch.randn(4, 8, generator=torch.Generator().manual_seed(number)))
                if captured:
                    graph.replay()
                else:
                    total = step()
                found.append(total.item())
            return [*found, count.item(), model[1].num_batches_tracked.item(), model[0].weight.detach().clone()]

        return trained(3, captured=False), trained(3, captured=True)

    for eager, captured in run(body, 2):
        assert eager[:-1] == captured[:-1]
        assert torch.equal(eager[-1], captured[-1])


def test_operands_keep_their_memory_when_their_tensors_are_given_other_data(run: Callable[..., list[Any]]) -> None:
    def body() -> Any:
        x, between, out = (torch.ones(4, device="cuda") for _ in range(3))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.add(x, 1, out=between)
            torch.mul(between, 3, out=out)
        kept = between.detach()
        between.data = torch.empty(0, device="cuda")  # as libraries do that give memory back early
        x.fill_(4)
        graph.replay()
        return out.tolist(), kept.tolist(), between.numel()

    assert run(body) == [([15.0] * 4, [5.0] * 4, 0)]


def test_without_data_a_graph_keeps_no_memory_between_its_operations() -> None:
    """Its results stay, and what lies between them is free for the next operation, as in the pool of a graph on a GPU; a buffer
    of known numbers that the program fills before a replay steers it."""
    side, layers = 4096, 8

    def body(rank: int, found: list[Any]) -> None:
        x, weight = (torch.empty(side, side, device="cuda") for _ in range(2))
        index, table = torch.zeros(2, dtype=torch.long, device="cuda"), torch.arange(8, device="cuda") * 10

        def step() -> tuple[torch.Tensor, torch.Tensor]:
            y = x
            for _ in range(layers):
                y = torch.relu(y @ weight) + x
            return y, table[index]

        step()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, chosen = step()
        held = torch.cuda.memory_allocated() - before
        index.copy_(torch.tensor([3, 5]))
        graph.replay()
        found.append((held // out.nbytes, tuple(out.shape), [int(each) for each in chosen.tolist()]))

    found: list[Any] = []
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, args=(found,), nprocs=1)
        assert not ctx.simulation.assumptions.notes
        names = [each.name for each in ctx.simulation.engine.op_log.operations]
    assert found == [(1, (side, side), [30, 50])]
    assert sum("mm" in name for name in names) == 2 * layers  # eager and replayed: a capture runs nothing


def test_without_data_a_graph_computes_only_what_may_be_known_again() -> None:
    """A small product of what is not known stays unknown, in memory of its own or that began in the graph; numbers that the
    program fills before a replay are computed again there."""

    def body(rank: int, found: list[Any]) -> None:
        x, weight = torch.empty(1, 1 << 14, device="cuda"), torch.empty(1 << 14, 64, device="cuda")
        index = torch.zeros(2, dtype=torch.long, device="cuda")
        torch.mm(x, weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, known = torch.empty(1, 64, device="cuda"), torch.empty(2, device="cuda")
            for _ in range(8):
                torch.mm(x, weight, out=out)
            known.copy_(index)
        steps: Any = graph._graph  # type: ignore[attr-defined]
        index.copy_(torch.tensor([3, 5]))
        graph.replay()
        found.append((len(steps.steps) - steps.nodes, known.tolist()))

    found: list[Any] = []
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, args=(found,), nprocs=1)
    assert found == [(1, [3.0, 5.0])]


def test_a_graph_of_nothing_is_warned_of_and_no_other() -> None:
    def warned(body: Callable[[], object]) -> bool:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                body()
        return any("The CUDA Graph is empty" in str(each.message) for each in caught)

    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.ones(4, device="cuda")
        dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
        assert warned(lambda: None)
        assert not any(map(warned, (x.zero_, x.clone, lambda: dist.all_reduce(x))))
        dist.destroy_process_group()


def test_an_event_has_a_number_from_its_first_record_on() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        event, other = torch.cuda.Event(), torch.cuda.Event()
        assert (event.cuda_event, repr(event)) == (0, "<torch.cuda.Event uninitialized>")
        event.record()
        other.record()
        assert event.event_id == event.cuda_event not in (0, other.cuda_event)
        assert repr(event) == f"<torch.cuda.Event {event.cuda_event:#x}>"
