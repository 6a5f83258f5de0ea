"""Programs written for GPUs, on simulated ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import kernbench
from kernbench.cost.gemm import gemm_time
from kernbench.cost.work import Cost
from kernbench.topology import resolve_topology
from kernbench.torch_backend.gpu.device import software_versions
from tests.torch_backend.conftest import Ranks

FACTORIES = {
    "zeros": lambda device: torch.zeros(3, device=device),
    "tensor": lambda device: torch.tensor([1.0, 2.0], device=device),
    "randn": lambda device: torch.randn(3, device=device),
    "arange": lambda device: torch.arange(3, device=device),
    "to": lambda device: torch.ones(3).to(device),
    "to_dtype": lambda device: torch.ones(3).to(device, torch.float16),
    "parameter": lambda device: nn.Linear(2, 2, device=device).weight,
    "module": lambda device: nn.Linear(2, 2).to(device).weight,
    "like": lambda device: torch.zeros_like(torch.ones(2, device=device)),
    "result": lambda device: (torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)).sum(),
    "view": lambda device: torch.ones(2, 2, device=device).t()[0],
}


@pytest.mark.parametrize("name", list(FACTORIES))
def test_tensors_are_where_they_were_put(ranks: Ranks, name: str) -> None:
    def body() -> list[object]:
        tensor = FACTORIES[name]("cuda:1")
        assert (tensor.is_cpu, tensor.cpu().is_cpu, torch.ones(2).is_cpu) == (False, True, True)
        return [tensor.device, tensor.is_cuda, tensor.cpu().device, torch.ones(2).device]

    expected = [torch.device("cuda", 1), True, torch.device("cpu"), torch.device("cpu")]
    assert ranks(body, 2) == [expected] * 2


CASTS = {
    "to a GPU": (
        lambda: torch.ones(2).type_as(torch.ones(1, device="cuda:1", dtype=torch.float16)),
        "cuda:1",
        torch.float16,
    ),
    "to a GPU, same dtype": (lambda: torch.ones(2).type_as(torch.ones(1, device="cuda:1")), "cuda:1", torch.float32),
    "to another GPU": (
        lambda: torch.ones(2, device="cuda:0").type_as(torch.ones(1, device="cuda:1")),
        "cuda:1",
        torch.float32,
    ),
    "to the host": (lambda: torch.ones(2, device="cuda:1").type_as(torch.ones(1).double()), "cpu", torch.float64),
    "on a GPU": (
        lambda: torch.ones(2, device="cuda:1").type_as(torch.ones(1, device="cuda:1").int()),
        "cuda:1",
        torch.int32,
    ),
    "to a type of the host": (lambda: torch.ones(2, device="cuda:1").type(torch.DoubleTensor), "cpu", torch.float64),
    "to the name of a type of the host": (
        lambda: torch.ones(2, device="cuda:1").type("torch.FloatTensor"),
        "cpu",
        torch.float32,
    ),
    "to a dtype": (lambda: torch.ones(2, device="cuda:1").type(torch.float64), "cuda:1", torch.float64),
}


@pytest.mark.parametrize("name", list(CASTS))
def test_a_type_says_where(ranks: Ranks, name: str) -> None:
    cast, device, dtype = CASTS[name]

    def body() -> list[object]:
        made = cast()
        return [made.device, made.dtype, made.sum().item()]

    assert ranks(body, 2) == [[torch.device(device), dtype, 2.0]] * 2


def test_ranks_drive_their_own_device(ranks: Ranks) -> None:
    def body() -> tuple[object, ...]:
        rank = dist.get_rank()
        default = torch.cuda.current_device()
        torch.cuda.set_device((rank + 1) % 2)
        return default, torch.ones(1).cuda().device.index, torch.cuda.device_count()

    assert ranks(body, 2, backend="nccl") == [(0, 1, 8), (1, 0, 8)]


def test_memory_is_counted_and_given_back(ranks: Ranks) -> None:
    def body() -> list[int]:
        empty = torch.cuda.memory_allocated()
        tensor = torch.zeros(1 << 20, device="cuda")
        view = tensor[:10]
        full = torch.cuda.memory_allocated()
        del tensor
        held = torch.cuda.memory_allocated()
        del view
        return [empty, full, held, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]

    assert ranks(body, 1) == [[0, 4 << 20, 4 << 20, 0, 4 << 20]]


def test_out_of_memory_when_limited(ranks: Ranks) -> None:
    def body() -> str:
        torch.cuda.set_per_process_memory_fraction(1e-6)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.zeros(1 << 20, device="cuda")
        return str(caught.value)

    assert "CUDA out of memory. Tried to allocate 20.00 MiB" in ranks(body, 1)[0]  # the segment, as torch says it


def test_events_speak_virtual_time() -> None:
    """A matrix product takes what the model of the library says."""
    size = 512
    times = []

    def worker(rank: int) -> None:
        left = torch.ones(size, size, device="cuda", dtype=torch.bfloat16)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(10):
            left @ left
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        called = ctx.topology.system.host.operator
    device = resolve_topology("dgx_h100").topology_obj.device
    library = gemm_time(device, size, size, size, dtype="bf16")
    kernel = Cost.on_stream(library, device, kind="gemm", nbytes=0).seconds
    assert 10 * kernel <= times[0] <= 10 * (kernel + called + device.launch.overhead) + device.launch.latency + 1e-6


def test_operations_are_recorded_forward_and_backward() -> None:
    def worker(rank: int) -> None:
        layer = nn.Linear(4, 8)
        layer(torch.ones(2, 4)).sum().backward()

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    gemms = [op for op in ctx.engine.op_log.operations if op.kind == "gemm"]
    assert [op.name.partition(".")[0] for op in gemms] == ["addmm", "mm"]  # forward; the weight's gradient
    assert all(op.rank == 0 and op.end is not None for op in gemms)


def test_autocast_for_cuda(ranks: Ranks) -> None:
    def body() -> torch.dtype:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype

    assert ranks(body, 1) == [torch.bfloat16]


def _autocast_of_cuda() -> tuple[bool, bool, torch.dtype]:
    return torch.is_autocast_enabled(), torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")


class _AsksWhatIsCast(torch.autograd.Function):
    """A product by hand, as packages of kernels write it; ``asked`` has what forward and backward were told."""

    asked: list[tuple[bool, bool, torch.dtype]]

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _AsksWhatIsCast.asked.append(_autocast_of_cuda())
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        _AsksWhatIsCast.asked.append(_autocast_of_cuda())
        (x,) = ctx.saved_tensors
        assert (x @ x).dtype is torch.bfloat16  # in fp32 what backward computes would differ from a GPU's
        return grad.float() @ x.T + x.T @ grad


def test_autocast_for_cuda_is_told_to_who_asks() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        outside = _autocast_of_cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert _autocast_of_cuda() == (True, True, torch.bfloat16)
            with torch.autocast("cuda", enabled=False):
                assert _autocast_of_cuda()[:2] == (False, False)
            with torch.autocast("cuda"):
                assert _autocast_of_cuda() == (True, True, torch.bfloat16)  # as is set, not CUDA's first default
        assert _autocast_of_cuda() == outside == (False, False, torch.float16)
        with torch.autocast("cpu"):
            assert _autocast_of_cuda() == outside


def test_autocast_reaches_a_functions_backward() -> None:
    """`custom_fwd` asks for CUDA's autocast and `custom_bwd` enters it again."""
    _AsksWhatIsCast.asked = []
    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.ones(2, 2, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = _AsksWhatIsCast.apply(x)
        y.float().sum().backward()
    assert _AsksWhatIsCast.asked == [(True, True, torch.bfloat16)] * 2


def test_what_only_cuda_counts() -> None:
    """CPUs have no ``histc`` of whole numbers and no ``trace`` of booleans."""
    with kernbench.simulated_gpu("dgx_h100"):
        assert torch.histc(torch.tensor([0, 1, 1, 3], device="cuda"), 4, 0, 4).tolist() == [1, 2, 0, 1]
        assert torch.trace(torch.tensor([[True, False], [True, True]], device="cuda")).tolist() == 2
        assert torch.trace(torch.tensor([[2.0, 7.0], [7.0, 3.0]], device="cuda")).tolist() == 5.0


def test_the_runtime_that_torch_shows_to_programs() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        runtime = torch.cuda.cudart()
        torch.cuda.check_error(runtime.cudaProfilerStart())
        torch.cuda.check_error(runtime.cudaProfilerStop())
        assert runtime.cudaMemGetInfo(0) == torch.cuda.mem_get_info(0)
        host = torch.zeros(64)
        assert not host.is_pinned()
        torch.cuda.check_error(runtime.cudaHostRegister(host.data_ptr(), host.nbytes, 0))
        assert host.is_pinned()
        assert host[3:].is_pinned()
        assert not torch.zeros(64).is_pinned()
        again = runtime.cudaHostRegister(host.data_ptr(), host.nbytes, 0)
        with pytest.raises(torch.cuda.CudaError, match="already mapped"):
            torch.cuda.check_error(again)
        assert runtime.cudaHostUnregister(host.data_ptr()) == runtime.cudaError.success
        assert not host.is_pinned()
        assert torch.version.cuda == ".".join(map(str, software_versions.CUDA))  # whatever this torch was built for
        assert not torch.cuda.tunable.is_enabled()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("device", "dtype", "enabled", "accepted"),
    [
        ("cuda", torch.float16, True, True), ("cuda", torch.float32, True, True), ("cuda", torch.int32, True, False),
        ("cpu", torch.float32, True, False), ("cuda", torch.float32, False, False),
    ],
)  # fmt: skip
def test_what_cudnn_takes_is_the_same_in_every_build(
    device: str, dtype: torch.dtype, enabled: bool, accepted: bool
) -> None:
    with kernbench.simulated_gpu("dgx_h100"), torch.backends.cudnn.flags(enabled=enabled):
        assert torch.backends.cudnn.is_acceptable(torch.ones(4, device=device).to(dtype)) is accepted


