"""Every operator of torch's own samples runs in every format that CUDA takes, with the values of a wider one.

What a CPU takes in a format that CUDA does not is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import kernbench
from tests.torch_samples import operators

SHARDS = 12
QUICK = ("sum", "exp", "abs", "mm", "nansum", "lerp", "polygamma", "nn.functional.avg_pool3d", "nn.functional.avg_pool2d",
         "nn.functional.max_pool2d", "addbmm", "igamma", "nn.functional.conv2d", "amax", "pow", "trace", "histc",
         "nn.functional.bilinear", "nn.functional.rms_norm")  # fmt: skip
"""Of each kind one, and those that were wrong once: for every change."""

WIDE = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex64: torch.complex128, torch.complex32: torch.complex128,
}  # fmt: skip
FORMATS = (*WIDE, torch.int64, torch.bool, torch.uint8)
CLOSE = {torch.float32: 1e-3, torch.complex64: 1e-3, torch.float16: 2e-2, torch.complex32: 5e-2, torch.bfloat16: 1e-1}

NOT_HERE = {
    "jiterator": "compiles CUDA C++",
    "fft.": "16 bits: C++ refuses them before an operator is called",
    "sparse.": "CSR tensors have no storage that a GPU's memory could be noted with",
    "torch.ops.aten._flash_attention_forward": "CUDA's own operator: programs call the function",
    "torch.ops.aten._efficient_attention_forward": "CUDA's own operator: programs call the function",
    "histogram": "is on neither",
    "nn.functional.conv": "complex numbers of 16 bits are composed of products that a CPU has none of",
}
"""Operators, by what their names begin with, that do not run in all of CUDA's formats, and why."""

OTHER_VALUES = (
    "empty", "rand", "dropout", "bernoulli", "multinomial", "normal", "exponential", "cauchy", "geometric", "uniform",
    "log_normal", "linalg.eig", "linalg.svd", "linalg.qr", "linalg.lu", "svd", "qr", "geqrf", "pca_lowrank", "svd_lowrank",
    "lu", "ormqr", "linalg.householder", "linalg.ldl", "linalg.pinv", "linalg.lstsq", "pinverse",
    "nn.functional.fractional", "nn.functional.rrelu", "nn.functional.feature_alpha", "matrix_exp", "linalg.matrix_exp",
    "polygamma", "nn.functional.soft_margin_loss", "grid_sampler", "nn.functional.grid_sample", "nn.functional.multi_head",
    "nn.functional.scaled_dot", "linalg.cond", "linalg.matrix_rank", "nn.functional.nll", "logit", "special.", "digamma",
    "mvlgamma", "lgamma", "resize", "as_strided", "to_sparse", "new_", "nn.functional.embedding_bag", "addbmm", "pow",
    "float_power", "floor_divide", "remainder", "fmod", "div.floor", "div.trunc", "round", "frac", "sgn",
)  # fmt: skip
"""Operators whose values are drawn, not unique, or leap where 16 bits round; they are run, and not compared."""


def _samples(op: Any, format: torch.dtype) -> list[Any]:
    try:
        return list(islice(op.sample_inputs("cpu", format), 2))
    except Exception:  # torch makes none of this format
        return []


def _operators(names: Iterable[str] = ()) -> Iterator[tuple[str, Any]]:
    for op in operators():
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if (not names or op.name in names) and not any(op.name.startswith(each) for each in ("jiterator",)):
            yield name, op


def _to_gpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cuda()
    return "cuda" if value == "cpu" or value == torch.device("cpu") else value


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return value.to(WIDE.get(value.dtype, value.dtype))
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def _called(op: Any, sample: Any, change: Any) -> Any:
    first, args, kwargs = tree_map(change, (sample.input, sample.args, sample.kwargs))
    return op(first, *args, **kwargs)


def _differs(name: str, op: Any, sample: Any, format: torch.dtype, found: Any) -> str:
    if any(name.startswith(each) or op.name.startswith(each) for each in OTHER_VALUES):
        return ""
    try:
        wanted = _called(op, sample, _widened)
    except Exception:  # there is no wider one
        return ""
    for mine, other in zip(tree_leaves(found), tree_leaves(wanted), strict=False):
        if not (isinstance(mine, torch.Tensor) and mine.dtype in CLOSE and mine.layout is torch.strided):
            continue
        close = CLOSE[mine.dtype]
        try:
            torch.testing.assert_close(
                mine.detach().cpu().to(other.dtype), other.detach(), rtol=close, atol=close * 2, equal_nan=True
            )
        except AssertionError as error:
            return str(error).replace("\n", " ")[:120]
    return ""


def _faults(operators: Iterable[tuple[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, op in operators:
        cuda, host = set(op.dtypesIfCUDA), set(op.dtypes)
        for format in FORMATS:
            if format not in cuda | host:
                continue
            for sample in _samples(op, format):
                try:
                    result = _called(op, sample, _to_gpu)
                except Exception as error:
                    if format in cuda and not any(op.name.startswith(each) for each in NOT_HERE):
                        found[f"{name} {format}"] = f"raises {type(error).__name__}: {str(error)[:100]}"
                    break
                if format not in cuda and not any(op.name.startswith(each) for each in ALLOWED):
                    found[f"{name} {format}"] = "is not refused"
                    break
                difference = _differs(name, op, sample, format, result)
                if difference:
                    found[f"{name} {format}"] = difference
                    break
    return found


ALLOWED = ("native_dropout_backward", "scatter_reduce", "torch.ops.aten", "_scaled_mm", "angle", "histc", "norm", "einsum",
           "addbmm", "fft.", "nn.functional.local_response_norm", "nn.functional.avg_pool1d", "histogram", "inner",
           "tensordot")  # fmt: skip
"""Operators that torch's table says CUDA has no format of, without asking a kernel: those are not refused here."""


def _on_a_gpu(operators: Iterable[tuple[str, Any]]) -> dict[str, str]:
    faults: dict[str, str] = {}

    def body(rank: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            faults.update(_faults(operators))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    return faults


def test_operators_of_each_kind_run_in_cudas_formats() -> None:
    assert _on_a_gpu(_operators(QUICK)) == {}


@pytest.mark.long
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_operator_runs_in_cudas_formats(shard: int) -> None:
    assert _on_a_gpu(islice(_operators(), shard, None, SHARDS)) == {}
