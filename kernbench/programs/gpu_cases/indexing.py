"""Rows and elements by index, sorts and samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from kernbench.programs.gpu_cases.inputs import Call, Case, random


class Indexed(NamedTuple):
    """What they are of: a matrix, its rows in another order, a row for each element, and a matrix that is written."""

    x: Tensor
    rows: Tensor
    each: Tensor
    out: Tensor


INDEXING: dict[str, Callable[[Indexed], Any]] = {
    "index": lambda of: of.x[of.rows],
    "index_select": lambda of: of.x.index_select(0, of.rows),
    "gather": lambda of: of.x.gather(0, of.each),
    "scatter": lambda of: of.out.scatter(0, of.each, of.x),
    "scatter_add_": lambda of: of.out.scatter_add_(0, of.each, of.x),
    "index_add_": lambda of: of.out.index_add_(0, of.rows, of.x),
    "index_put_": lambda of: of.out.index_put_((of.rows,), of.x),
    "index_put_ accumulate": lambda of: of.out.index_put_((of.rows,), of.x, accumulate=True),
    "index_copy_": lambda of: of.out.index_copy_(0, of.rows, of.x),
    "sort": lambda of: of.x.sort(-1),
    "topk": lambda of: of.x.topk(8, -1),
    "argsort rows": lambda of: of.rows.argsort(),
    "repeat": lambda of: of.x.repeat_interleave(2, 0),
    "multinomial": lambda of: torch.multinomial(of.x.float().abs(), 1),
    "one_hot": lambda of: F.one_hot(of.rows % 64, 64),
    "bincount like": lambda of: torch.zeros(64, device="cuda").index_add_(
        0, of.rows % 64, torch.ones(len(of.rows), device="cuda")
    ),
}


def indexing() -> Iterator[Case]:
    """All of them, of two matrices."""
    for name, function in INDEXING.items():
        for rows, width in ((16384, 128), (16384, 2048)):
            yield name, f"bf16 {rows}x{width}", partial(_indexed, function, rows, width)


def _indexed(function: Callable[[Indexed], object], rows: int, width: int) -> Call:
    x, order = random(rows, width), torch.randperm(rows, device="cuda")
    of = Indexed(x, order, torch.randint(0, rows, (rows, width), device="cuda"), torch.zeros_like(x))
    return lambda: function(of)
