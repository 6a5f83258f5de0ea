"""``torch.compile`` of what a rank does on a simulated GPU: compiled for that GPU, with eager's values, and its own time."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._dynamo import callback
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import kernbench

Run = Callable[..., list[Any]]


@pytest.fixture(scope="module", autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Inductor's own cache, for all tests of this file."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def notes() -> list[str]:
    """What the run of :func:`run` had to say."""
    return []


@pytest.fixture
def run(notes: list[str]) -> Run:
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
            notes[:] = ctx.simulation.op_costs.unmodelled.sentences
        return results

    return on_gpus


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """Virtual seconds that a call takes the host, and until all is done."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    return host, time.perf_counter() - begin


def counted(name: str) -> dict[str, int]:
    from torch._dynamo.utils import counters

    return dict(counters[name])


def forget_counts() -> None:
    from torch._dynamo.utils import counters

    counters.clear()


class Gated(nn.Module):
    """A norm and a gated layer, as they are written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.norm, self.up, self.gate = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(64, 128)
        self.down = nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale
        gate = self.gate(y)
        return self.down(self.up(y) * F.gelu(gate) * torch.sigmoid(gate) * torch.tanh(gate + 1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def test_values_and_gradients_are_eagers_in_less_time_and_one_rank_compiles_for_all(run: Run, notes: list[str]) -> None:
    def body() -> Any:
        torch.manual_seed(0)
        model = Gated().cuda()
        x = torch.randn(16, 64, device="cuda")

        def step(function: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
            model.zero_grad()
            y = function(x)
            y.sum().backward()
            return [y.detach(), *(parameter.grad.clone() for parameter in model.parameters())]

        compiled = torch.compile(model, fullgraph=True)
        expected, found = step(model), step(compiled)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert {each.device for each in found} == {torch.device("cuda", dist.get_rank())}
        return counted("stats")["unique_graphs"], seconds(lambda: step(compiled))[1], seconds(lambda: step(model))[1]

    forget_counts()
    results = run(body, 2)
    assert [graphs for graphs, _, _ in results] == [1, 1]
    assert [compiled < eager for _, compiled, eager in results] == [True, True]
    assert notes == []
    forget_counts()
    assert run(body, 2) == results  # what is found in Inductor's cache takes the same time
    assert counted("inductor").get("fxgraph_cache_miss", 0) == 0


def test_a_block_as_of_a_gpt_under_autocast(run: Run, notes: list[str]) -> None:
    def body() -> Any:
        torch.manual_seed(0)
        block = Block().cuda()
        x = torch.randn(2, 16, 32, device="cuda", requires_grad=True)
        results = []
        for function in (block, torch.compile(block, fullgraph=True)):
            x.grad = None
            with torch.autocast("cuda", dtype=torch.bfloat16):
                y = function(x)
            y.float().pow(2).mean().backward()
            assert x.grad is not None
            results.append((y.detach(), x.grad))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
        return True

    assert run(body) == [True]
    assert notes == []


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_norms_are_traced_in_32_bits_under_autocast(backend: str) -> None:
    with kernbench.simulated_gpu("dgx_h100"), torch.autocast("cuda", dtype=torch.bfloat16):
        layers = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).cuda()
        x = torch.ones(2, 8, device="cuda")
        assert torch.compile(layers, backend=backend)(x).dtype is layers(x).dtype is torch.float32


def test_code_in_the_cache_is_of_simulations() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2, device="cuda"))
        assert torch.compiler.config.cache_key_tag == f"kernbench {kernbench.__version__}"
    assert torch.compiler.config.cache_key_tag == ""


@pytest.mark.long
def test_compiled_blocks_under_fsdp2(run: Run, notes: list[str]) -> None:
    def body() -> Any:
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        whole = nn.Sequential(Block(), Block()).cuda()
        x = torch.randn(2, 8, 32, device="cuda")
        expected = whole(x)
        expected.pow(2).mean().backward()
        gradient = whole[0].up.weight.grad
        whole.zero_grad()
        for block in whole:
            block.compile(fullgraph=True)
            fully_shard(block)
        fully_shard(whole)
        found = whole(x)
        found.pow(2).mean().backward()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        sharded = whole[0].up.weight.grad
        torch.testing.assert_close(sharded.full_tensor(), gradient, rtol=1e-4, atol=1e-6)
        return counted("stats")["unique_graphs"]

    forget_counts()
    graphs = run(body, 2)
    assert graphs[0] == graphs[1] <= 2  # one per block at most, not per rank
    assert notes == []


def test_tensor_parallel_layers_and_functional_collectives(run: Run, notes: list[str]) -> None:
    def body() -> Any:
        import torch.distributed._functional_collectives as functional
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).cuda()
        x = torch.randn(4, 16, device="cuda")
        expected = plain(x)
        parallelize_module(plain, init_device_mesh("cuda", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
        torch.testing.assert_close(torch.compile(plain)(x), expected, rtol=1e-4, atol=1e-5)

        def summed(x: torch.Tensor) -> torch.Tensor:
            return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

        mine = torch.full((3,), float(dist.get_rank() + 1), device="cuda")
        return torch.compile(summed, fullgraph=True)(mine).tolist()

    assert run(body, 2) == [[7.0] * 3] * 2
    assert notes == []


def _asks_of_gpus(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What Dynamo knows by torch's own functions and classes, which have others in their place here."""
    answers = (
        torch.cuda.current_device(), torch.cuda.get_device_properties("cuda").multi_processor_count,
        torch.cuda.get_device_properties(x.device).major, torch.cuda.is_available(), torch.cuda.is_initialized(),
        torch.accelerator.current_device_index(), torch.accelerator.is_available(),
    )  # fmt: skip
    with torch.cuda.device(torch.cuda.current_device() ^ 1):
        other = torch.cuda.current_device()
    return x * sum(each * 7**at for at, each in enumerate(answers)), other


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_is_asked_of_gpus_is_constant(run: Run, backend: str) -> None:
    def asked() -> tuple[list[float], int, bool]:
        x = torch.ones(2, device="cuda", dtype=torch.float64)
        compiled = torch.compile(_asks_of_gpus, backend=backend, fullgraph=True)
        expected, found = _asks_of_gpus(x), compiled(x)
        return (
            found[0].tolist(),
            found[1],
            torch.equal(expected[0], found[0]) and torch.cuda.current_device() == x.device.index,
        )

    (first, other, equal), (second, another, also) = run(asked, 2)
    assert equal
    assert also
    assert first != second
    assert (other, another) == (1, 0)


