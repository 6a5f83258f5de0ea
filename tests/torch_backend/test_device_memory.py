"""Memory of simulated GPUs: capacity, what torch.cuda says of it, who has what, and its history."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.cuda import _memory_viz
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

import kernbench
from kernbench.errors import ConfigError
from kernbench.memory.limits import format_size
from kernbench.memory.report import OutOfMemoryReport
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.gpu.memory.memory_names import record_memory_history
from kernbench.trace import Timeline
from kernbench.trace.memory_report import RankMemory, memory_lines, memory_of_ranks

MIB, GIB = 1 << 20, 1 << 30
WIDTH = 256


@pytest.fixture(autouse=True)
def without_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are of tensors alone; workspaces of cuBLAS are in tests/memory/test_workspaces.py."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "0")


def run(
    body: Callable[[], Any],
    ranks: int = 1,
    *,
    limit: int | str = "device",
    system: str = "dgx_h100",
    backend: str = "nccl",
    **options: Any,
) -> tuple[list[Any], list[RankMemory], list[str]]:
    """What ``body`` returns in each rank, the memory of each, and the lines that ``kernbench run`` prints of it."""
    results: list[Any] = [None] * ranks

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group(backend)
        results[rank] = body()
        dist.destroy_process_group()

    with kernbench.simulate(system, memory_limit=limit, **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks)
        return results, memory_of_ranks(ctx.simulation), list(memory_lines(ctx))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for _ in range(steps):
        model(torch.randn(8, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def fill(nbytes: int) -> list[torch.Tensor]:
    """Tensors of so many bytes, none of them larger than a host may have room for."""
    return [torch.empty(min(GIB, nbytes - at), dtype=torch.int8, device="cuda") for at in range(0, nbytes, GIB)]


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False)).cuda()


PARAMETERS = 2 * WIDTH * WIDTH * 4
"""Bytes of the two layers' weights."""


# -- who has what ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enable_data", [True, False], ids=["values", "no-data"])
def test_use_of_memory_to_the_byte(enable_data: bool) -> None:
    """At the peak, which is in Adam's first step: weights, gradients, DDP's bucket, two moments, a temporary of each weight."""

    def body() -> None:
        model = two_layers()
        ddp = nn.parallel.DistributedDataParallel(model)
        train(ddp, torch.optim.Adam(ddp.parameters()))

    _, ranks, lines = run(body, 2, enable_data=enable_data)
    for each in ranks:
        assert each.composition.categories == {
            "parameters": PARAMETERS, "gradients": PARAMETERS, "optimizer state": 2 * PARAMETERS,
            "communication buffers": PARAMETERS, "temporaries": PARAMETERS,
        }  # fmt: skip
        assert (each.step, each.place.function) == (0, "train")
        assert each.composition.owners == {
            f"DistributedDataParallel.module.{layer}": 4 * PARAMETERS // 2 for layer in (0, 2)
        }
        assert each.peak_reserved == 4 * MIB  # two small segments of 2 MiB
    assert len(lines) == 9
    assert "NCCL buffers 224.00 MiB" in lines[-1]


def test_what_a_forward_pass_leaves_are_activations() -> None:
    def body() -> None:
        layer = nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
        x = torch.randn(1024, WIDTH, device="cuda")
        loss = layer(x).exp().sum()  # keeps x, and what exp gives; what the layer gives is gone
        loss.backward()
        layer.weight.grad = None

    _, (only,), _ = run(body)
    rows = 1024 * WIDTH * 4
    categories = only.composition.categories
    assert categories["parameters"] == WIDTH * WIDTH * 4
    assert categories["activations"] == 2 * rows + 2 * 512  # and the loss, and the one that backward begins with
    assert only.peak == sum(categories.values())


