"""Products of matrices as the package calls cuBLAS: operands plain or quantized, bias and GELU in the same kernel,
results added to what is there. Sums are in float32, and are rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.compiled_operators.transformer_engine.activations import CURVES
from kernbench.compiled_operators.transformer_engine.formats import StoredOperand
from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch
from kernbench.compiled_operators.transformer_engine.names import torch_format
from kernbench.compiled_operators.transformer_engine.quantizing import quantize, stored
from kernbench.cost.by_values import CallOperands, SeenOperand
from kernbench.cost.matrix_work import MatrixWork

Tensor = torch.Tensor


def _dimensions(a: SeenOperand, out: SeenOperand) -> tuple[int, int, int]:
    width = out.shape[-1] if out.shape else 1
    return out.elements // max(width, 1), width, a.elements // max(width, 1)


def _format(a: SeenOperand, how: str) -> str:
    """Of the engine: products of float32 are TF32 (``cublaslt_gemm.cu``: CUBLAS_COMPUTE_32F_FAST_TF32)."""
    return "fp8" if StoredOperand.of(how).kind else "tf32" if a.format == "fp32" else a.format


def _cost_of_product(operands: CallOperands) -> MatrixWork:
    a, out = operands["a"], operands["out"]
    return MatrixWork(
        (_dimensions(a, out),), _format(a, operands["how_a"]), out.format, operands["accumulate"], operands["exact"]
    )


_ISSUE = 8.5e-6
"""Seconds that a product of a group takes at least: of the package's loop of cuBLAS calls, measured (ADR 0190)."""


def _cost_of_group(operands: CallOperands) -> MatrixWork:
    """One after the other, as measured (ADR 0190)."""
    pairs = list(zip(operands["a"], operands["out"], strict=True))
    how = operands["how_a"][0]
    return MatrixWork(
        tuple(_dimensions(a, out) for a, out in pairs), _format(pairs[0][0], how), pairs[0][1].format,
        operands["accumulate"], operands["exact"], grouped=True, issue=_ISSUE,
    )  # fmt: skip


def _multiplied(
    a: Tensor,
    scale_a: Tensor | None,
    how_a: str,
    b: Tensor,
    scale_b: Tensor | None,
    how_b: str,
    transposed: Sequence[bool],
) -> Tensor:
    first = StoredOperand.of(how_a).matrix(a, scale_a)
    second = StoredOperand.of(how_b).matrix(b, scale_b)
    return (second.t() if transposed[1] else second) @ (first.t() if transposed[0] else first)


@kernel(
    """product(Tensor a, Tensor? scale_a, str how_a, Tensor b, Tensor? scale_b, str how_b, bool[] transposed, Tensor!
    out, Tensor? bias, Tensor(g!)? bias_grad, Tensor(p!)? gelu_in, bool gelu, bool grad, bool accumulate, bool exact,
    float alpha, float beta)""",
    cost=_cost_of_product,
)  # fmt: skip
def _product(
    a: Tensor, scale_a: Tensor | None, how_a: str, b: Tensor, scale_b: Tensor | None, how_b: str, transposed: list[bool],
    out: Tensor, bias: Tensor | None, bias_grad: Tensor | None, gelu_in: Tensor | None, gelu: bool, grad: bool,
    accumulate: bool, alpha: float, beta: float,
) -> None:  # fmt: skip
    found = alpha * _multiplied(a, scale_a, how_a, b, scale_b, how_b, transposed).view(out.shape)
    if bias is not None:
        found = found + bias.float()
    if gelu and gelu_in is not None:
        if grad:
            found = found * CURVES["gelu"][1](gelu_in.float()).view(found.shape)
        else:
            gelu_in.copy_(found)
            found = CURVES["gelu"][0](found)
    out.copy_(found + beta * out.float() if accumulate else found)
    if bias_grad is not None:
        bias_grad.copy_(StoredOperand.of(how_b).matrix(b, scale_b).sum(0))


@kernel(
    """grouped_product(Tensor[] a, Tensor[] scales_a, str[] how_a, Tensor[] b, Tensor[] scales_b, str[] how_b, bool[]
    transposed, Tensor(o!)[] out, Tensor(x!)[] bias, bool grad, bool accumulate, bool exact)""",
    cost=_cost_of_group,
)  # fmt: skip
def _grouped_product(
    a: list[Tensor], scales_a: list[Tensor], how_a: list[str], b: list[Tensor], scales_b: list[Tensor], how_b: list[str],
    transposed: list[bool], out: list[Tensor], bias: list[Tensor], grad: bool, accumulate: bool,
) -> None:  # fmt: skip
    for at, result in enumerate(out):
        found = _multiplied(a[at], scales_a[at], how_a[at], b[at], scales_b[at], how_b[at], transposed).view(
            result.shape
        )
        if bias and not grad:
            found = found + bias[at].float()
        result.copy_(found + result.float() if accumulate else found)
        if bias and grad:
            bias[at].copy_(StoredOperand.of(how_b[at]).matrix(b[at], scales_b[at]).sum(0))


def _width(tensor: torch.Tensor) -> int:
    return int(tensor.size()[-1])


