"""What torch is set to in the user's program does not reach into the computation of a kernel (ADR 0027)."""

from __future__ import annotations

from contextlib import contextmanager, suppress

import pytest
import torch
import triton
import triton.language as tl
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.torch_backend.modes import plain_torch


@triton.jit
def busy_kernel(x_ptr, y_ptr, out_ptr, scale_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.5)
    square = tl.reshape(x, (BLOCK // 16, 16))
    gram = tl.dot(square, tl.trans(square))
    total = tl.sum(tl.exp(gram * 0.01) * tl.sqrt(tl.abs(gram))) + tl.load(scale_ptr)
    tl.store(out_ptr + i, x * tl.load(y_ptr + i, mask=i < n) + tl.cumsum(x, 0) + total, mask=i < n)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(torch.float32)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": deterministic,
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype float16": lambda: default_dtype(torch.float16),
    "default device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("name", MODES)
def test_values_are_those_without_the_mode(name):
    x, y, scale = torch.randn(1000), torch.randn(1000, requires_grad=True), torch.ones(1)
    inside, outside = torch.zeros(1000), torch.zeros(1000)
    n = 1000 - 8 * (1 + list(MODES).index(name))  # a launch that was not made before, so that nothing of it is kept
    with MODES[name]():
        busy_kernel[(4,)](x, y, inside, scale, n, BLOCK=256)
    busy_kernel[(4,)](x, y, outside, scale, n, BLOCK=256)
    assert torch.equal(inside, outside)
    inside += 1  # still an ordinary tensor


def test_tensors_made_in_inference_mode():
    with torch.inference_mode():
        x, y, scale, out = torch.randn(1000), torch.randn(1000), torch.ones(1), torch.zeros(1000)
        busy_kernel[(4,)](x, y, out, scale, 1000, BLOCK=256)
        first = out.clone()
        out.zero_()
    busy_kernel[(4,)](x, y, out, scale, 1000, BLOCK=256)
    assert torch.equal(first, out)


class SeenByDispatch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class SeenByFunction(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_see_questions_about_arguments_only():
    """As on a GPU, where the launcher asks every tensor for its address."""
    x, y, out, scale = torch.randn(1000), torch.randn(1000), torch.zeros(1000), torch.ones(1)
    with SeenByDispatch() as dispatched, SeenByFunction() as called:
        busy_kernel[(4,)](x, y, out, scale, 700, BLOCK=256)
    assert dispatched.names == []
    assert called.names <= {"__get__", "data_ptr", "untyped_storage"}


def test_guards_of_torch():
    """What :mod:`kernbench.torch_backend.modes` relies on: both guards, nested, and undone by an error."""
    x = torch.ones(3)
    with SeenByDispatch() as dispatched, SeenByFunction() as called:
        with suppress(ZeroDivisionError), plain_torch(), plain_torch():
            x.add(1).mul(2)
            raise ZeroDivisionError
        assert (dispatched.names, called.names) == ([], set())
        x.add(1)
    assert len(dispatched.names) == 1
    assert called.names == {"add"}
