"""Memory of CUDA graphs' pools: figures of an H100 80GB HBM3 (torch 2.11.0+cu130, driver 580.159.04), to the byte."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import kernbench
from kernbench.torch_backend.gpu.memory.captured_memory import weak_reference

MIB = 1 << 20
TENSOR = 64 * MIB


def of_rank(body: Any, **options: Any) -> Any:
    """What ``body()`` gives in a rank."""
    found: list[Any] = []
    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(lambda rank: found.append(body()), nprocs=1)
    return found[0]


def captured(step: Any, value: torch.Tensor, pool: Any = None) -> tuple[Any, torch.Tensor]:
    """A graph of eight steps, and its result."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        for _ in range(8):
            value = step(value)
    return graph, value


def three_graphs() -> dict[str, list[int]]:
    """Bytes allocated and reserved more than before, by what has been done."""
    found: dict[str, list[int]] = {}
    x = torch.zeros(TENSOR // 4, device="cuda")
    x + 1, x * 2  # what torch makes of an operator that it has not seen is no part of it
    torch.cuda.empty_cache()
    gc.collect()
    gc.disable()  # a graph that is deleted gives back what it has at once
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def note(what: str) -> None:
        now = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        found[what] = [there - here for here, there in zip(before, now, strict=True)]

    first, y = captured(lambda value: value + 1, x)
    note("captured")
    second, z = captured(lambda value: value * 2, x, first.pool())
    note("a second in its pool")
    first.replay()
    second.replay()
    torch.cuda.synchronize()
    note("replayed")
    third, v = captured(lambda value: value * 2, x)
    note("a third in another")
    del y
    note("a result deleted")
    del first
    note("its graph deleted")
    torch.cuda.empty_cache()
    note("emptied")
    del second, z
    torch.cuda.empty_cache()
    note("the second deleted")
    del third, v
    torch.cuda.empty_cache()
    note("all deleted")
    gc.enable()
    return found


@pytest.mark.long  # seconds
@pytest.mark.parametrize("data", [True, False])
def test_pools_of_graphs(data: bool) -> None:
    assert of_rank(three_graphs, enable_data=data) == {
        "captured": [67_109_888, 136_314_880],
        "a second in its pool": [134_218_752, 203_423_744],
        "replayed": [134_218_752, 203_423_744],
        "a third in another": [201_327_616, 337_641_472],
        "a result deleted": [134_218_752, 337_641_472],
        "its graph deleted": [134_218_752, 337_641_472],
        "emptied": [134_218_752, 337_641_472],
        "the second deleted": [67_109_888, 136_314_880],
        "all deleted": [0, 0],
    }


def test_replays_have_their_values_whatever_shares_memory() -> None:
    def body() -> list[float]:
        x = torch.zeros(MIB, device="cuda")
        first, y = captured(lambda value: value + 1, x)
        second, z = captured(lambda value: value * 2 + 1, y, first.pool())
        x.fill_(3)
        del y
        w = torch.ones(MIB, device="cuda")
        first.replay()
        second.replay()
        return [z[0].item(), w[0].item()]

    assert of_rank(body) == [11.0 * 256 + 255, 1.0]


def test_what_a_capture_writes_and_drops_is_free() -> None:
    """In place, through views, and by kernels that return several."""

    def body() -> int:
        x = torch.randn(MIB, device="cuda").view(1024, 1024)
        before = torch.cuda.memory_allocated()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                y = x.clone()
                y.add_(1)[:, ::2].mul_(2)
                value, where = y.t().contiguous().max(0)
                total = value.sum() + where.sum()
        graph.replay()
        del y, value, where
        assert total.item() > 0
        return torch.cuda.memory_allocated() - before

    assert of_rank(body) == 512 + 2 * 512  # the sum; seed and offset


def test_a_capture_that_fails_keeps_nothing() -> None:
    def body() -> int:
        x = torch.zeros(MIB, device="cuda")
        before = torch.cuda.memory_allocated()
        graph = torch.cuda.CUDAGraph()

        def look() -> None:
            with torch.cuda.graph(graph):
                (x + 1).sum().item()

        with pytest.raises(RuntimeError, match="previous error during capture"):
            look()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated() - before

    assert of_rank(body) == 0


def test_peaks_count_what_the_program_holds() -> None:
    def body() -> int:
        x = torch.zeros(MIB, device="cuda")
        _, y = captured(lambda value: value + 1, x)
        del y
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.zeros(MIB, device="cuda")
        return torch.cuda.max_memory_allocated() - before

    assert of_rank(body) == 4 * MIB


@pytest.mark.parametrize("data", [True, False])
def test_what_is_referred_to_weakly_is_free(data: bool) -> None:
    """References of engines to results of their graphs: a GPU has as much without them."""

    def body() -> tuple[dict[str, int], list[float]]:
        x = torch.zeros(TENSOR // 4, device="cuda")
        x + 1  # what torch makes of an operator that it has not seen is no part of it
        gc.collect()
        gc.disable()
        before, references, found = torch.cuda.memory_allocated(), [], {}

        def step(value: torch.Tensor) -> torch.Tensor:
            result = value + 1
            references.append(weak_reference(result))
            assert references[-1].data_ptr() == result.data_ptr()
            return result

        graph, y = captured(step, x)
        found["captured"] = torch.cuda.memory_allocated() - before
        found["peak"] = torch.cuda.max_memory_allocated() - before
        del y
        found["a result deleted"] = torch.cuda.memory_allocated() - before
        view = references[-1][:2]
        graph.replay()
        values = view.tolist() if data else []
        references.clear()
        del view, graph
        torch.cuda.empty_cache()
        found["all deleted"] = torch.cuda.memory_allocated() - before
        gc.enable()
        return found, values

    found, values = of_rank(body, enable_data=data)
    assert found == {
        "captured": TENSOR + 1024, "peak": 2 * TENSOR + 1024, "a result deleted": 1024, "all deleted": 0,
    }  # fmt: skip
    assert values == ([8.0, 8.0] if data else [])


def test_a_weak_reference_ends_with_its_tensor() -> None:
    """What is held once more is the program's again, and memory that is no graph's is kept."""

    def body() -> list[int]:
        x = torch.zeros(MIB, device="cuda")
        before, found = torch.cuda.memory_allocated(), []
        graph, y = captured(lambda value: value + 1, x)
        for _ in range(2):
            weak = weak_reference(y)
            del weak
            found.append(torch.cuda.memory_allocated() - before)
        other = weak_reference(x)
        del x
        found.append(torch.cuda.memory_allocated() - before)
        del other, graph
        return found

    assert of_rank(body) == [4 * MIB + 1024] * 3