@pytest.mark.parametrize(("system", "backend"), [("dgx_h100", "cuda"), ("mi300x", "hip")])
def test_the_cuda_of_a_build_is_the_gpus(system: str, backend: str) -> None:
    with kernbench.simulated_gpu(system):
        assert torch.version.cuda == (".".join(map(str, software_versions.CUDA)) if backend == "cuda" else None)


def test_operations_that_have_the_host_wait_warn_or_fail_as_asked() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.ones(4, device="cuda")
        torch.cuda.set_sync_debug_mode("warn")
        with pytest.warns(UserWarning, match="synchronizing CUDA operation"):
            x.sum().item()
        torch.cuda.set_sync_debug_mode("error")
        assert torch.cuda.get_sync_debug_mode() == 2
        for wait in (lambda: x.cpu(), lambda: x.tolist(), lambda: torch.ones(4).cuda(), lambda: bool(x.sum() > 1)):
            with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
                wait()
        torch.ones(4).pin_memory().to("cuda", non_blocking=True).add_(x)
        torch.cuda.synchronize()  # which is what it says
        with pytest.raises(RuntimeError, match="expected one of"):
            torch.cuda.set_sync_debug_mode("loud")
        torch.cuda.set_sync_debug_mode("default")
        assert x.sum().item() == 4