def test_graph_breaks_and_fullgraph_are_dynamos(run: Run) -> None:
    def body() -> Any:
        def broken(x: torch.Tensor) -> torch.Tensor:
            y = torch.sin(x) * 2
            torch._dynamo.graph_break()
            return torch.cos(y) + 1

        def also_broken(x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return x + 1

        x = torch.randn(8, 8, device="cuda")
        torch.testing.assert_close(torch.compile(broken)(x), torch.cos(torch.sin(x) * 2) + 1)
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(also_broken, fullgraph=True)(x)
        return counted("stats")["unique_graphs"]

    import torch._dynamo

    forget_counts()
    assert run(body) == [2]


def test_one_graph_for_sizes_that_change(run: Run) -> None:
    def body() -> Any:
        function = torch.compile(lambda x: F.softmax(x * 2, -1).sum(0), dynamic=True, fullgraph=True)
        for rows in (4, 7, 9):
            x = torch.randn(rows, 33, device="cuda")
            torch.testing.assert_close(function(x), F.softmax(x * 2, -1).sum(0))
        return counted("stats")["unique_graphs"]

    forget_counts()
    assert run(body) == [1]


def test_reduce_overhead_costs_the_host_one_launch(run: Run) -> None:
    def body() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(*(Block() for _ in range(3))).cuda().eval()
        compiled = torch.compile(model, mode="reduce-overhead")
        times = []
        with torch.no_grad():
            for _ in range(4):
                x = torch.randn(1, 4, 32, device="cuda")
                found: list[torch.Tensor] = []
                times.append(seconds(lambda x=x, found=found: found.append(compiled(x)))[0])
                torch.testing.assert_close(found[0], model(x), rtol=1e-4, atol=1e-5)
        return times

    (times,) = run(body)
    assert times[1] == pytest.approx(times[0])
    assert times[2] == pytest.approx(times[3])
    assert times[2] < times[0] / 3


def test_no_rank_runs_while_another_measures(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that follow pointers look at memory, which is no look of the program's: its rank does not wait for it."""
    # no threads that compile ahead: while a rank waits for one of its own, which it need not, others run
    monkeypatch.setattr("torch._inductor.select_algorithm.get_num_workers", lambda: 0)  # which is asked once a process
    seen: list[str] = []

    def body() -> None:
        q = torch.randn(1, 2, 128, 16, device="cuda")
        dist.all_reduce(q)
        mask = create_block_mask(lambda batch, head, i, j: i >= j, None, None, 128, 128, device="cuda")
        if dist.get_rank():
            for _ in range(100):
                seen.append("another")
                time.sleep(1e-6)
            return
        out = torch.compile(flex_attention, options={"max_autotune": True})(q, q, q, block_mask=mask)
        torch.testing.assert_close(out, F.scaled_dot_product_attention(q, q, q, is_causal=True), rtol=1e-4, atol=1e-5)

    callback.callback_handler.register_start_callback(
        lambda _: seen.append("begin")
    )  # until Dynamo is reset, after the run
    callback.callback_handler.register_end_callback(lambda _: seen.append("end"))
    run(body, 2)
    assert "begin" in seen
    assert not any(seen[:at].count("begin") > seen[:at].count("end") for at, who in enumerate(seen) if who == "another")


def test_choices_of_max_autotune_are_by_modelled_time(run: Run) -> None:
    def body() -> Any:
        a, b = (torch.randn(64, 64, device="cuda") for _ in range(2))
        found = torch.compile(lambda a, b: torch.relu(a @ b), mode="max-autotune-no-cudagraphs")(a, b)
        torch.testing.assert_close(found, torch.relu(a @ b), rtol=1e-3, atol=1e-4)
        return time.perf_counter()

    assert run(body) == run(body)


def test_without_data_a_compiled_graph_takes_the_same_time(run: Run) -> None:
    def body() -> Any:
        model = torch.compile(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()).cuda())
        embedded = torch.compile(lambda table, index: table[index] * 2)
        x, index = torch.randn(32, 64, device="cuda"), torch.arange(4096, device="cuda")
        table = torch.randn(5000, 64, device="cuda")
        model(x).sum().backward()
        embedded(table, index)
        return seconds(lambda: (model(x).sum().backward(), embedded(table, index)))

    (with_data,), (without,) = run(body), run(body, enable_data=False)
    assert without == pytest.approx(with_data, rel=0.02)


def test_what_inductor_cannot_compile_runs_as_written_with_its_fusion_estimated(
    run: Run, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.compile_fx

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("no lowering")

    def body() -> Any:
        def chain(x: torch.Tensor) -> torch.Tensor:
            return (torch.sin(x) * 2 + 1).relu().sum(-1)

        x = torch.randn(4096, 1024, device="cuda", requires_grad=True)
        expected = chain(x)
        compiled = torch.compile(chain)
        found = compiled(x)
        found.sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(x.grad, torch.where(torch.sin(x) * 2 + 1 > 0, 2 * torch.cos(x), 0.0).detach())
        with torch.no_grad():
            return seconds(lambda: compiled(x))[1], seconds(lambda: chain(x))[1]

    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx", refuse)
    ((fused, eager),) = run(body)
    assert fused < 0.5 * eager
    assert any(
        "runs as it is written" in note and "no lowering" in note and "test_compiled_gpu.py" in note for note in notes
    )


def test_scaled_products_of_eight_bits(run: Run) -> None:
    def body() -> Any:
        a, b = torch.randn(32, 64, device="cuda"), torch.randn(48, 64, device="cuda")

        def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            scales = a.abs().max() / 448, b.abs().max() / 448
            parts = (a / scales[0]).to(torch.float8_e4m3fn), (b / scales[1]).to(torch.float8_e4m3fn).t()
            return torch._scaled_mm(*parts, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)

        expected = product(a, b)
        torch.testing.assert_close(expected.float(), a @ b.t(), rtol=0.1, atol=1.5)
        torch.testing.assert_close(torch.compile(product)(a, b), expected)
        return True

    def large() -> Any:
        a, b = (torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        a8, b8, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), torch.ones((), device="cuda")
        eight = seconds(lambda: torch._scaled_mm(a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16))[1]
        return eight / seconds(lambda: a @ b.t())[1]

    assert run(body) == [True]
    assert 0.4 < run(large, enable_data=False)[0] < 0.7


def test_nothing_that_was_compiled_is_left_behind(run: Run) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = torch.compile(double, backend="eager")
    run(lambda: torch.compile(double)(torch.ones(4, device="cuda")).tolist())
    assert compiled(torch.ones(4)).tolist() == [2.0] * 4
    assert "cuda" not in os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")


def test_what_is_behind_a_convolution_is_compiled_for_the_gpu(run: Run) -> None:
    def trained(compiled: bool, device: str) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to(device)
        x = torch.arange(2.0 * 3 * 8 * 8).reshape(2, 3, 8, 8).sin().to(device)
        loss = (torch.compile(model, backend="aot_eager") if compiled else model)(x).square().sum()
        loss.backward()
        return tuple(each.detach().cpu() for each in (loss, model[0].weight.grad, model[1].running_var))

    [found] = run(lambda: trained(True, "cuda"))
    for mine, expected in zip(found, trained(False, "cpu"), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


def test_a_compiled_step_makes_the_optimizers_state_on_the_gpu(run: Run) -> None:
    start, grad = torch.arange(8.0), torch.linspace(-1.0, 1.0, 8)

    def body() -> Any:
        parameter = nn.Parameter(start.cuda())
        optimizer = torch.optim.Adam([parameter], lr=0.1)
        step = torch.compile(optimizer.step, backend="aot_eager")
        for _ in range(2):
            parameter.grad = grad.cuda()
            step()
        [state] = optimizer.state.values()
        return {name: each.device.type for name, each in state.items()}, parameter.detach().cpu()

    beside = nn.Parameter(start.clone())
    eager = torch.optim.Adam([beside], lr=0.1)
    for _ in range(2):
        beside.grad = grad
        eager.step()
    [(places, values)] = run(body)
    assert places == {"step": "cuda", "exp_avg": "cuda", "exp_avg_sq": "cuda"}
    torch.testing.assert_close(values, beside.detach())
