"""``deep_gemm`` 2: products of eight and sixteen bits, plain and of groups, on kernels by definition.

It is on no package index, and compiles its kernels when they are called. What is not here: attention's logits, einsum,
products of groups along the inner dimension, weights of four bits, layouts by sums, the fused experts ("mega").
"""

from __future__ import annotations

import importlib

import torch

from . import utils as utils
from .utils import *  # noqa: F403

__version__ = "2.6.1"

Tensor = torch.Tensor
Scaled = tuple[Tensor, Tensor]
"""Numbers in eight bits, and their scales."""

_SMS: dict[int, int] = {}


def get_num_sms() -> int:
    """How many multiprocessors kernels may use; it is kept, and changes nothing here."""
    device = torch.cuda.current_device()
    return _SMS.get(device) or int(torch.cuda.get_device_properties(device).multi_processor_count)


def set_num_sms(new_num_sms: int) -> None:
    """See :func:`get_num_sms`."""
    _SMS[torch.cuda.current_device()] = new_num_sms


def _launch(name: str, *args: object) -> None:
    importlib.import_module("deep_gemm._kernels").launch(name, *args)


def _parts(given: object, turned: bool) -> tuple[Tensor, Tensor | None]:
    stored, scales = given if isinstance(given, tuple | list) else (given, None)
    if not turned:
        return stored, scales
    return stored.transpose(-1, -2), None if scales is None else scales.transpose(-1, -2)


def _multiply(a: object, b: object, d: Tensor, c: Tensor | None, turned: tuple[bool, bool]) -> None:
    if c is not None and c.data_ptr() != d.data_ptr():
        d.copy_(c)
    _launch("product", *_parts(a, turned[0]), *_parts(b, turned[1]), c is not None, d)


def fp8_gemm_nt(
    a: Scaled, b: Scaled, d: Tensor, c: Tensor | None = None, recipe: object = None, recipe_a: object = None,
    recipe_b: object = None, compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
) -> None:  # fmt: skip
    """``d = c + a [m, k] @ b[n, k].T``."""
    _multiply(a, b, d, c, (False, False))


def fp8_gemm_nn(
    a: Scaled, b: Scaled, d: Tensor, c: Tensor | None = None, recipe: object = None, recipe_a: object = None,
    recipe_b: object = None, compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
) -> None:  # fmt: skip
    """``d = c + a [m, k] @ b [k, n]``."""
    _multiply(a, b, d, c, (False, True))


def bf16_gemm_nt(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "nk") -> None:
    """``d = c + a [m, k] @ b[n, k].T``."""
    _multiply(a, b, d, c, (False, False))


def bf16_gemm_nn(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "nk") -> None:
    """``d = c + a [m, k] @ b [k, n]``."""
    _multiply(a, b, d, c, (False, True))


def _of_rows(a: object, b: object, d: Tensor, groups: Tensor, turned: bool, by_sums: bool) -> None:
    if by_sums:
        raise NotImplementedError(
            "the stand-in for deep_gemm takes each row's group, no layout by sums (use_psum_layout)"
        )
    _launch("rows_of_groups", *_parts(a, False), *_parts(b, turned), groups, d)


def m_grouped_fp8_gemm_nt_contiguous(
    a: Scaled, b: Scaled, d: Tensor, grouped_layout: Tensor, recipe: object = None, recipe_a: object = None,
    recipe_b: object = None, compiled_dims: str = "nk", disable_ue8m0_cast: bool = False, use_psum_layout: bool = False,
    ensure_zero_padding: bool = True, expected_m_for_psum_layout: int | None = None,
) -> None:  # fmt: skip
    """Each row of ``a [m, k]`` with the matrix of its group, of ``b [groups, n, k]``; -1: a row that is padding."""
    _of_rows(a, b, d, grouped_layout, False, use_psum_layout)


def m_grouped_fp8_gemm_nn_contiguous(
    a: Scaled, b: Scaled, d: Tensor, grouped_layout: Tensor, recipe: object = None, recipe_a: object = None,
    recipe_b: object = None, compiled_dims: str = "nk", disable_ue8m0_cast: bool = False, use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
) -> None:  # fmt: skip
    """The same with ``b [groups, k, n]``."""
    _of_rows(a, b, d, grouped_layout, True, use_psum_layout)


def m_grouped_bf16_gemm_nt_contiguous(
    a: Tensor, b: Tensor, d: Tensor, grouped_layout: Tensor, compiled_dims: str = "nk", use_psum_layout: bool = False,
    ensure_zero_padding: bool = True, expected_m_for_psum_layout: int | None = None,
) -> None:  # fmt: skip
    """Each row of ``a [m, k]`` with the matrix of its group, of ``b [groups, n, k]``; -1: a row that is padding."""
    _of_rows(a, b, d, grouped_layout, False, use_psum_layout)


def m_grouped_fp8_gemm_nt_masked(
    a: Scaled, b: Scaled, d: Tensor, masked_m: Tensor, expected_m: int, recipe: object = None, recipe_a: object = None,
    recipe_b: object = None, compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
) -> None:  # fmt: skip
    """The first ``masked_m[g]`` rows of each group: ``a [groups, m, k]``, ``b [groups, n, k]``."""
    _launch("first_rows", *_parts(a, False), *_parts(b, False), masked_m, expected_m, d)


def m_grouped_bf16_gemm_nt_masked(
    a: Tensor, b: Tensor, d: Tensor, masked_m: Tensor, expected_m: int, compiled_dims: str = "nk"
) -> None:
    """The same in sixteen bits."""
    _launch("first_rows", *_parts(a, False), *_parts(b, False), masked_m, expected_m, d)


fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked
bf16_m_grouped_gemm_nt_masked = m_grouped_bf16_gemm_nt_masked


def transform_sf_into_required_layout(
    sf: Tensor, mn: int, k: int, recipe: object = None, num_groups: int | None = None, is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
) -> Tensor:  # fmt: skip
    """Scales as they are: kernels here take any layout."""
    return sf
