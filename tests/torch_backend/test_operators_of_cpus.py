"""What torch has for CPUs alone, or does otherwise on a GPU, is refused or done so on a simulated GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kernbench
from kernbench.torch_backend.gpu.kernels.refusals import _OF_CPUS

HEADERS = Path(torch.__file__).parent / "include/ATen/ops"


def test_they_are_those_of_torchs_headers() -> None:
    for name in _OF_CPUS:
        assert (HEADERS / f"{name}_cpu_dispatch.h").exists() or not hasattr(torch.ops.aten, name)
        assert not (HEADERS / f"{name}_cuda_dispatch.h").exists()


@pytest.mark.parametrize("data", [True, False])
def test_they_are_refused_on_a_gpu_alone(data: bool) -> None:
    host = torch.ones(4)
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        assert torch.histogram(host, 2).hist.tolist() == [0, 4]
        for call in (lambda x: torch.histogram(x, 2), lambda x: torch.histogramdd(x[:, None], [2])):
            with pytest.raises(NotImplementedError, match="from the 'CUDA' backend"):
                call(host.cuda())


def test_least_squares_are_by_gels() -> None:
    matrix, right = torch.eye(3)[:, :2], torch.ones(3, 1)
    with kernbench.simulated_gpu("dgx_h100"):
        found = torch.linalg.lstsq(matrix.cuda(), right.cuda())
        assert found.solution.tolist() == [[1], [1]]
        assert found.rank.numel() == 0
        assert torch.linalg.lstsq(matrix, right).rank.item() == 2
        with pytest.raises(RuntimeError, match="`driver` other than `gels` is not supported on CUDA"):
            torch.linalg.lstsq(matrix.cuda(), right.cuda(), driver="gelsd")
