"""``torch.autocast`` applies to the tensors of its device, by that device's policies."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import kernbench
from kernbench.torch_backend.gpu.kernels import autocasting

HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
HALF, WIDE = torch.float16, torch.float32


def _listed(macro: str) -> set[str]:
    """The operators of a macro of ATen/autocast_mode.h."""
    text = HEADER.read_text().partition(f"#define {macro}(_)")[2].partition("\n\n")[0]
    named = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", text)
    redispatched = re.findall(r'"([\w.]+)"', text)
    return {f"{name}.{overload}" if overload else name for name, overload in named} | set(redispatched)


def test_policies_are_those_of_torch() -> None:
    ours: dict[str, Callable[..., object]] = autocasting.policies()
    by_policy = {
        "AT_FORALL_LOWER_PRECISION_FP": {autocasting._lower},
        "AT_FORALL_FP32": {autocasting._in_32_bits},
        "AT_FORALL_FP32_SET_OPT_DTYPE": {autocasting._by_dtype, autocasting._by_a_cast, autocasting._softmax},
        "AT_FORALL_PROMOTE": {autocasting._promoted},
    }
    redispatched = _listed("AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE")
    assert redispatched == {"norm.Scalar", "norm.ScalarOpt_dim"}
    for macro, policies in by_policy.items():
        mine = {name for name, policy in ours.items() if policy in policies}
        assert mine - redispatched - {"cudnn_convolution", "cudnn_convolution_transpose"} == _listed(macro), macro
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    known = torch._C._dispatch_get_all_op_names()
    with_policy = {name[6:] for name in known if name.startswith("aten::") and has_kernel(name, "AutocastCUDA")}
    assert set(ours) == with_policy - {
        "_cudnn_rnn"
    }  # builds for CUDA have it, of layers that cast their operands themselves


def test_autocast_is_of_one_device() -> None:
    host = torch.ones(2, 2)
    with kernbench.simulated_gpu("dgx_h100"):
        gpu = host.cuda()

        def dtypes() -> tuple[torch.dtype, torch.dtype]:
            return (host @ host).dtype, (gpu @ gpu).dtype

        with torch.autocast("cuda"):
            assert dtypes() == (WIDE, HALF)
            assert (torch.is_autocast_enabled(), torch.is_autocast_enabled("cpu")) == (True, False)
            with torch.autocast("cpu"):
                assert dtypes() == (torch.bfloat16, HALF)
                assert torch.is_autocast_enabled("cpu")
                with torch.autocast("cuda", enabled=False):
                    assert dtypes() == (torch.bfloat16, WIDE)
            assert dtypes() == (WIDE, HALF)
        with torch.autocast("cpu"):
            assert dtypes() == (torch.bfloat16, WIDE)
        assert dtypes() == (WIDE, WIDE)
    with torch.autocast("cpu"):
        assert (host @ host).dtype is torch.bfloat16


def test_cuda_takes_any_dtype() -> None:
    with kernbench.simulated_gpu("dgx_h100"), torch.autocast("cuda", dtype=WIDE):
        x = torch.ones(2, 2, device="cuda", dtype=HALF)
        assert torch.is_autocast_enabled()
        assert (x @ x).dtype is WIDE


@pytest.mark.parametrize("no_data", [False, True])
@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda x, y: torch.dot(x[0], y[0]), WIDE),
        (lambda x, y: torch.addcmul(x, x, y), WIDE),
        (lambda x, y: torch.einsum("ij,ij->ij", x, y), HALF),
        (lambda x, y: torch.mv(y, y[0]), HALF),
        (lambda x, y: F.rms_norm(x, (2,)), WIDE),
        (lambda x, y: F.interpolate(x[None, None], scale_factor=2), WIDE),
        (lambda x, y: torch.cumsum(x, 0), WIDE),
        (lambda x, y: torch.sum(x, 0, dtype=HALF), HALF),
        (lambda x, y: torch.linalg.vector_norm(x), WIDE),
        (lambda x, y: torch.norm(x, dim=0), WIDE),
        (lambda x, y: torch.quantile(y, 0.5), WIDE),
        (lambda x, y: F.pad(x, (1, 1), "reflect"), HALF),
    ],
)  # fmt: skip
def test_results_are_of_cudas_dtypes(
    operation: Callable[..., torch.Tensor], expected: torch.dtype, no_data: bool
) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=not no_data), torch.autocast("cuda"):
        y = torch.ones(2, 2, device="cuda")
        assert operation(y.half(), y).dtype is expected


def test_what_is_unsafe_is_refused_on_a_gpu_alone() -> None:
    host = torch.full((2,), 0.5)
    with kernbench.simulated_gpu("dgx_h100"), torch.autocast("cuda"), torch.autocast("cpu"):
        assert F.binary_cross_entropy(host, host).dtype is WIDE
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(host.cuda(), host.cuda())


@pytest.mark.parametrize("reduce", [torch.sum, torch.prod, torch.linalg.vector_norm, torch.norm])
def test_a_reduction_makes_no_wide_copy(reduce: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=False), torch.autocast("cuda"):
        x = torch.ones(1 << 20, device="cuda", dtype=HALF)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        assert reduce(x).dtype is WIDE
        assert torch.cuda.max_memory_allocated() - before < x.nbytes
