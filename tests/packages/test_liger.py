"""Every operation of ``liger-kernel``, forward and backward, through its public function."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("liger_kernel")

from tests.packages.liger_cases import CASES, Case


def prepared(values: tuple, dtype: torch.dtype) -> list:
    """Copies of the inputs in ``dtype``; what is floating point asks for a gradient."""
    return [
        v.to(dtype, copy=True).requires_grad_() if isinstance(v, torch.Tensor) and v.dtype == torch.float64 else v
        for v in values
    ]


def run(function, inputs: list, gradients: list | None) -> tuple[list, list, list]:
    """Outputs, the output gradients used, and the input gradients (None where nothing flows)."""
    outputs = function(*inputs)
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    leaves = [v for v in inputs if isinstance(v, torch.Tensor) and v.requires_grad]
    if gradients is None:
        gradients = [torch.randn_like(o) for o in outputs]
    values = [o.detach().clone() for o in outputs]
    flow = torch.autograd.grad(
        outputs, leaves, [g.to(o.dtype) for g, o in zip(gradients, outputs, strict=True)], allow_unused=True
    )
    return values, gradients, list(flow)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case, dtype, id=f"{case}-{str(dtype)[6:]}", marks=pytest.mark.long if case.is_slow else ())
        for case in CASES
        for dtype in case.dtypes
    ],
)
def test_forward_and_backward(case: Case, dtype: torch.dtype, monkeypatch):
    if case.asks_device:
        monkeypatch.setattr(f"{case.asks_device}.infer_device", lambda: "cuda")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=4))
    values = case.inputs()
    rounded = tuple(
        v.to(dtype).double() if isinstance(v, torch.Tensor) and v.dtype == torch.float64 else v for v in values
    )
    expected, gradients, expected_flow = run(case.formula, prepared(rounded, torch.float64), None)
    outputs, _, flow = run(case.operation, prepared(rounded, dtype), gradients)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype] * case.loosen
    for got, want in zip(outputs + flow, expected + expected_flow, strict=True):
        if want is None:
            assert got is None or not got.any()
            continue
        scale = max(1.0, want.abs().max().item())
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance * scale)
