"""Workspaces of cuBLAS: sizes as torch reads them from the environment, and when they are allocated.

Figures of the program are those of an H100 80GB HBM3 (torch 2.11.0+cu130, driver 580.159.04), to the byte.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import kernbench
from kernbench.memory.workspaces import Workspaces
from kernbench.trace.memory_report import memory_of_ranks


@pytest.mark.parametrize(
    ("arch", "environ", "expected"),
    [
        (90, {}, (33_554_432, 1_048_576)),
        (100, {}, (33_554_432, 1_048_576)),
        (120, {}, (33_554_432, 1_048_576)),
        (80, {}, (8_519_680, 1_048_576)),
        ("gfx942", {}, (134_217_728, 76 << 20)),
        ("gfx90a", {"HIPBLAS_WORKSPACE_CONFIG": ":1024:1"}, (1 << 20, 76 << 20)),
        (90, {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}, (8_519_680, 1_048_576)),
        (90, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, (33_554_432, 1_048_576)),
        (90, {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}, (0, 1_048_576)),
        (90, {"CUBLAS_WORKSPACE_CONFIG": "nonsense", "CUBLASLT_WORKSPACE_SIZE": "64"}, (33_554_432, 65_536)),
        (90, {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}, (33_554_432, 0)),
    ],
)
def test_sizes(arch, environ, expected):
    found = Workspaces.of(arch, environ)
    assert (found.blas, found.lt) == expected


def _memory():
    return [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]


def _products():
    """What is allocated and reserved after each of a program's products."""
    found = {}
    kept = torch.zeros(1, device="cuda")  # noqa: F841
    a, b = (torch.randn(256, 256, device="cuda") for _ in range(2))
    found["operands"] = _memory()
    c = a @ b
    found["fp32"] = _memory()
    c = a.bfloat16() @ b.bfloat16()
    found["bf16"] = _memory()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        c = a @ b
    found["another stream"] = _memory()
    torch.cuda.synchronize()
    layer = nn.Linear(256, 256, device="cuda")
    c = layer(a)
    found["with bias"] = _memory()
    c = layer(a)
    found["again"] = _memory()
    del a, b, c, layer, stream
    torch.cuda.empty_cache()
    found["emptied"] = _memory()
    return found


ON_AN_H100 = {
    "operands": [524_800, 2_097_152],
    "fp32": [34_341_376, 35_651_584],
    "bf16": [34_210_304, 35_651_584],
    "another stream": [67_895_808, 71_303_168],
    "with bias": [69_207_552, 73_400_320],
    "again": [69_207_552, 73_400_320],
}


@pytest.mark.parametrize(
    ("data", "isolation"),
    [(True, "carrier"), (False, "carrier"), pytest.param(True, "process", marks=pytest.mark.long)],
)
def test_a_product_allocates_its_streams_workspace(tmp_path, data, isolation):
    told = tmp_path / "told"
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(_tells, (str(told),), nprocs=1, isolation=isolation)
    found = json.loads(told.read_text())
    emptied = found.pop("emptied")
    assert found == ON_AN_H100
    assert emptied[0] == 512 + 2 * 33_554_432 + 1_048_576


def _tells(rank, told):
    Path(told).write_text(json.dumps(_products()))


def _backward():
    """Bytes in use before and after a backward pass, after a second one, and when workspaces are cleared."""
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    y = (x @ x).sum()
    found = [torch.cuda.memory_allocated()]
    for _ in range(2):
        torch.autograd.grad(y, x, retain_graph=True)
        found.append(torch.cuda.memory_allocated())
    torch._C._cuda_clearCublasWorkspaces()
    return [*(each - found[0] for each in found[1:]), torch.cuda.memory_allocated() - found[0]]


@pytest.mark.parametrize("data", [True, False])
def test_the_backward_pass_has_a_thread_of_its_own(data):
    found = []
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(lambda rank: found.append(_backward()), nprocs=1)
        (memory,) = memory_of_ranks(ctx.simulation)
    assert found == [[33_554_432, 33_554_432, -33_554_432]]
    assert memory.composition.categories["workspaces"] == 2 * 33_554_432
    assert memory.overhead == {"CUDA context": 755 << 20}


def test_each_stream_gets_one_where_the_plan_is_known():
    """The bare path, too: the same product on a stream that has not multiplied yet."""
    with kernbench.simulated_gpu("dgx_h100"):
        a = torch.ones(64, 64, device="cuda")
        for _ in range(3):
            a @ a
        before = torch.cuda.memory_allocated()
        for _ in range(2):
            with torch.cuda.stream(torch.cuda.Stream()):
                a @ a
        assert torch.cuda.memory_allocated() == before + 2 * 33_554_432


def test_a_program_may_do_without(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with kernbench.simulated_gpu("dgx_h100"):
        a = torch.ones(64, 64, device="cuda")
        a @ a
        assert torch.cuda.memory_allocated() <= 2 * 64 * 64 * 4


def test_a_workspace_for_which_there_is_no_room_is_out_of_memory():
    with kernbench.simulated_gpu("dgx_h100", memory_limit=16 << 20):
        a = torch.ones(64, 64, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 32\.00 MiB"):
            a @ a


def test_what_has_ended_keeps_none():
    with kernbench.simulate("dgx_h100") as ctx:
        for _ in range(2):
            ctx.multiprocessing.spawn(lambda rank: _products(), nprocs=1)
        opened = [each for each in ctx.simulation.memories.opened if each.host.rank == 0]
        assert len(opened) == 1
        assert opened[0].allocator.allocated == 2 * 33_554_432 + 1_048_576
