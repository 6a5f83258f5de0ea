"""Settings of CUDA's libraries, statistics of pinned memory, and what one process does over several GPUs by NCCL's names."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch.backends import cuda
from torch.cuda import tunable

import kernbench
from kernbench.errors import KernbenchError


def test_settings_of_tuned_products_are_kept_and_remarked() -> None:
    with kernbench.simulated_gpu("dgx_h100") as ctx:
        assert not tunable.is_enabled()
        assert tunable.tuning_is_enabled()
        tunable.enable()
        tunable.tuning_enable(False)
        tunable.set_max_tuning_duration(7)
        tunable.set_max_tuning_iterations(8)
        tunable.set_rotating_buffer_size(9)
        tunable.record_untuned_enable(True)
        tunable.set_filename("found.csv", insert_device_ordinal=True)
        found = (
            tunable.is_enabled(), tunable.tuning_is_enabled(), tunable.get_max_tuning_duration(),
            tunable.get_max_tuning_iterations(), tunable.get_rotating_buffer_size(), tunable.record_untuned_is_enabled(),
            tunable.get_filename(),
        )  # fmt: skip
        assert found == (True, False, 7, 8, 9, True, "found0.csv")
        assert tunable.get_results() == ()
        assert dict([tunable.get_validators()[0]])["PT_VERSION"] in torch.__version__
        assert any("TunableOp is on" in each for each in ctx.simulation.remarks)


def test_tuned_products_are_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_TUNABLEOP_ENABLED", "1")
    monkeypatch.setenv("PYTORCH_TUNABLEOP_MAX_TUNING_ITERATIONS", "5")
    monkeypatch.setenv("PYTORCH_TUNABLEOP_FILENAME", "a%d.csv")
    with kernbench.simulated_gpu("dgx_h100"):
        assert (tunable.is_enabled(), tunable.get_max_tuning_iterations(), tunable.get_filename()) == (
            True,
            5,
            "a0.csv",
        )


def test_workspaces_are_as_large_as_a_program_sets_them() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        assert cuda.cublas_workspace_size() == 32 << 20
        assert cuda.cublas_workspace_size(8 << 20) == 8 << 20
        a = torch.ones(64, 64, device="cuda")
        before = torch.cuda.memory_allocated()
        product = a @ a
        assert torch.cuda.memory_allocated() - before == (8 << 20) + product.nbytes
        torch._C._cuda_resetCublasWorkspaceSize()
        assert cuda.cublas_workspace_size() == 32 << 20


def test_plans_of_cufft_and_limits_of_cudnn_are_kept() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        plans = cuda.cufft_plan_cache
        assert (plans.max_size, plans[0].size) == (4096, 0)
        plans.max_size = 10
        plans[1].max_size = 11
        plans.clear()
        assert (plans.max_size, plans[0].max_size, plans[1].max_size) == (10, 10, 11)
        with pytest.raises(RuntimeError, match="read-only"):
            plans[0].size = 1
        torch.backends.cudnn.benchmark_limit = 3
        assert torch.backends.cudnn.benchmark_limit == 3


def test_pinned_memory_is_counted_in_powers_of_two_and_kept() -> None:
    def figures() -> tuple[int, ...]:
        stats: dict[str, Any] = torch.cuda.host_memory_stats()
        return tuple(
            stats[name]
            for name in ("allocated_bytes.current", "active_bytes.current", "active_bytes.peak", "num_host_alloc")
        )

    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.empty(1000, pin_memory=True)  # 4000 bytes
        assert figures() == (4096, 4096, 4096, 1)
        y = torch.ones(300).pin_memory()  # 1200 bytes
        assert figures() == (6144, 6144, 6144, 2)
        view = x[:3]
        del x
        gc.collect()
        assert figures()[1] == 6144, "a view keeps its storage"
        del view, y
        gc.collect()
        assert figures() == (6144, 0, 6144, 2)
        another = torch.ones(900).pin_memory()
        assert figures() == (6144, 4096, 6144, 2), "a block that is free again is taken"
        torch.accelerator.empty_host_cache()
        torch.cuda.reset_peak_host_memory_stats()
        torch.cuda.reset_accumulated_host_memory_stats()
        assert figures() == (4096, 4096, 4096, 0)
        assert another.is_pinned()


def test_an_observer_is_told_before_memory_runs_out() -> None:
    seen: list[tuple[int, ...]] = []
    with kernbench.simulated_gpu("dgx_h100"):
        torch._C._cuda_attach_out_of_memory_observer(lambda *told: seen.append(told))
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 40, device="cuda", dtype=torch.uint8)
        free, _ = torch.cuda.mem_get_info()
    assert seen == [(0, 1 << 40, 0, free)]


def test_what_is_of_cpp_is_refused_in_words() -> None:
    with kernbench.simulated_gpu("dgx_h100") as ctx:
        with pytest.raises(KernbenchError, match="allocator of the program's own"):
            torch.cuda.memory.change_current_allocator(torch.cuda.memory._CUDAAllocator(None))
        square = torch.cuda.jiterator._create_jit_fn("template <typename T> T square(T x) { return x * x; }")
        with pytest.raises(KernbenchError, match="jiterator compiles 'square' from C"):
            square(torch.ones(2, device="cuda"))
        torch.cuda.caching_allocator_enable(False)
        assert any("caching_allocator_enable" in each for each in ctx.simulation.remarks)


def test_nccl_of_one_process_sums_over_its_gpus() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        nccl = torch.cuda.nccl
        parts = [torch.arange(4.0, device=f"cuda:{gpu}") + 10 * gpu for gpu in range(2)]
        whole = [each.clone() for each in parts]
        nccl.all_reduce(whole)
        assert [each.tolist() for each in whole] == [[10, 12, 14, 16]] * 2
        gathered = [torch.empty(8, device=f"cuda:{gpu}") for gpu in range(2)]
        nccl.all_gather(parts, gathered)
        assert [each.tolist() for each in gathered] == [[0, 1, 2, 3, 10, 11, 12, 13]] * 2
        scattered = [torch.empty(2, device=f"cuda:{gpu}") for gpu in range(2)]
        nccl.reduce_scatter(parts, scattered, op=2)  # the largest
        assert [each.tolist() for each in scattered] == [[10, 11], [12, 13]]
        nccl.broadcast(parts, root=1)
        assert parts[0].tolist() == [10, 11, 12, 13]
        assert [each.device.index for each in (*whole, *gathered, *scattered)] == [0, 1] * 3


def test_a_graph_of_any_accelerator_is_captured_and_replayed() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.zeros(3, device="cuda")
        x += 0
        stream, graph = torch.Stream(), torch.accelerator.Graph()
        with stream, graph:
            x += 1
        for _ in range(3):
            graph.replay()
        assert x.tolist() == [3, 3, 3]
