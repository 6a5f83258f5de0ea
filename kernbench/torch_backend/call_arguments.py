"""The arguments of a process group's methods, which torch gives in several forms: as tensors or lists of lists of them, and as
option objects or plain values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from kernbench.ccl.reduce_op import ReduceOp

Tensors = Sequence[torch.Tensor]


def one_tensor(tensors: Any) -> torch.Tensor:
    """The tensor of a call that takes a list with one entry per local device, of which a rank has one."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"expected one tensor per rank, found {len(tensors)}: a rank drives one device")
    first = tensors[0]
    return first if isinstance(first, torch.Tensor) else one_tensor(first)


def tensor_list(lists: Any) -> list[torch.Tensor]:
    """The tensors of a call that takes a list of lists, or a list."""
    if lists and not isinstance(lists[0], torch.Tensor):
        lists = lists[0]
    return list(lists)


def reduction_of(opts: Any, dtype: torch.dtype) -> ReduceOp:
    """The reduction of options, of a torch ``ReduceOp``, or sum."""
    wanted = getattr(opts, "reduceOp", opts)
    if wanted is None or isinstance(wanted, timedelta):
        return ReduceOp.SUM
    return _checked(getattr(wanted, "op", wanted), dtype)


@functools.cache
def _checked(op: Any, dtype: torch.dtype) -> ReduceOp:
    reduction = ReduceOp.parse(op)
    reduction.check_dtype(dtype)
    return reduction


def root_of(opts: Any) -> int:
    """The root's number in the group, of options or given as it is."""
    return int(getattr(opts, "rootRank", opts))


def timeout_of(opts: Any) -> timedelta | None:
    """The timeout that a program gave in options, None if it gave none."""
    timeout = getattr(opts, "timeout", None)
    return timeout if isinstance(timeout, timedelta) and timeout > timedelta(0) else None
