"""Kernels that a program compiles from CUDA C++: what stands in for them, or their bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kernbench
from kernbench.stand_ins import standing_in
from tests.stand_ins.on_gpu import on_gpu, operations_on_gpu

STAND_IN = """
from kernbench.compiled_operators import Operators
from kernbench.stand_ins import StandIn

operators = Operators("cuda_kernels", schemas=["scale(Tensor x, Tensor! out, float by, int count) -> ()"])


@operators.value
def scale(x, out, by, count):
    out.copy_(x * by)


stand_in = StandIn("cuda_kernels", "1", compiled={"cuda_kernels": "STANDS_IN:operators"})
"""


def compiled(name: str = "scale") -> Any:
    return torch.cuda._compile_kernel(f'extern "C" __global__ void {name}() {{}}', name)


def scaled(kernel: Any, **how: Any) -> torch.Tensor:
    x = torch.ones(1 << 20, device="cuda")
    out = torch.empty_like(x)
    kernel((4096, 1, 1), (256, 1, 1), (x, out, 3.0, x.numel()), **how)
    return out


def test_without_data_it_is_counted_by_its_bytes():
    (kernel,) = (each for each in operations_on_gpu(lambda: scaled(compiled("other"))) if "other" in each.name)
    assert kernel.duration > 2 * (4 << 20) / 3.4e12


def test_with_data_it_is_refused_in_words():
    with pytest.raises(kernbench.SpawnException, match=r"cuda_kernels::unknown.* has no values"):
        on_gpu(lambda: [scaled(compiled("unknown"))])


def test_what_stands_in_for_it_has_its_values(tmp_path: Path):
    file = tmp_path / "stands_in.py"
    file.write_text(STAND_IN.replace("STANDS_IN", str(file)))
    with standing_in([f"{file}:stand_in"]):
        found = on_gpu(lambda: [scaled(compiled()), scaled(compiled(), stream=torch.cuda.Stream())])
    for each in found:
        assert torch.equal(each, torch.full((1 << 20,), 3.0))


def too_large(kernel: Any) -> None:
    kernel.set_shared_memory_config(1 << 30)


def not_asked_for(kernel: Any) -> None:
    kernel(shared_mem=64 << 10)


def on_the_host(kernel: Any) -> None:
    kernel(args=[torch.ones(2)])


def of_no_type(kernel: Any) -> None:
    kernel(args=["3"])


@pytest.mark.parametrize(("call", "error", "words"), [
    (too_large, RuntimeError, "exceeds device limit"), (not_asked_for, RuntimeError, "only 32768 bytes configured"),
    (on_the_host, ValueError, "must be CUDA tensors"), (of_no_type, TypeError, "Unsupported argument type"),
])  # fmt: skip
def test_what_torch_refuses_is_refused(call: Callable[[Any], None], error: type[Exception], words: str):
    def worker(rank: int) -> None:
        kernel = compiled("refused")
        kernel.set_shared_memory_config(32 << 10)
        with pytest.raises(error, match=words):
            call(kernel)

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
