"""Names that programs for GPUs use, on simulated ones."""

from __future__ import annotations

import io
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from torch import nn

import kernbench
from tests.torch_backend.conftest import Ranks


def _numbers() -> None:
    device = torch.device(1)
    assert (device.type, device.index, isinstance(device, torch.device)) == ("cuda", 1, True)
    with torch.device("cuda"):
        layer = nn.Linear(2, 2)
        assert layer.weight.is_cuda
        assert torch.tensor([1.0]).is_cuda
    assert nn.Linear(2, 2).to(1).weight.device == layer.to("cuda:1").weight.device == device


def _accelerator() -> None:
    before = torch.accelerator.current_device_index()
    with torch.accelerator.device_index(1):
        assert torch.accelerator.current_device_index() == 1
    assert torch.accelerator.current_device_index() == before
    torch.accelerator.synchronize()


def _tensor_types() -> None:
    x = torch.cuda.FloatTensor([1.0, 2.0])  # type: ignore[call-arg]
    assert torch.cuda.FloatTensor(1, device=None).is_cuda  # type: ignore[call-arg]
    assert (x.type(), x.tolist(), isinstance(x, torch.cuda.FloatTensor)) == ("torch.cuda.FloatTensor", [1.0, 2.0], True)
    for args, named in [((), {}), ((2, 3), {}), ((torch.Size([4]),), {}), ((), {"size": (2, 3)}), ((), {"size": ()})]:
        on_host = torch.LongTensor(*args, **named)
        on_gpu: Any = torch.cuda.LongTensor(*args, **named)
        assert (on_gpu.shape, on_gpu.dtype, on_gpu.device.type) == (on_host.shape, torch.int64, "cuda")
    assert torch.ones(1).type("torch.cuda.HalfTensor").type() == "torch.cuda.HalfTensor"


def _pinned_memory() -> None:
    x = torch.randn(4).pin_memory()
    assert x.is_pinned()
    assert not torch.randn(4).is_pinned()
    moved = x.to("cuda", non_blocking=True)
    back = torch.empty(4, pin_memory=True)
    assert torch.tensor([1, 2], pin_memory=True).is_pinned()
    with torch.device("cuda"):  # from pinned memory
        assert torch.tensor([1, 2], pin_memory=True).device == torch.device("cuda", torch.cuda.current_device())
    back.copy_(moved, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, x)


def _loading() -> None:
    for location, on_gpu in (
        ("cuda:1", True),
        ("cpu", False),
        ({"cpu": "cuda:1"}, True),
        (torch.device("cuda", 1), True),
    ):
        file = io.BytesIO()
        torch.save({"w": torch.ones(2)}, file)
        file.seek(0)
        loaded = torch.load(file, map_location=location)["w"]  # type: ignore[arg-type]
        assert loaded.is_cuda == on_gpu
        assert loaded.tolist() == [1.0, 1.0]


def _events_and_statistics() -> None:
    torch.cuda.reset_peak_memory_stats()
    begin, end = torch.cuda.Event(enable_timing=True), torch.Event(device="cuda", enable_timing=True)
    before = torch.cuda.memory_allocated()
    x = torch.randn(512, 512, device="cuda")
    begin.record()
    _ = x @ x
    end.record()
    torch.cuda.synchronize()
    assert 0 < begin.elapsed_time(end) < 1
    assert torch.cuda.max_memory_allocated() - before >= 2 * x.nbytes
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    x.record_stream(torch.cuda.current_stream())


def _classes_are_classes() -> None:
    """In annotations, in ``isinstance``, and as what others derive from."""
    for cls in (
        torch.cuda.MemPool, torch.cuda.CUDAGraph, torch.cuda.Stream, torch.cuda.Event, torch.Stream, torch.Event,
        torch.Generator, torch.cuda.graphs.CUDAGraph, torch.cuda.memory.MemPool,
    ):  # fmt: skip
        assert isinstance(cls, type)
        assert set(get_args(cls | None)) == {cls, type(None)}
        assert not isinstance(3, cls)
        assert issubclass(type("Derived", (cls,), {}), cls)
    assert issubclass(torch.cuda.Stream, torch.Stream)
    assert isinstance(torch.cuda.current_stream(), torch.Stream)
    derived: Any = type("Derived", (torch.Stream,), {})
    assert not isinstance(torch.cuda.current_stream(), derived)
    assert torch.cuda.memory.MemPool is torch.cuda.MemPool


def _memory_pools() -> None:
    pool = torch.cuda.MemPool()
    assert isinstance(pool, torch.cuda.MemPool)
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        held = torch.ones(8 << 20, device="cuda")
    outside = torch.ones(8 << 20, device="cuda")
    (segment,) = pool.snapshot()
    assert (segment["allocated_size"], segment["segment_pool_id"]) == (held.nbytes, pool.id)
    assert len(torch.cuda.memory_snapshot(pool.id)) == 1
    assert len(torch.cuda.memory_snapshot()) == 2
    del held
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 2 * outside.nbytes
    del pool
    assert torch.cuda.memory_reserved() == outside.nbytes