def test_a_tensor_that_changes_its_format_stays_where_it_is() -> None:
    """C++ names the device of a copy that names none: to it that is the host."""
    last = torch.channels_last
    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.ones(2, 3, 4, 5, device="cuda")
        for change in (
            lambda: x.to(memory_format=last), lambda: x.to(None, None, False, memory_format=last), lambda: x.to(copy=True),
            lambda: x.to(device=None, copy=True), lambda: x.to(None, torch.float16), lambda: x.to(dtype=torch.half, copy=True),
            lambda: x.to(torch.half, False, True), lambda: x.to(device=None, dtype=torch.half, memory_format=last),
        ):  # fmt: skip
            assert change().device == x.device
        assert x.to(memory_format=last).is_contiguous(memory_format=last)
        assert x.to(None, torch.float16).dtype == torch.float16
        assert x.to() is x
        assert x.to(None, None, True) is x
        model = torch.nn.Conv2d(3, 3, 1).cuda().to(memory_format=last)
        assert all(parameter.is_cuda for parameter in model.parameters())
        assert model(x).is_cuda
    host = torch.ones(2, 3, 4, 5)
    assert host.to(memory_format=last).device.type == "cpu"


@pytest.mark.parametrize("pad", [(1, 2), (1, 2, 3, 0), (0, -1, 2, 1), (-1, 2, 0, 0), (2, -1, -1, 2)])
def test_circular_padding_is_torchs_and_on_the_gpu(pad: tuple[int, ...]) -> None:
    host = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    host = host if len(pad) > 2 else host[0]
    expected = torch.nn.functional.pad(host, pad, mode="circular")
    with kernbench.simulated_gpu("dgx_h100"):
        found = torch.nn.functional.pad(host.cuda(), pad, mode="circular")
        assert found.is_cuda
        assert torch.equal(found.cpu(), expected)
        with pytest.raises(RuntimeError, match="wrapping around"):
            torch.nn.functional.pad(host.cuda(), (9, *pad[1:]), mode="circular")
        assert torch.linalg.matrix_rank(torch.eye(3, device="cuda")).is_cuda


