"""NVML in ranks, by its C functions, as ``nvidia-ml-py`` calls them; what children of ranks find."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import uuid

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench import simulated_gpu

BOTH = pytest.mark.parametrize("isolation", ["carrier", "process"])


class Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Pci(ctypes.Structure):
    """``nvmlPciInfo_t``."""

    _fields_ = [
        ("busIdLegacy", ctypes.c_char * 16), *((name, ctypes.c_uint) for name in ("domain", "bus", "device")),
        *((name, ctypes.c_uint) for name in ("pciDeviceId", "pciSubSystemId")), ("busId", ctypes.c_char * 32),
    ]  # fmt: skip


def text_of(function, *handle):
    buffer = ctypes.create_string_buffer(96)
    assert function(*handle, buffer, ctypes.c_uint(96)) == 0
    return buffer.value.decode()


def test_it_lists_the_gpus_of_the_node():
    with simulated_gpu("dgx_h100"):
        held = torch.ones(1 << 20, device="cuda")
        library = ctypes.CDLL("libnvidia-ml.so.1")
        assert library.nvmlInit_v2() == 0
        count, handle, memory, pci = ctypes.c_uint(), ctypes.c_void_p(), Memory(), Pci()
        assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        assert count.value == 8
        assert library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(0), ctypes.byref(handle)) == 0
        assert text_of(library.nvmlDeviceGetName, handle) == torch.cuda.get_device_name(0)
        mine = text_of(library.nvmlDeviceGetUUID, handle)
        assert mine == f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        assert uuid.UUID(mine[4:])
        assert library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        assert (memory.free, memory.total) == torch.cuda.mem_get_info(0)
        assert memory.used == memory.total - memory.free > held.nbytes
        assert library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) == 0
        assert pci.bus == torch.cuda.get_device_properties(0).pci_bus_id
        other, number = ctypes.c_void_p(), ctypes.c_uint()
        assert library.nvmlDeviceGetHandleByPciBusId_v2(pci.busId, ctypes.byref(other)) == 0
        assert other.value == handle.value
        assert library.nvmlDeviceGetIndex(other, ctypes.byref(number)) == 0
        assert number.value == 0
        major, minor = ctypes.c_int(), ctypes.c_int()
        assert library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
        assert (major.value, minor.value) == torch.cuda.get_device_capability()


def test_all_cpus_and_all_memory_of_the_host_are_near_every_gpu():
    with simulated_gpu("dgx_h100"):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        handle, words = ctypes.c_void_p(), (os.cpu_count() or 1) // 64 + 1
        assert library.nvmlDeviceGetHandleByIndex_v2(3, ctypes.byref(handle)) == 0
        for name, scope, near in (
            ("nvmlDeviceGetCpuAffinity", (), os.cpu_count()),
            ("nvmlDeviceGetCpuAffinityWithinScope", (ctypes.c_uint(1),), os.cpu_count()),
            ("nvmlDeviceGetMemoryAffinity", (ctypes.c_uint(0),), 1),
        ):
            mask = (ctypes.c_ulong * words)(*[-1] * words)
            assert getattr(library, name)(handle, words, ctypes.byref(mask), *scope) == 0
            assert sum(each << 64 * place for place, each in enumerate(mask)) == (1 << near) - 1
            assert getattr(library, name)(handle, 0, ctypes.byref(mask), *scope) == 7
        assert library.nvmlDeviceSetCpuAffinity(handle) == library.nvmlDeviceClearCpuAffinity(handle) == 0


def test_what_it_does_not_know_is_an_error_of_its_own():
    with simulated_gpu("dgx_h100"):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        handle, rates = ctypes.c_void_p(), (ctypes.c_uint * 2)()
        assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
        assert library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 3
        assert library.nvmlErrorString(3) == b"Not Supported"
        assert library.nvmlDeviceGetHandleByIndex_v2(8, ctypes.byref(handle)) == 2
        assert library.nvmlDeviceGetHandleByUUID(b"GPU-none", ctypes.byref(handle)) == 6
        assert library.nvmlSystemGetDriverVersion(ctypes.create_string_buffer(2), ctypes.c_uint(2)) == 7
        with pytest.raises(AttributeError, match="undefined symbol"):
            library.cuInit  # noqa: B018


def test_after_the_simulation_the_machines_own_library_answers():
    with simulated_gpu("dgx_h100"):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        assert library.nvmlInit_v2() == 0
    try:
        own = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        assert library.nvmlInit_v2() == 12
        assert library.nvmlErrorString(12) == b"NVML Shared Library Not Found"
    else:
        assert library.nvmlInit_v2() == own.nvmlInit_v2()


def test_systems_of_another_maker_have_none():
    with simulated_gpu("mi300x"):
        assert shutil.which("nvidia-smi") == shutil.which("nvidia-smi", path=os.defpath)


def print_to(path):
    """In a process of its own."""
    with open(path, "w") as file:
        file.write(f"{os.environ['RANK']} {os.environ['OWN']}")


@pytest.mark.long  # seconds
@BOTH
def test_children_of_ranks_have_their_variables_and_find_their_gpus(isolation, tmp_path):
    def body(rank):
        dist.init_process_group("nccl")
        os.environ["OWN"] = f"own {rank}"
        held = torch.ones((1 + rank) << 20, device="cuda")
        dist.barrier()
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={rank}"]
        lines = [
            subprocess.check_output("echo $RANK $OWN", shell=True, text=True).strip(),
            os.popen("echo $RANK $OWN").read().strip(),
            subprocess.check_output(query, text=True).strip(),
            subprocess.check_output(query, env={"PATH": os.environ["PATH"]}, text=True).strip(),
            str((lambda free, total: (total - free) >> 20)(*torch.cuda.mem_get_info())),
        ]
        context = multiprocessing.get_context("spawn")
        child = context.Process(target=print_to, args=(str(tmp_path / f"spawned{rank}"),))
        child.start()
        child.join()
        os.system(f"echo $RANK $OWN > {tmp_path}/system{rank}")
        (tmp_path / str(rank)).write_text("\n".join(lines))
        assert held.numel()

    before = dict(os.environ)
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2, isolation=isolation)
    assert dict(os.environ) == before
    assert subprocess.check_output("echo $OWN", shell=True, text=True) == "\n"
    for rank in range(2):
        shell, popen, used, with_env, told = (tmp_path / str(rank)).read_text().splitlines()
        assert shell == popen == f"{rank} own {rank}"
        assert (tmp_path / f"system{rank}").read_text() == f"{rank} own {rank}\n"
        assert (tmp_path / f"spawned{rank}").read_text() == f"{rank} own {rank}"
        assert used == with_env == told


def test_a_program_that_is_a_rank_where_it_stands_finds_them_and_its_path_is_put_back():
    before = os.environ["PATH"]
    with simulated_gpu("dgx_h100"):
        assert shutil.which("nvidia-smi")
        assert "NVIDIA H100" in subprocess.check_output(["nvidia-smi"], text=True)
    assert os.environ["PATH"] == before