def _streams_by_number() -> None:
    in_c: Any = torch._C
    own = torch.cuda.current_device()
    side, main = torch.cuda.Stream(), torch.cuda.default_stream()
    for stream in (side, main):
        numbers = {name: getattr(stream, name) for name in ("stream_id", "device_index", "device_type")}
        assert torch.cuda.Stream(**numbers) == stream
    assert torch.cuda.ExternalStream(side.cuda_stream) == torch.cuda.get_stream_from_external(side.cuda_stream) == side
    assert isinstance(torch.cuda.ExternalStream(side.cuda_stream), torch.cuda.Stream)
    with torch.cuda.stream(side):
        assert in_c._cuda_getCurrentStream(own) == (side.stream_id, own, 1)
        assert in_c._cuda_getCurrentStream(1 - own) == (main.stream_id, 1 - own, 1)
    assert in_c._cuda_getDefaultStream(own) == (main.stream_id, own, 1)
    with pytest.raises(kernbench.KernbenchError, match="no stream of this simulated GPU is at 0x7f0000"):
        torch.cuda.ExternalStream(0x7F0000)


def _names_of_a_build() -> None:
    in_c: Any = torch._C
    assert not in_c._cuda_isInBadFork()
    assert isinstance(torch.cuda.get_device_properties(), in_c._CudaDeviceProperties)
    mine = torch.cuda.current_device()
    assert in_c._cuda_exchangeDevice(1 - mine) == mine
    assert in_c._cuda_maybeExchangeDevice(mine) == 1 - mine
    assert in_c._cuda_canDeviceAccessPeer(0, 1)
    in_c._cuda_set_sync_debug_mode(1)
    assert torch.cuda.get_sync_debug_mode() == in_c._cuda_get_sync_debug_mode() == 1
    torch.cuda.set_sync_debug_mode(0)
    assert in_c._cuda_getArchFlags().split() == torch.cuda.get_arch_list()
    assert in_c._cuda_getCurrentBlasHandle() == torch.cuda.current_blas_handle()
    in_c._cuda_init()
    in_c._cuda_ipc_collect()


def _ranges_of_a_profiler() -> None:
    nvtx: Any = torch.cuda.nvtx

    @nvtx.range("step")  # a context, and a decorator
    def step(x: int) -> int:
        with nvtx.range("part {}", x):
            return x + 1

    assert [step(each) for each in range(3)] == [1, 2, 3]
    with torch.cuda.profiler.profile():
        nvtx._device_range_end(nvtx._device_range_start("on a stream"))


CASES = (
    _numbers,
    _accelerator,
    _tensor_types,
    _pinned_memory,
    _loading,
    _events_and_statistics,
    _classes_are_classes,
    _memory_pools,
    _streams_by_number,
    _names_of_a_build,
    _ranges_of_a_profiler,
)


@pytest.mark.parametrize("case", CASES)
def test_name(ranks: Ranks, case: Any) -> None:
    ranks(case, 2, backend="nccl")


def _attributes_named_as_methods() -> None:
    weight: Any = nn.Parameter(torch.empty(4, 6, device="cuda"))
    rows: Any = torch.empty(6, 4, device="cuda").t()
    weight.stride, weight.partition_dim, rows.stride = 1, 0, 1  # as Megatron's layers once had them
    with torch.no_grad():
        weight.zero_()
        weight.copy_(rows.copy_(torch.ones(4, 6, device="cuda")))
    dist.broadcast(weight.data, 0)
    dist.all_reduce(weight.detach().requires_grad_(False))
    total = torch.zeros(4, 6, device="cuda")
    total.stride = 1  # type: ignore[method-assign, assignment]
    dist.all_reduce(total)
    nn.functional.linear(torch.ones(2, 6, device="cuda"), weight).sum().backward()
    assert weight.grad.shape == (4, 6)
    assert weight.to("cpu").shape == (4, 6)


@pytest.mark.parametrize("enable_data", [True, False])
def test_parameters_may_have_attributes_named_as_methods(enable_data: bool) -> None:
    with kernbench.simulate("dgx_h100", world_size=2, enable_data=enable_data) as ctx:
        ctx.multiprocessing.spawn(_in_group, args=(_attributes_named_as_methods,), nprocs=2)


def _in_group(rank: int, case: Any) -> None:
    dist.init_process_group("nccl", rank=rank, world_size=2)
    case()


def test_synchronised_batch_norm_is_batch_norm_of_the_whole_batch(ranks: Ranks) -> None:
    batch = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    upstream = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1))

    def run(model: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        x = x.clone().requires_grad_()
        out = model(x)
        out.backward(grad)
        assert x.grad is not None
        return [out.detach().cpu(), x.grad.cpu(), *(buffer.float().cpu() for buffer in model.buffers())]

    def body() -> list[torch.Tensor]:
        mine = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
        model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3)).cuda()
        return run(model, batch[mine].cuda(), upstream[mine].cuda())

    expected = run(nn.BatchNorm2d(3), batch, upstream)
    parts = ranks(body, 2, backend="nccl")
    for index in range(2):
        torch.testing.assert_close(torch.cat([part[index] for part in parts]), expected[index], rtol=1e-5, atol=1e-5)
    for index in range(2, 5):
        torch.testing.assert_close(parts[0][index], expected[index], rtol=1e-5, atol=1e-5)


def test_two_ranks_on_one_gpu_do_not_wait_for_each_other(ranks: Ranks) -> None:
    def body() -> float:
        torch.cuda.set_device(0)
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        dist.barrier()
        return float(x.sum())

    assert ranks(body, 2, backend="gloo") == [8.0, 8.0]