class Layer(nn.Module):
    """Keeps its input for ``up``, and what exp gives for ``down`` and for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).exp())


ROWS = 4096
ROW_BYTES = ROWS * WIDTH * 4
WEIGHTS = 2 * WIDTH * 4 * WIDTH * 4
"""Bytes of one tensor between layers, and of a layer's weights."""


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize("recompute", [False, True])
def test_activations_by_module(recompute: bool, isolation: str) -> None:
    """A layer itself allocates what exp gives, four times as wide as its result, and the result; Linear keeps nothing that it
    gives. Of a layer that is recomputed the result is left, the next one's input."""

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        model = nn.Sequential(*(Layer() for _ in range(3))).cuda()
        x = torch.randn(ROWS, WIDTH, device="cuda")
        if recompute:
            for layer in model:
                x = checkpoint(layer, x, use_reentrant=False)
        else:
            x = model(x)
        torch.empty(100 * GIB, dtype=torch.int8, device="cuda")

    with (
        pytest.raises(kernbench.SpawnException) as caught,
        kernbench.simulate("dgx_h100", enable_data=False) as ctx,
    ):
        ctx.multiprocessing.spawn(worker, nprocs=1, isolation=isolation)
    composition = caught.value.errors[0].memory_report.composition
    held = ROW_BYTES if recompute else 5 * ROW_BYTES
    assert composition.activations == {f"Sequential.{layer}": held for layer in range(3)}
    assert composition.owners == {
        **{f"Sequential.{layer}": held for layer in range(3)},
        **{f"Sequential.{layer}.{part}": WEIGHTS // 2 for layer in range(3) for part in ("up", "down")},
    }


def test_temporaries_of_a_backward_pass_by_module() -> None:
    """The peak is where ``down`` of the last layer has made the gradient of its input, four times as wide as its output's."""

    def body() -> None:
        layer = Layer().cuda()
        layer(torch.randn(ROWS, WIDTH, device="cuda")).sum().backward()

    _, (only,), _ = run(body, enable_data=False)
    owners = only.composition.owners
    assert owners["Layer.down"] >= WEIGHTS // 2 + 4 * ROW_BYTES
    assert owners["Layer.up"] == WEIGHTS // 2


def test_gathered_parameters_of_fsdp() -> None:
    """A layer of four has its whole parameters only while it computes; storages that FSDP resizes are followed."""
    width, layers = 512, 4

    def body() -> tuple[int, int]:
        model = nn.Sequential(*(nn.Linear(width, width, bias=False, device="cuda") for _ in range(layers)))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        held = torch.cuda.memory_allocated()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            model(torch.randn(8, width, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return held, torch.cuda.memory_allocated()

    results, ranks, _ = run(body, 4)
    whole = width * width * 4
    for (sharded, after), each in zip(results, ranks, strict=True):
        assert sharded == layers * whole // 4
        assert after <= sharded + 64 * 1024
        categories = each.composition.categories
        assert categories["parameters"] == sharded
        assert whole <= categories["unsharded parameters"] <= 2 * whole
        assert categories["gradients"] <= sharded


def test_gathered_parameters_of_fsdp_over_two_meshes() -> None:
    """One module's parameters are sharded over all ranks and over half of them, as experts are."""
    width = 512

    def body() -> int:
        mesh = dist.init_device_mesh("cuda", (2, 2), mesh_dim_names=("other", "half"))
        both = {"0.weight": mesh._flatten("all"), "1.weight": mesh["half"]}
        model = nn.Sequential(*(nn.Linear(width, width, bias=False, device="cuda") for _ in both))
        places = {
            parameter: ShardPlacementResult(Shard(0), FSDPMeshInfo(mesh=both[name], shard_mesh_dim=0))
            for name, parameter in model.named_parameters()
        }
        fully_shard(model, mesh=both["0.weight"], shard_placement_fn=places.get)
        del places
        held = torch.cuda.memory_allocated()
        model(torch.randn(8, width, device="cuda")).sum().backward()
        return held

    results, ranks, _ = run(body, 4)
    whole = width * width * 4
    for sharded, each in zip(results, ranks, strict=True):
        assert sharded == whole // 4 + whole // 2
        categories = each.composition.categories
        assert categories["parameters"] == sharded
        assert categories["unsharded parameters"] == whole  # of one mesh, while gradients of the other's are sent


# -- capacity ----------------------------------------------------------------------------------------------------------


def test_an_allocation_that_fails_leaves_all_as_it_was() -> None:
    """A program that catches it and takes a smaller batch runs."""

    def body() -> tuple[list[int], int, int]:
        layer = nn.Linear(1024, 1024, bias=False, device="cuda")
        tried = []
        batch = 1 << 16
        while True:
            before, fits = torch.cuda.memory_allocated(), True
            try:
                layer(torch.ones(batch, 1024, device="cuda")).sum().backward()
            except torch.OutOfMemoryError:
                fits = False  # as on a GPU: the traceback holds tensors as long as the exception is handled
            if not fits:
                assert torch.cuda.memory_allocated() == before
                tried.append(batch)
                batch //= 2
            else:
                return tried, batch, torch.cuda.memory_stats()["num_ooms"]

    (found,), (only,), _ = run(body, limit="100MB")
    assert found == ([1 << 16, 1 << 15, 1 << 14], 1 << 13, 3)
    assert only.peak_reserved <= 100e6
    assert only.failures == 3


def test_programs_that_fill_what_is_free_keep_to_the_limit() -> None:
    def body() -> tuple[tuple[int, int], int, tuple[int, int]]:
        """As servers size their caches: nine tenths of all, less what is in use."""
        before = free, total = torch.cuda.mem_get_info()
        cache = torch.empty(total * 9 // 10 - (total - free), dtype=torch.int8, device="cuda")
        return before, cache.nbytes, torch.cuda.mem_get_info()

    (((free, total), cache, after),), (only,), _ = run(body, limit="4GiB")
    assert (free, total - free) == (4 * GIB, sum(only.overhead.values()))
    assert cache > 3 * GIB // 2
    assert after == (free - only.peak_reserved, total)


@pytest.mark.parametrize("limit", ["off", "100GB"])
def test_what_is_free_is_what_the_device_has_whatever_may_be_reserved(limit: str) -> None:
    """So that an engine sizes its cache for the device also where it is to be known how much would be missing."""

    def body() -> list[tuple[int, int]]:
        told = [torch.cuda.mem_get_info()]
        kept = fill(20 * GIB)
        told.append(torch.cuda.mem_get_info())
        kept += fill(65 * GIB)
        return [*told, torch.cuda.mem_get_info()]

    (((free, total), *after),), (only,), _ = run(body, limit=limit, enable_data=False)
    assert (total, total - free) == (80998 * MIB, sum(only.overhead.values()))
    assert after == [(free - 20 * GIB, total), (0, total)]


def test_the_device_is_full_when_cuda_has_had_its_part() -> None:
    def body() -> tuple[int, int, str]:
        free, total = torch.cuda.mem_get_info()
        kept = fill(free // GIB * GIB)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(GIB, dtype=torch.int8, device="cuda")
        assert torch.cuda.memory_allocated() == sum(each.nbytes for each in kept)
        return free, total, str(caught.value)

    ((free, total, message),), (only,), _ = run(body, enable_data=False)
    assert total == 80998 * MIB
    assert total - free == sum(only.overhead.values()) > 500 * MIB
    assert message.startswith(
        "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 79.10 GiB of "
    )
    assert f"Including non-PyTorch memory, this process has {78 + 755 / 1024:.2f} GiB memory in use." in message
    assert (
        "Of the allocated memory 78.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but " in message
    )
    assert "try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation." in message


def test_two_processes_share_a_device() -> None:
    def body() -> str:
        rank = dist.get_rank()
        torch.cuda.set_device(0)
        kept = fill(45 * GIB) if rank == 0 else None
        dist.barrier()
        message = ""
        if rank == 1:
            with pytest.raises(torch.OutOfMemoryError) as caught:
                fill(45 * GIB)
            message = str(caught.value)
        dist.barrier()
        del kept
        return message

    (_, message), _, _ = run(body, 2, backend="gloo", enable_data=False)
    assert "Process -1 has 45" in message
    assert "Including non-PyTorch memory" in message


def test_a_rank_that_has_ended_keeps_the_limit_that_it_had() -> None:
    def body() -> None:
        fill(GIB)
        if dist.get_rank() == 0:
            time.sleep(1)
            torch.ones(4, device="cuda:1")

    _, ranks, (head, *_) = run(body, 2, enable_data=False)
    assert [(each.rank, each.device) for each in ranks] == [(0, 0), (0, 1), (1, 1)]
    assert all(each.limit for each in ranks)
    assert "no limit" not in head


def test_no_limit() -> None:
    def body() -> int:
        kept = fill(200 * GIB)
        assert len(kept) == 200
        return torch.cuda.memory_allocated()

    found, (only,), lines = run(body, limit="off", enable_data=False)
    assert found == [200 << 30]
    assert only.limit is None
    assert "no limit" in lines[0]
    assert run(body, limit="300GB", enable_data=False)[0] == [200 << 30]


@pytest.mark.parametrize("limit", ["80XB", "much", -1, 0, 0.5, None, "80 GB/s"])
def test_a_limit_that_is_no_size(limit: Any) -> None:
    with pytest.raises(ConfigError, match=r"memory limit .*: expected"), kernbench.simulate(memory_limit=limit):
        pass


def test_the_contexts_tensors_have_the_same_memory() -> None:
    for isolation in ("carrier", "greenlet"):
        found = []

        def worker(rank: int, found: list[Any] = found) -> None:
            kept = torch_.zeros(1 << 20)
            with pytest.raises(torch.OutOfMemoryError) as caught:
                torch_.ones(10 << 20)
            found.append((str(caught.value), caught.value.memory_report.composition.total))
            found.append((torch_.accelerator.memory_allocated(), torch_.accelerator.memory_reserved(), kept.shape))

        with kernbench.simulate(memory_limit=30 * MIB) as torch_:
            torch_.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
        (message, total), figures = found[:2]
        assert "Tried to allocate 40.00 MiB" in message
        assert "30.00 MiB allowed; " in message
        assert (total, figures[0], figures[1]) == (4 * MIB, 4 * MIB, 20 * MIB)


# -- the report --------------------------------------------------------------------------------------------------------


def test_the_report_of_a_failure() -> None:
    def body() -> None:
        model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4))).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for batch in (64, 64, 16384):
            loss = model(torch.ones(batch, 1024, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(kernbench.SpawnException) as caught:
        run(body, 2, limit="200MB")
    (error,) = caught.value.errors.values()
    assert type(error) is torch.OutOfMemoryError
    report: OutOfMemoryReport = error.memory_report
    weights = 4 * 4 * MIB
    assert (report.rank, report.step, report.operation) == (0, 2, "aten::mm")
    assert (report.place.file, report.place.function) == (__file__, "body")
    assert report.composition.categories == {
        "optimizer state": 2 * weights, "parameters": weights, "activations": 64 * MIB + 512,  # the last step's loss
    }  # fmt: skip
    assert report.composition.total == report.allocated
    text = str(report)
    assert text.splitlines()[0].startswith("out of memory on rank 0 in step 3: aten::mm at ")
    assert f"asked for 64.00 MiB, which takes 64.00 MiB; {report.room / MIB:.2f} MiB left of 190.73 MiB allowed" in text
    share = 1 - report.missing / (128 * MIB + 512)
    assert (
        f"a micro-batch of {int(share * 16384)} instead of 16384 (first dimension of the input of Sequential)" in text
    )
    assert f"{report.missing / MIB:.2f} MiB more memory" in text
    assert error.__notes__ == [text]


def failure(body: Callable[[], Any], ranks: int = 1, *, limit: int | str) -> OutOfMemoryReport:
    with pytest.raises(kernbench.SpawnException) as caught:
        run(body, ranks, limit=limit, enable_data=False)
    return next(iter(caught.value.errors.values())).memory_report


def layers_on(rows: int, *, wrapped: str = "", state: bool = False) -> None:
    model: nn.Module = nn.Sequential(*(Layer() for _ in range(6))).cuda()
    if wrapped == "fsdp":
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    elif wrapped:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = (
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
        if wrapped == "zero"
        else torch.optim.Adam(model.parameters())
    )
    if state:
        model(torch.randn(8, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model(torch.randn(rows, WIDTH, device="cuda"))


def test_advice_is_right() -> None:
    """What it says would have fitted fits, and recomputing saves what is kept beside the layers' inputs."""
    limit, rows = 96 * MIB, 4096
    report = failure(partial(layers_on, rows), limit=limit)
    recompute, batch, *_ = report.remedies()
    complete = sum(size == 5 * ROW_BYTES for size in report.composition.activations.values())
    assert complete >= 2
    saved = complete * 4 * ROW_BYTES + sum(
        size - ROW_BYTES for size in report.composition.activations.values() if ROW_BYTES < size < 5 * ROW_BYTES
    )
    assert (
        f"of Sequential.*, {len(report.composition.activations)} modules: frees about {format_size(saved)};"
        in recompute
    )
    found = re.match(r"a micro-batch of (\d+) instead of 4096 \(first dimension of the input of Sequential\)", batch)
    assert found is not None
    fits = int(found[1])
    activations = report.composition.categories["activations"] + report.requested
    assert fits == int(rows * (1 - report.missing / activations))
    # the same allocation has room then: what fails, if anything, comes later
    later = failure(partial(layers_on, fits), limit=limit)
    assert len(later.composition.activations) >= len(report.composition.activations)
    assert later.composition.total > report.composition.total - report.missing


@pytest.mark.parametrize(("wrapped", "ways"), [("ddp", 2), ("zero", None), ("fsdp", None)])
def test_only_what_is_not_sharded_yet_is_advised_to_be(wrapped: str, ways: int | None) -> None:
    report = failure(partial(layers_on, 32768, wrapped=wrapped, state=True), 4, limit=200 * MIB)
    state = report.composition.categories["optimizer state"]
    assert report.program.divided["optimizer state"] == (1 if wrapped == "ddp" else 4)
    assert report.program.divided["parameters"] == (4 if wrapped == "fsdp" else 1)
    small = replace(report, wanted=report.room + state // 2)  # one that half of the state would make room for
    sharding = [each.split(",")[0] for each in small.remedies() if each.startswith("sharding optimizer state")]
    assert sharding == ([f"sharding optimizer state over {ways} ranks"] if ways else [])


def test_pieces_are_counted_and_expandable_segments_join_them() -> None:
    """Two blocks of 9 MiB leave 2 of a segment's 20: of 16 segments, 32 MiB, in which there is no place for 30 in one piece."""

    def body(settings: str) -> None:
        if settings:
            torch._C._accelerator_setAllocatorSettings(settings)
        kept = [torch.empty(9 * MIB, dtype=torch.int8, device="cuda") for _ in range(32)]
        kept.append(torch.empty(30 * MIB, dtype=torch.int8, device="cuda"))

    report = failure(partial(body, ""), limit=331 * MIB)
    assert (report.reserved - report.allocated, list(report.pieces)) == (32 * MIB, [2 * MIB] * 16)
    assert "32.00 MiB reserved but unallocated, in 16 pieces, the largest 2.00 MiB; expandable_segments:True" in str(
        report
    )
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True, which is modelled" in "".join(report.remedies())
    run(partial(body, "expandable_segments:True"), limit=331 * MIB, enable_data=False)


def test_the_message_is_torchs_own() -> None:
    """Programs look into it: accelerate's and Lightning's test, and the figures by torch's own words."""
    report = None

    def body() -> None:
        nonlocal report
        torch.ones(1 << 20, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(GIB, dtype=torch.int8, device="cuda")
        error = caught.value
        assert len(error.args) == 1
        assert error.args[0].startswith(
            "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of "
        )
        assert error.args[0].endswith("(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)")
        assert "\n" not in str(error)
        report = error.memory_report
        raise error

    with pytest.raises(kernbench.SpawnException) as raised:
        run(body, limit=100 * MIB, enable_data=False)
    text = str(raised.value)
    assert 0 < text.index("torch.OutOfMemoryError: CUDA out of memory. Tried") < text.index(str(report))
    assert text.count(str(report)) == 1


# -- what torch.cuda says ----------------------------------------------------------------------------------------------


def test_statistics_have_torchs_names_and_its_figures() -> None:
    def body() -> tuple[dict[str, int], dict[str, int], str]:
        kept = [
            torch.empty(3 * MIB, dtype=torch.int8, device="cuda"),
            torch.empty(700, dtype=torch.int8, device="cuda"),
        ]
        torch.empty(30 * MIB, dtype=torch.int8, device="cuda")
        stats = dict(torch.cuda.memory_stats())
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        torch.cuda.empty_cache()
        assert len(kept) == 2
        assert torch.accelerator.memory_stats() == torch.cuda.memory_stats()
        assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved() == 22 * MIB
        return stats, dict(torch.cuda.memory_stats()), torch.cuda.memory_summary()

    ((stats, later, summary),), _, _ = run(body)
    groups = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
              "inactive_split_bytes", "requested_bytes")  # fmt: skip
    names = {f"{group}.{pool}.{what}" for group in groups for pool in ("all", "small_pool", "large_pool")
             for what in ("current", "peak", "allocated", "freed")}  # fmt: skip
    assert names <= set(stats)
    assert set(stats) - names == {
        *(f"oversize_{of}.{what}" for of in ("allocations", "segments") for what in ("current", "peak", "allocated", "freed")),
        "max_split_size", "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
        "num_oom_rejections",
    }  # fmt: skip
    assert stats["allocated_bytes.all.current"] == 3 * MIB + 1024
    assert stats["requested_bytes.all.current"] == 3 * MIB + 700
    assert stats["allocated_bytes.all.peak"] == 33 * MIB + 1024
    assert stats["reserved_bytes.large_pool.current"] == 50 * MIB
    assert stats["reserved_bytes.small_pool.current"] == 2 * MIB
    assert stats["inactive_split_bytes.all.current"] == 17 * MIB + 2 * MIB - 1024
    assert (stats["segment.all.current"], stats["inactive_split.all.current"], stats["num_device_alloc"]) == (3, 2, 3)
    assert (later["reserved_bytes.all.current"], later["allocated_bytes.all.peak"]) == (22 * MIB, 3 * MIB + 1024)
    assert (later["num_device_alloc"], later["num_device_free"]) == (0, 1)
    assert "PyTorch CUDA memory summary, device ID 0" in summary
    assert "GPU reserved memory" in summary


def test_settings_of_the_process() -> None:
    def body() -> tuple[int, int]:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        kept = torch.empty(3 * MIB, dtype=torch.int8, device="cuda")
        first = torch.cuda.memory_reserved()
        more = torch.empty(18 * MIB, dtype=torch.int8, device="cuda")
        assert len(torch.cuda.memory_snapshot()) == 1
        assert kept.numel() + more.numel() == 21 * MIB
        return first, torch.cuda.memory_reserved()

    assert run(body)[0] == [(20 * MIB, 40 * MIB)]


def test_a_stream_that_uses_memory_delays_its_reuse() -> None:
    def body() -> list[bool]:
        side = torch.cuda.Stream()
        same = []
        for recorded in (False, True):
            x = torch.ones(1024, 1024, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                for _ in range(50):
                    x.mul_(1.0)
            if recorded:
                x.record_stream(side)
            (before,) = (block["address"] for block in _blocks())
            del x
            y = torch.empty(1024, 1024, device="cuda")
            same.append(before in [block["address"] for block in _blocks()])
            torch.cuda.synchronize()
            del y
        return same

    def _blocks() -> list[dict[str, Any]]:
        found = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
        return [block for block in found if block["state"] == "active_allocated"]

    assert run(body)[0] == [[True, False]]


def test_blocks_of_other_libraries() -> None:
    def body() -> list[int]:
        address = torch.cuda.caching_allocator_alloc(5 * MIB)
        during = torch.cuda.memory_allocated()
        torch.cuda.caching_allocator_delete(address)
        return [during, torch.cuda.memory_allocated()]

    assert run(body)[0] == [[5 * MIB, 0]]


# -- history -----------------------------------------------------------------------------------------------------------


def test_a_history_of_pinned_memory_is_remarked_to_be_missing() -> None:
    def body() -> list[str]:
        record_memory_history(record_pinned_host_memory=True, record_cuda=False)  # as torch 2.14 hands it on
        return [*bound_devices().simulation.remarks]

    assert "history of pinned host memory" in run(body)[0][0][0]


def test_a_snapshot_opens_in_torchs_viewer(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"

    def body() -> None:
        torch.cuda.memory._record_memory_history(max_entries=1000)
        first = torch.cuda.memory._snapshot()
        layer = nn.Linear(WIDTH, WIDTH, device="cuda")
        layer(torch.ones(4096, WIDTH, device="cuda")).sum().backward()
        torch.cuda.memory._dump_snapshot(str(path))
        last = torch.cuda.memory._snapshot()
        assert "only_after" in _memory_viz.compare(first["segments"], last["segments"], str)
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.ones(5, device="cuda")
        assert len(torch.cuda.memory._snapshot()["device_traces"][0]) == 0

    run(body)
    with path.open("rb") as file:
        snapshot = pickle.load(file)
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert {"alloc", "free_requested", "free_completed", "segment_alloc"} <= set(actions)
    assert actions.count("free_requested") == actions.count("free_completed")
    alive = actions.count("alloc") - actions.count("free_completed")
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert sum(block["state"] == "active_allocated" for block in blocks) == alive
    frames = snapshot["device_traces"][0][0]["frames"]
    assert any(frame["filename"] == __file__ and frame["name"] == "body" for frame in frames)
    assert not any("kernbench/simulation" in frame["filename"] for frame in frames)
    times = [entry["time_us"] for entry in snapshot["device_traces"][0]]
    assert times == sorted(times)
    assert "test_device_memory.py" in _memory_viz.memory(snapshot, str)
    assert f"stream_0;seg_{snapshot['segments'][0]['address']}" in _memory_viz.segments(snapshot, str)
    assert "segments: " in _memory_viz.segsum(snapshot)
    for page in (_memory_viz.trace_plot(snapshot, device=0), _memory_viz.segment_plot(snapshot, device=0)):
        assert "<script" in page


# -- over time ---------------------------------------------------------------------------------------------------------


def test_memory_over_time_adds_up() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        model = two_layers()
        train(model, torch.optim.Adam(model.parameters()))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        changes = Timeline.of(ctx).memory()
        (first, second) = memory_of_ranks(ctx.simulation)
    assert first.composition == second.composition
    reached = peak = 0
    by_use: dict[str, int] = {}
    for change in (change for change in changes if change.rank == 0):
        reached += change.change
        by_use[change.category] = by_use.get(change.category, 0) + change.change
        if reached > peak:
            peak, at_peak = reached, dict(by_use)
    assert (peak, reached) == (first.peak, 0)
    assert {name: nbytes for name, nbytes in at_peak.items() if nbytes} == first.composition.categories


def grown() -> list[int]:
    """MiB that the program has after each call that gives a tensor more memory than it had."""
    seen: list[int] = []

    def note(tensor: torch.Tensor, size: int) -> None:
        assert tensor.numel() == size
        seen.append(torch.cuda.memory_allocated() // MIB)

    def nothing(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(0, device="cuda", dtype=dtype)

    given, size = torch.ones(MIB, device="cuda"), MIB
    kept = [nothing() for _ in range(5)] + [nothing(torch.int64)]
    note(kept[0].resize_(size), size)
    note(kept[1].resize_as_(given), size)
    torch.add(given, given, out=kept[2])
    note(kept[2], size)
    torch.cat([given, given], out=kept[3])
    note(kept[3], 2 * size)
    torch.sort(given, out=(kept[4], kept[5]))
    note(kept[5], size)
    note(kept[3].resize_(8), 8)  # a smaller tensor keeps the memory that it had
    kept.clear()
    note(given, size)
    return seen


@pytest.mark.parametrize("data", [True, False], ids=["values", "no data"])
def test_what_an_operation_gives_more_memory_is_counted(data: bool) -> None:
    results, memory, _ = run(grown, enable_data=data)
    assert results == [[8, 12, 16, 24, 36, 36, 4]]
    assert memory[0].peak == (36 + 20) * MIB  # a sort of one long row takes 20 bytes for each of its numbers


@pytest.mark.parametrize("data", [True, False], ids=["values", "no data"])
def test_out_of_memory_where_an_operation_would_give_more(data: bool) -> None:
    def body() -> str:
        small = torch.empty(0, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 40\.00 MiB"):
            small.resize_(10 * MIB)
        return "refused"

    assert run(body, limit="32MiB", enable_data=data)[0] == ["refused"]


@pytest.mark.parametrize(("context", "kept"), [("state", {"blocks"}), ("alloc", {"blocks", "entries"}), (None, set())])
def test_whose_stacks_a_history_keeps(context: str | None, kept: set[str]) -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        torch.cuda.memory._record_memory_history("all", context=context, stacks="python")
        x = torch.ones(1000, device="cuda")
        found = torch.cuda.memory._snapshot()
        blocks = [block for segment in found["segments"] for block in segment["blocks"]]
        with_stacks = {
            name
            for name, what in (("blocks", blocks), ("entries", found["device_traces"][0]))
            if any(each["frames"] for each in what)
        }
        del x
    assert with_stacks == kept
