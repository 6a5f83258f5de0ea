"""Packed sequences over the ranks of context parallelism: halves of each, corrections of results and of gradients, which tokens
a rank has. A rank has two chunks of each sequence, one from each end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch

Tensor = torch.Tensor


def _bounds(ends: Tensor) -> Iterator[tuple[int, int]]:
    yield from pairwise(ends.tolist())


def _axis(tensor: Tensor) -> int:
    """That of the tokens: keys and values together have one before it."""
    return tensor.dim() - 3 if tensor.dim() > 3 else 0


@kernel("half_of_sequences(Tensor x, Tensor ends, Tensor! out, int half)", "out", "out", "ends")
def _half_of_sequences(x: Tensor, ends: Tensor, out: Tensor, half: int) -> None:
    axis = _axis(x)
    for begin, end in _bounds(ends):
        length = (end - begin) // 2
        out.narrow(axis, begin // 2, length).copy_(x.narrow(axis, begin + half * length, length))


def thd_read_half_tensor(tensor: Tensor, cu_seqlens: Tensor, half_idx: int) -> Tensor:
    """The first or the second half of each sequence of ``[.., tokens, heads, width]``."""
    shape = list(tensor.shape)
    shape[_axis(tensor)] //= 2
    out = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    launch("half_of_sequences", tensor, cu_seqlens, out, half_idx)
    return out


def _of_sequence(lse: Tensor, at: int, begin: int, length: int, packed: bool) -> Tensor:
    """A view ``[heads, length]`` of logarithms of sums: ``[heads, tokens]`` of packed ones, else ``[batch, heads, tokens]``."""
    return lse[:, begin : begin + length] if packed else lse[at, :, :length]


@kernel("half_of_sums(Tensor lse, Tensor ends, Tensor! out, bool packed)", "out", "out", "ends")
def _half_of_sums(lse: Tensor, ends: Tensor, out: Tensor, packed: bool) -> None:
    if not packed:
        out.zero_()
    for at, (begin, end) in enumerate(_bounds(ends)):
        half = (end - begin) // 2
        source = lse[:, begin + half : begin + 2 * half] if packed else lse[at, :, half : 2 * half]
        _of_sequence(out, at, begin // 2, half, packed).copy_(source)


def thd_read_second_half_lse(lse: Tensor, cu_seqlens: Tensor, lse_packed: bool, second_half_lse_seqlen: int) -> Tensor:
    """Those of the second half of each sequence."""
    shape = (lse.shape[0], second_half_lse_seqlen) if lse_packed else (*lse.shape[:2], second_half_lse_seqlen)
    out = torch.empty(shape, dtype=lse.dtype, device=lse.device)
    launch("half_of_sums", lse, cu_seqlens, out, lse_packed)
    return out


@kernel("correct_second_half(Tensor! lse, Tensor step, Tensor ends, bool packed)", "lse", "step", "step")
def _correct_second_half(lse: Tensor, step: Tensor, ends: Tensor, packed: bool) -> None:
    for at, (begin, end) in enumerate(_bounds(ends)):
        half = (end - begin) // 2
        into = lse[:, begin + half : begin + 2 * half] if packed else lse[at, :, half : 2 * half]
        into.copy_(torch.logaddexp(into.double(), _of_sequence(step, at, begin // 2, half, packed).double()))


def thd_second_half_lse_correction(lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor, lse_packed: bool) -> None:
    """Add a step's sums to those of the second half of each sequence."""
    launch("correct_second_half", lse, lse_per_step, cu_seqlens, lse_packed)


@kernel(
    """correct_result(Tensor! out, Tensor step, Tensor old, Tensor lse, Tensor lse_step, Tensor ends, bool second, bool
    packed)""",
    "out", "out", "step", "lse_step",
)  # fmt: skip
def _correct_result(
    out: Tensor, step: Tensor, old: Tensor, lse: Tensor, lse_step: Tensor, ends: Tensor, second: bool, packed: bool
) -> None:
    for at, (begin, end) in enumerate(_bounds(ends)):
        length = (end - begin) // 2 if second else end - begin
        first = begin + (end - begin) // 2 if second else begin
        of_step = begin // 2 if second else begin
        here = slice(first, first + length) if packed else slice(first - begin, first - begin + length)
        whole, before = ((each[:, here] if packed else each[at, :, here]).float() for each in (lse, old))
        part = _of_sequence(lse_step, at, of_step, length, packed).float()
        shares = [torch.exp(each - whole).nan_to_num(0.0).t()[..., None] for each in (before, part)]
        into = out[first : first + length]
        into.copy_(into.float() * shares[0] + step[of_step : of_step + length].float() * shares[1])


