"""Settings of torch that are the process's: each rank has its own, and main's are as they were."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint

import kernbench


class Setting(NamedTuple):
    """How a program reads and sets it, and another value than torch's own."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    value: Any


def _attribute(owner: Any, name: str, value: Any) -> Setting:
    return Setting(lambda: getattr(owner, name), lambda each: setattr(owner, name, each), value)


BACKENDS: Any = torch.backends
MATMUL = BACKENDS.cuda.matmul
DEFAULT_DEVICE = torch.utils.checkpoint.DefaultDeviceType

OWN = {
    "dtype": Setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "precision of products": Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
    "tf32 of products": _attribute(MATMUL, "allow_tf32", True),
    "tf32 of convolutions": _attribute(BACKENDS.cudnn, "allow_tf32", False),
    "fp32_precision": _attribute(BACKENDS, "fp32_precision", "tf32"),
    "fp32_precision of products": _attribute(MATMUL, "fp32_precision", "tf32"),
    "fp32_precision of convolutions": _attribute(BACKENDS.cudnn.conv, "fp32_precision", "ieee"),
    "sums of fp16": _attribute(MATMUL, "allow_fp16_reduced_precision_reduction", False),
    "sums of bf16": _attribute(MATMUL, "allow_bf16_reduced_precision_reduction", False),
    "cudnn": _attribute(BACKENDS.cudnn, "enabled", False),
    "cudnn.benchmark": _attribute(BACKENDS.cudnn, "benchmark", True),
    "cudnn.deterministic": _attribute(BACKENDS.cudnn, "deterministic", True),
    "deterministic": Setting(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "deterministic debugging": Setting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1),
    "filling": _attribute(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "anomalies": Setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True),
    "warnings": Setting(torch.is_warn_always_enabled, torch.set_warn_always, True),
    "autocast": Setting(
        lambda: torch.get_autocast_dtype("cuda"), lambda dtype: torch.set_autocast_dtype("cuda", dtype), torch.bfloat16
    ),
    "flash": Setting(BACKENDS.cuda.flash_sdp_enabled, BACKENDS.cuda.enable_flash_sdp, False),
    "printing": Setting(
        lambda: torch._tensor_str.PRINT_OPTS.precision, lambda digits: torch.set_printoptions(precision=digits), 9
    ),
    "overwritten parameters": Setting(
        torch.__future__.get_overwrite_module_params_on_conversion,
        lambda on: torch.__future__.set_overwrite_module_params_on_conversion(on),
        True,
    ),
    "swapped parameters": Setting(
        torch.__future__.get_swap_module_params_on_conversion,
        lambda on: torch.__future__.set_swap_module_params_on_conversion(on),
        True,
    ),
    "checkpoints": Setting(DEFAULT_DEVICE.get_device_type, lambda device: DEFAULT_DEVICE.set_device_type(device), "xpu"),
    "start method": Setting(
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda method: multiprocessing.set_start_method(method, force=True),
        "forkserver",
    ),
    "safe classes": Setting(
        lambda: Setting in torch.serialization.get_safe_globals(),
        lambda _: torch.serialization.add_safe_globals([Setting]),
        True,
    ),
    "filters of warnings": Setting(
        lambda: [*warnings.filters], lambda action: warnings.filterwarnings(action, message="of this test"), "error"
    ),
    "device": Setting(torch.get_default_device, torch.set_default_device, "cuda"),
}  # fmt: skip
"""Those that differ between ranks. The names are those of before the simulation: a program may have them from anywhere."""

PUT_BACK = {
    "threads": Setting(torch.get_num_threads, torch.set_num_threads, 3),
    "einsum": _attribute(BACKENDS.opt_einsum, "strategy", "greedy"),
}
"""Those that ranks share until they have ended."""


@pytest.fixture(autouse=True)
def settable() -> Iterator[None]:
    """Importing torch's own helpers for tests forbids the process to set some of them."""
    with getattr(torch.backends, "__allow_nonbracketed_mutation")():
        yield


def _seen(setting: Setting) -> dict[int, Any]:
    seen: dict[int, Any] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 0:
            setting.write(setting.value)
        dist.barrier()
        seen[rank] = setting.read()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    return seen


@pytest.mark.filterwarnings("ignore")  # torch's, of the older interface, of anomalies
@pytest.mark.parametrize("name", OWN)
def test_each_rank_has_its_own(name: str) -> None:
    setting = OWN[name]
    before = setting.read()
    seen = _seen(setting)
    assert seen[0] != before
    assert seen[1] == before
    assert setting.read() == before


@pytest.mark.parametrize("name", PUT_BACK)
def test_shared_ones_are_put_back(name: str) -> None:
    setting = PUT_BACK[name]
    before = setting.read()
    assert _seen(setting)[0] == setting.value
    assert setting.read() == before


@pytest.mark.parametrize("name", ["precision of products", "tf32 of products", "fp32_precision of products"])
def test_products_take_their_ranks_time(name: str) -> None:
    """A plan of one rank's product is not that of another, which computes it in another format."""
    took: dict[int, float] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        if rank == 1:
            OWN[name].write(OWN[name].value)
        x = torch.ones(4096, 4096, device="cuda")
        for _ in range(3):
            dist.barrier()
            torch.cuda.synchronize()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            x @ x
            last.record()
            torch.cuda.synchronize()
            took[rank] = first.elapsed_time(last)

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert took[0] > 3 * took[1]


def test_what_a_process_may_set_once() -> None:
    told: dict[int, list[object]] = {}

    def worker(rank: int) -> None:
        torch.set_num_interop_threads(2 + rank)
        dist.init_process_group("gloo")
        dist.barrier()
        told[rank] = [torch.get_num_interop_threads()]
        with pytest.raises(RuntimeError, match="cannot set number of interop threads"):
            torch.set_num_interop_threads(4)

    before = torch.get_num_interop_threads()
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert told == {0: [2], 1: [3]}
    assert torch.get_num_interop_threads() == before


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_a_default_type_on_a_gpu() -> None:
    """As programs of before torch 2.1 say where tensors are made."""
    made: dict[int, list[object]] = {}

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        torch.set_default_tensor_type(torch.cuda.HalfTensor if rank else "torch.cuda.FloatTensor")
        dist.init_process_group("gloo")
        dist.barrier()
        here = torch.ones(2)
        made[rank] = [here.dtype, str(here.device), torch.nn.Linear(2, 2).weight.device.type]
        torch.set_default_tensor_type(torch.DoubleTensor)
        made[rank] += [torch.ones(2).dtype, str(torch.ones(2).device)]

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert made == {
        0: [torch.float32, "cuda:0", "cuda", torch.float64, "cpu"],
        1: [torch.float16, "cuda:1", "cuda", torch.float64, "cpu"],
    }
    assert torch.get_default_dtype() is torch.float32
