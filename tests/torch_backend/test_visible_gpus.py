"""Which GPUs a program sees: ``CUDA_VISIBLE_DEVICES`` and AMD's variables, in every way in which ranks are run."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench import simulated_gpu
from kernbench.torch_backend.gpu.device.visible_devices import VARIABLES, NodeGpus, uuid_of

BOTH = pytest.mark.parametrize("isolation", ["carrier", "process"])
FIFTH = uuid_of("dgx_h100", 5)


@pytest.fixture(autouse=True)
def all_are_visible(monkeypatch):
    for name in {name for selections in VARIABLES.values() for names in selections for name in names}:
        monkeypatch.delenv(name, raising=False)


def uuid_at(index: int = 0) -> str:
    """Of a GPU that a rank sees, by its ordinal."""
    return str(torch.cuda.get_device_properties(index).uuid)


def uuids(*numbers: int) -> list[str]:
    """Of GPUs by their numbers on the first node."""
    return [str(uuid_of("dgx_h100", number)) for number in numbers]


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, [0, 1, 2, 3]), ("2", [2]), ("3, 1", [3, 1]), ("0,7,1", [0]), ("", []), ("-1", []), ("0,-1,2", [0]),
        ("1,1", []), ("1gpu,+2", [1, 2]), ("NoDevFiles", []), (f"GPU-{uuid_of('here', 2)},0", [2, 0]),
        (f"GPU-{str(uuid_of('here', 1))[:6]}", [1]), ("GPU-,1", []), ("GPU-ffffffff,1", []), ("MIG-1,1", []),
    ],
)  # fmt: skip
def test_what_is_listed_before_the_first_that_does_not_exist_is_seen(value, seen):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert NodeGpus(4, "here").visible(environ) == tuple(seen)


def test_gpus_of_another_node_have_names_of_their_own():
    environ = {"CUDA_VISIBLE_DEVICES": f"GPU-{uuid_of('here', 6)}"}
    assert [NodeGpus(4, "here", first).visible(environ) for first in (0, 4)] == [(), (2,)]


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({"HIP_VISIBLE_DEVICES": "1,0"}, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "3,2"}, [3, 2]),
        ({"ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "1"}, []),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_amds_variables_pick_one_after_the_other(environ: Mapping[str, str], seen):
    assert NodeGpus(4, "here", backend="hip").visible(environ) == tuple(seen)


def test_cudas_gpus_do_not_listen_to_amds_variables():
    assert NodeGpus(2, "here").visible({"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": ""}) == (0, 1)


def _two_of_them(rank: int) -> None:
    assert (torch.cuda.device_count(), torch.accelerator.device_count(), torch.cuda.is_available()) == (2, 2, True)
    assert torch.cuda.current_device() == rank  # `cuda` is a rank's own
    assert [uuid_at(0), uuid_at(1)] == uuids(6, 5)
    assert torch.ones(2, device="cuda").device == torch.device("cuda", rank)
    with pytest.raises(torch.AcceleratorError, match=r"^CUDA error: invalid device ordinal\n") as found:
        torch.ones(2, device="cuda:2")
    assert str(found.value).endswith("\ncuda:2: CUDA_VISIBLE_DEVICES=6,5 leaves 2 devices")
    dist.init_process_group("nccl")
    mine, _ = dist.new_subgroups()  # of as many as there are GPUs
    x = torch.full((4,), rank + 1.0, device=f"cuda:{rank}")
    dist.all_reduce(x, group=mine)
    assert (mine.size(), x.tolist()) == (2, [3.0] * 4)
    dist.destroy_process_group()


@BOTH
def test_ordinals_are_those_of_the_variable(isolation, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,5")
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_two_of_them, nprocs=2, isolation=isolation)
        ran = {op.sip for op in ctx.engine.op_log.records() if op.rank is not None}
    assert ran == {5, 6}  # physical ones


def _one_each(rank: int) -> None:
    torch.manual_seed(3)  # uses none
    assert torch.cuda.device_count() == 8
    os.environ["CUDA_VISIBLE_DEVICES"] = str(7 - rank)
    assert torch.cuda.device_count() == 1
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    x = torch.full((4,), rank + 1.0, device="cuda:0")
    dist.all_reduce(x)
    assert (x.tolist(), x.device, [uuid_at()]) == ([3.0] * 4, torch.device("cuda:0"), uuids(7 - rank))
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2"  # too late
    assert (torch.cuda.device_count(), [uuid_at()]) == (1, uuids(7 - rank))
    dist.destroy_process_group()


@BOTH
def test_each_rank_may_see_another_gpu_and_call_it_the_first(isolation):
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_one_each, nprocs=2, isolation=isolation)
        assert {op.sip for op in ctx.engine.op_log.records() if op.rank is not None} == {6, 7}


def _too_late(rank: int) -> None:
    assert torch.cuda.is_available()  # starts the runtime
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    assert (torch.cuda.device_count(), [uuid_at()]) == (8, uuids(0))


def test_the_variable_is_read_when_a_gpu_is_first_wanted():
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_too_late, nprocs=1)


def _none(rank: int) -> None:
    assert not torch.cuda.is_available()
    assert not torch.accelerator.is_available()
    assert (torch.cuda.device_count(), torch.accelerator.current_accelerator(True)) == (0, None)
    for use in (
        lambda: torch.ones(2, device="cuda"), lambda: torch.ones(2).cuda(), torch.cuda.current_device, torch.cuda.init,
        lambda: torch.cuda.set_device(0), torch.cuda.mem_get_info, lambda: torch.cuda.get_device_properties(0),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"No CUDA GPUs are available: CUDA_VISIBLE_DEVICES=(''|-1) hides all"):
            use()
    with pytest.raises(ValueError, match="ProcessGroupNCCL is only supported with GPUs, no GPUs found"):
        dist.init_process_group("nccl")
    dist.init_process_group("gloo")
    x = torch.full((2,), rank + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [3.0, 3.0]
    dist.destroy_process_group()


@BOTH
@pytest.mark.parametrize("value", ["", "-1"])
def test_a_program_that_sees_none_runs_on_the_host(value, isolation, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_none, nprocs=2, isolation=isolation)


def test_nvml_lists_all_of_the_node_by_their_physical_numbers(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"GPU-{FIFTH}")
    with simulated_gpu("dgx_h100"):
        library, count, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint(), ctypes.c_void_p()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        found = []
        for number in range(count.value):
            text = ctypes.create_string_buffer(96)
            library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle))
            library.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(96))
            found.append(text.value.decode().removeprefix("GPU-"))
        assert found == uuids(*range(8))
        assert (torch.cuda.device_count(), uuid_at()) == (1, found[5])
        assert torch.cuda._get_nvml_device_index(0) == 5  # torch's own way from an ordinal to NVML's number


def _on_the_second_node(rank: int) -> None:
    if rank >= 8:
        assert [torch.cuda.device_count(), uuid_at(0)] == [1, str(uuid_of("dgx_h100", 8 + 3))]


def test_ranks_of_each_node_see_gpus_of_their_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with kernbench.simulate("dgx_h100", nodes=2) as ctx:
        ctx.multiprocessing.spawn(_on_the_second_node, nprocs=9)


def _amd(rank: int) -> None:
    assert torch.cuda.device_count() == 1
    assert uuid_at() == str(uuid_of(kernbench.topology.resolve_topology("mi300x").topology_obj.system.name, 4))


def test_a_program_on_amds_gpus(monkeypatch):
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "3,4")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    with kernbench.simulate("mi300x") as ctx:
        ctx.multiprocessing.spawn(_amd, nprocs=1)
