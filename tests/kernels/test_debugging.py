"""What a kernel says while it runs, and what is said of a kernel that goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from kernbench.errors import KernbenchError, MemoryAccessError

pytestmark = pytest.mark.beyond_interpreter("these are the engine's own messages")


@triton.jit
def print_kernel(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.device_print("value", tl.load(x_ptr + tl.program_id(0) * N + i))
    tl.device_print("where", tl.program_id(0) * 1000)


def test_device_print_names_program_and_value(capfd):
    print_kernel[(2,)](torch.tensor([11, 22, 33, 44]), N=2)
    lines = capfd.readouterr().out.splitlines()
    assert len([line for line in lines if "value" in line]) == 4
    assert any("(1, 0, 0)" in line and "value" in line and "44" in line for line in lines)
    assert any("(1, 0, 0)" in line and "where" in line and "1000" in line for line in lines)


@triton.jit(debug=True)
def assert_kernel(x_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * N + tl.arange(0, N))
    tl.device_assert(x >= 0, "must not be negative")


def test_device_assert():
    assert_kernel[(2,)](torch.tensor([1, 2, 3, 4]), N=2)
    with pytest.raises(KernbenchError, match="must not be negative") as failure:
        assert_kernel[(2,)](torch.tensor([1, 2, 3, -4]), N=2)
    assert isinstance(failure.value, torch.AcceleratorError)  # as programs meet it on a GPU
    assert str(failure.value).startswith("CUDA error: device-side assert triggered\n")
    assert "(1, 0, 0)" in str(failure.value)
    assert "test_debugging.py" in str(failure.value)


@triton.jit
def beyond_kernel(x_ptr, out_ptr, n, SHIFT: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i + SHIFT, mask=i < n)  # outside
    tl.store(out_ptr + i, x, mask=i < n)


@pytest.mark.parametrize("shift", [1, -1, 1 << 20])
def test_out_of_bounds_load_names_program_and_line(shift):
    x, out = torch.zeros(60), torch.zeros(60)
    with pytest.raises(MemoryAccessError) as failure:
        beyond_kernel[(4,)](x, out, 60, SHIFT=shift, N=16)
    message = str(failure.value)
    assert "beyond_kernel" in message
    line = next(k for k, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# outside" in text)
    assert f"test_debugging.py:{line}" in message
    assert "60" in message  # the shape it should have stayed in


@triton.jit
def store_beyond_kernel(out_ptr, N: tl.constexpr):
    tl.store(out_ptr + tl.program_id(0) * N + tl.arange(0, N), 1.0)


def test_out_of_bounds_store_leaves_neighbours_alone():
    memory = torch.zeros(64)
    part = memory[:20].clone()
    with pytest.raises(MemoryAccessError):
        store_beyond_kernel[(2,)](part, N=16)
    assert (memory == 0).all()


@triton.jit
def null_kernel(table_ptr, out_ptr):
    tl.store(out_ptr, tl.load(tl.load(table_ptr).to(tl.pointer_type(tl.float32))))


@pytest.mark.parametrize("address", [0, 64, 1 << 47])
def test_wild_pointers_are_errors(address):
    with pytest.raises(MemoryAccessError, match="null_kernel"):
        null_kernel[(1,)](torch.tensor([address]), torch.zeros(1))


def test_the_engine_goes_on_after_an_error():
    out = torch.zeros(32)
    with pytest.raises(MemoryAccessError):
        store_beyond_kernel[(4,)](out, N=16)
    store_beyond_kernel[(2,)](out, N=16)
    assert (out == 1).all()