def test_a_gpus_tensor_is_no_array_of_the_host() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.ones(2, device="cuda")
        for convert in (lambda: x.numpy(), lambda: np.asarray(x)):
            with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy\. Use Tensor\.cpu"):
                convert()
        assert x.cpu().numpy().tolist() == x.detach().cpu().numpy().tolist() == [1, 1]


def test_ranks_of_each_node_see_that_node_s_gpus():
    seen = {}

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank % 8)
        made = torch.ones(1024, device="cuda")
        seen[rank] = (
            torch.cuda.device_count(),
            torch.cuda.current_device(),
            str(made.device),
            torch.cuda.memory_allocated(),
        )

    with kernbench.simulate("dgx_h100", nodes=2) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=16)
        peaks = {ledger.sip: ledger.peak for ledger in ctx.engine.op_log.ledgers}
        sips = [peaks.get(sip, 0) for sip in range(16)]
    assert seen == {rank: (8, rank % 8, f"cuda:{rank % 8}", 4096) for rank in range(16)}
    assert sips == [4096] * 16


def test_lazy_modules_are_moved_before_they_have_a_shape(ranks: Ranks) -> None:
    def body() -> list[object]:
        first = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)).cuda()
        second = nn.LazyLinear(2, device="cuda:1")
        y = first(torch.ones(2, 3, 8, 8, device="cuda:0"))
        z = second(torch.ones(2, 3, device="cuda:1"))
        y.sum().backward()
        tensors = [*first.parameters(), *first.buffers(), *(parameter.grad for parameter in first.parameters())]
        return [{tensor.device for tensor in tensors}, second.weight.device, tuple(y.shape), tuple(z.shape)]

    expected = [{torch.device("cuda:0")}, torch.device("cuda:1"), (2, 2), (2, 2)]
    assert ranks(body, 1) == [expected]


def _torch_time(tensor: torch.Tensor) -> float:
    """Seconds that an operation on ``tensor`` takes its GPU."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    with torch.no_grad():
        tensor.mul_(1)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


class Named(torch.Tensor):
    """A subclass without functions of its own."""


class NamedParameter(nn.Parameter):
    """The same, of parameters."""


@pytest.mark.parametrize("cls", [Named, NamedParameter])
def test_subclasses_that_see_no_operations_are_recorded_as_tensors(ranks: Ranks, cls: type) -> None:
    def body() -> list[object]:
        tensor = torch.ones(3).as_subclass(cls)  # type: ignore[arg-type]
        moved = tensor.cuda().as_subclass(cls)  # type: ignore[arg-type]
        with torch.no_grad():
            same = moved.add_(1) is moved
        return [tensor.data.tolist(), moved.device.type, (moved + moved).sum().item(), same, _torch_time(moved)]

    times = ranks(body, 1)[0].pop()
    assert times > 0
    assert ranks(body, 1)[0][:-1] == [[1.0] * 3, "cuda", 12.0, True]


def test_a_factory_writes_into_a_tensor_of_its_device(ranks: Ranks) -> None:
    def body() -> None:
        index = torch.cuda.current_device()
        for there, devices in (("cpu", (None, "cpu")), ("cuda", (None, "cuda", f"cuda:{index}", index))):
            for device in devices:
                out = torch.empty(3, device=there)
                assert torch.full((3,), 2.0, out=out, device=device) is out
                assert out.device.type == there
                assert out.tolist() == [2.0] * 3
        with torch.device("cuda"):
            assert torch.ones(3, out=torch.empty(3)).is_cuda
            with pytest.raises(RuntimeError, match="device type cuda does not match device type of out parameter"):
                torch.ones(3, out=torch.empty(3, device="cpu"))
        with pytest.raises(RuntimeError, match="device type cpu does not match device type of out parameter"):
            torch.ones(3, out=torch.empty(3, device="cuda"), device="cpu")

    ranks(body)