def thd_out_correction(
    out: Tensor, out_per_step: Tensor, old_lse: Tensor, lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor,
    only_second_half: bool, lse_packed: bool,
) -> None:  # fmt: skip
    """The result so far and that of a step, times the shares that each has of the sums: ``exp(its sums - all sums)``."""
    launch("correct_result", out, out_per_step, old_lse, lse, lse_per_step, cu_seqlens, only_second_half, lse_packed)


@kernel("correct_gradient(Tensor! grad, Tensor step, Tensor ends, str first, str second)", "grad", "step", "step")
def _correct_gradient(grad: Tensor, step: Tensor, ends: Tensor, first: str, second: str) -> None:
    axis = _axis(grad)
    whole = step.shape[axis] == grad.shape[axis]
    for begin, end in _bounds(ends):
        length = (end - begin) // 2
        for half, how in enumerate((first, second)):
            if how == "none":
                continue
            into = grad.narrow(axis, begin + half * length, length)
            if how == "zero":
                into.zero_()
                continue
            source = step.narrow(axis, begin + half * length if whole else begin // 2, length)
            into.copy_(source if how == "copy" else into.float() + source.float())


def thd_grad_correction(
    grad: Tensor, grad_per_step: Tensor, cu_seqlens: Tensor, first_half: str, second_half: str
) -> None:
    """What becomes of each half of the sequences: a step's gradient is added or copied, it becomes zero, or
    (``"none"``) is left."""
    launch("correct_gradient", grad, grad_per_step, cu_seqlens, first_half, second_half)


def _of_rank(ends: Tensor, world_size: int, rank: int) -> Tensor:
    found = []
    for begin, end in _bounds(ends):
        chunk = (end - begin) // (2 * world_size)
        for at in (rank, 2 * world_size - 1 - rank):
            found.append(torch.arange(begin + at * chunk, begin + (at + 1) * chunk))
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)


@kernel("indices_of_rank(Tensor ends, Tensor! out, int world_size, int rank)", "ends", "out")
def _indices_of_rank(ends: Tensor, out: Tensor, world_size: int, rank: int) -> None:
    out.copy_(_of_rank(ends, world_size, rank))


def thd_get_partitioned_indices(cu_seqlens: Tensor, total_tokens: int, world_size: int, rank: int) -> Tensor:
    """The tokens of a rank, ``[total / world size]``."""
    out = torch.empty(total_tokens // world_size, dtype=torch.int32, device=cu_seqlens.device)
    launch("indices_of_rank", cu_seqlens, out, world_size, rank)
    return out


@kernel("reorder(Tensor x, Tensor ends, Tensor! out, int cp_size, bool to_ranks)", "x", "out")
def _reorder(x: Tensor, ends: Tensor, out: Tensor, cp_size: int, to_ranks: bool) -> None:
    order = torch.cat([_of_rank(ends, cp_size, rank) for rank in range(cp_size)])
    if to_ranks:
        out[: len(order)] = x[order]
    else:
        out[order] = x[: len(order)]


def thd_sequence_order_to_cp_rank_order(inp: Tensor, cu_seqlens: Tensor, cp_size: int, total_tokens: int) -> Tensor:
    """Tokens of rank after rank."""
    out = torch.empty_like(inp)
    launch("reorder", inp, cu_seqlens, out, cp_size, True)
    return out


def thd_cp_rank_order_to_sequence_order(inp: Tensor, cu_seqlens: Tensor, cp_size: int, total_tokens: int) -> Tensor:
    """The same the other way."""
    out = torch.empty_like(inp)
    launch("reorder", inp, cu_seqlens, out, cp_size, False)
    return out


@kernel("unpack(Tensor x, Tensor ends, Tensor! out)", "x", "out")
def _unpack(x: Tensor, ends: Tensor, out: Tensor) -> None:
    out.zero_()
    for at, (begin, end) in enumerate(_bounds(ends)):
        out[at, : end - begin] = x[begin:end]


def convert_thd_to_bshd(tensor: Tensor, cu_seqlens: Tensor, b: int, max_seq_len: int) -> Tensor:
    """Packed sequences, each in a row of its own."""
    out = torch.empty((b, max_seq_len, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    launch("unpack", tensor, cu_seqlens, out)
    return out


@kernel("pack(Tensor x, Tensor ends, Tensor! out)", "out", "out")
def _pack(x: Tensor, ends: Tensor, out: Tensor) -> None:
    for at, (begin, end) in enumerate(_bounds(ends)):
        out[begin:end] = x[at, : end - begin]


def convert_bshd_to_thd(tensor: Tensor, cu_seqlens: Tensor, t: int) -> Tensor:
    """The same the other way."""
    out = torch.empty((t, *tensor.shape[2:]), dtype=tensor.dtype, device=tensor.device)
    launch("pack", tensor, cu_seqlens, out)
    return out