def _shape(a: Any, transa: bool, b: Any, transb: bool) -> tuple[int, ...]:
    """Of the result: as of ``op(b) @ op(a)``."""
    sizes_a, sizes_b = tuple(a.size()), tuple(b.size())
    rows = (sizes_b[-1],) if transb else sizes_b[:-1]
    height = torch.Size(sizes_a[:-1]).numel()
    return (*rows, height if transa else sizes_a[-1])


def _operands(a: object, transa: bool, b: object, transb: bool) -> tuple[Any, ...]:
    """Data, scales and how they are stored, of both: by columns where a product of eight bits would read them transposed."""
    data_a, scale_a, how_a = stored(a, not transa)
    data_b, scale_b, how_b = stored(b, transb)
    return data_a, scale_a, str(how_a), data_b, scale_b, str(how_b)


def generic_gemm(
    A: object, transA: bool, B: Any, transB: bool, D: Any, quantizer: object, output_dtype: Any, bias: Tensor | None,
    bias_type: Any, gelu: bool, gelu_in: Tensor | None, grad: bool, workspace: Tensor, workspace_size: int,
    accumulate: bool, use_split_accumulator: bool, comm_overlap: Any = None, comm_type: Any = None,
    extra_output: Tensor | None = None, bulk_overlap: bool = False, alpha: float = 1.0, beta: float | None = None,
) -> list[Any]:  # fmt: skip
    """``op(B) @ op(A)``: the result, the gradient of the bias, what GELU was given, and no further output.

    ``grad``: the bias says that its gradient, sums of the columns of ``B``, is wanted, and GELU that the result is
    multiplied by its slope at ``gelu_in``.
    """
    if comm_overlap is not None:
        raise NotImplementedError(
            "The stand-in for transformer_engine has no products that overlap with communication."
        )
    first = A if isinstance(A, torch.Tensor) else B
    kind = torch_format(output_dtype) if output_dtype is not None else getattr(A, "_dtype", first.dtype)
    shape = _shape(A, transA, B, transB)
    operands = _operands(A, transA, B, transB)
    device = operands[0].device
    whole = D is None or quantizer is not None
    out = torch.empty(shape, dtype=kind, device=device) if whole else D
    bias_grad = pre = None
    if bias is not None and grad:
        bias_grad, bias = torch.empty(_width(B), dtype=out.dtype, device=device), None
    if gelu:
        pre = gelu_in if grad else torch.empty(shape, dtype=out.dtype, device=device)
    if operands[0].numel() and operands[3].numel():
        launch(
            "product", *operands, [transA, transB], out, bias, bias_grad, pre, gelu, grad, accumulate,
            use_split_accumulator, alpha, (1.0 if beta is None else beta) if accumulate else 0.0,
        )  # fmt: skip
    else:
        if not accumulate:
            out.zero_()
        if bias_grad is not None:
            bias_grad.zero_()
    result = out if quantizer is None else quantize(out, quantizer, D)
    return [result, bias_grad, pre if gelu and not grad else None, extra_output]


def te_general_grouped_gemm(
    A: Sequence[object], transa: bool, B: Sequence[object], transb: bool, D: Sequence[Tensor] | None, D_type: object,
    m_splits: Sequence[int], bias: Sequence[Tensor], bias_type: object, single_output: bool, pre_gelu_out: Sequence[Tensor],
    grad: bool, workspace: Sequence[Tensor], workspaceSize: int, accumulate: bool, use_split_accumulator: bool,
    math_sm_count: int,
) -> list[Tensor]:  # fmt: skip
    """The product of each group; results one after the other in one tensor (``single_output``), or each in its own. Returns the
    biases, which are their gradients where those are wanted."""
    if any(each.numel() for each in pre_gelu_out):
        raise NotImplementedError("The stand-in for transformer_engine has no GELU in products of groups.")
    shapes = [_shape(a, transa, b, transb) for a, b in zip(A, B, strict=True)]
    if D is None:
        device = stored(A[0])[0].device
        D = [torch.empty(shape, dtype=torch_format(D_type), device=device) for shape in shapes]
    elif single_output:
        whole, ends = D[0].view(-1), [0]
        for shape in shapes:
            ends.append(ends[-1] + torch.Size(shape).numel())
        D = [whole[ends[at] : ends[at + 1]].view(shape) for at, shape in enumerate(shapes)]
    groups, out, biases = [], [], []
    with_bias = bool(bias) and bias[0].numel() > 0
    for at, (a, b) in enumerate(zip(A, B, strict=True)):
        operands = _operands(a, transa, b, transb)
        if operands[0].numel() and operands[3].numel():
            groups.append(operands)
            out.append(D[at])
            biases += [bias[at]] if with_bias else []
        elif not accumulate and D[at].numel():
            D[at].zero_()
        if with_bias and grad and not operands[3].numel():
            bias[at].zero_()
    if groups:
        columns = [list(column) for column in zip(*groups, strict=True)]
        for at in (1, 4):
            columns[at] = [
                data if scale is None else scale for data, scale in zip(columns[at - 1], columns[at], strict=True)
            ]
        launch("grouped_product", *columns, [transa, transb], out, biases, grad, accumulate, use_split_accumulator)
    return list(bias)
