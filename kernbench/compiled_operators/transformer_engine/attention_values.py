"""The values of fused attention and of its gradients, in float32, one sequence after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

Tensor = torch.Tensor

_PRE_SCALE, _POST_SCALE, _ALIBI = 1, 2, 3
_PADDED, _CAUSAL, _AT_THE_END = {1, 3, 5}, {2, 3, 4, 5}, {4, 5}
"""Of the numbers of ``NVTE_Mask_Type``: those with sequences that are shorter, with no later keys, with ends that meet."""


@dataclass(frozen=True)
class AttentionCall:
    """What a call is given; as of the kernels."""

    q: Tensor
    k: Tensor
    v: Tensor
    ends_q: Tensor
    ends_kv: Tensor
    starts_q: Tensor | None
    starts_kv: Tensor | None
    bias: Tensor | None
    offset: Tensor | None
    rng: Tensor
    scale: float
    dropout: float
    format_q: str
    format_kv: str
    bias_type: int
    mask: int
    softmax: int
    left: int
    right: int
    bottom_right: bool


@dataclass(frozen=True)
class PackedSequence:
    """One of a call: its place in the batch, its first token (of packed ones) and its length, of queries and of keys."""

    at: int
    first_q: int
    queries: int
    first_kv: int
    keys: int


def _sequences(call: AttentionCall) -> Iterator[PackedSequence]:
    sides = []
    for tensor, form, ends, starts in (
        (call.q, call.format_q, call.ends_q, call.starts_q), (call.k, call.format_kv, call.ends_kv, call.starts_kv),
    ):  # fmt: skip
        lengths = ends.diff().tolist()
        if form == "thd":
            sides.append(list(zip((ends if starts is None else starts).tolist(), lengths, strict=False)))
        else:
            whole, batch = tensor.shape[form.index("s")], tensor.shape[form.index("b")]
            sides.append([(0, each) for each in lengths] if call.mask in _PADDED else [(0, whole)] * batch)
    for at, ((first_q, queries), (first_kv, keys)) in enumerate(zip(*sides, strict=True)):
        yield PackedSequence(at, first_q, queries, first_kv, keys)


def _part(tensor: Tensor, form: str, at: int, first: int, length: int) -> Tensor:
    """A view ``[heads, length, width]`` of one sequence."""
    if form == "thd":
        return tensor[first : first + length].transpose(0, 1)
    one = tensor.select(form.index("b"), at)
    rest = form.replace("b", "")
    return one.narrow(rest.index("s"), 0, length).permute(rest.index("h"), rest.index("s"), rest.index("d"))


def _queries(tensor: Tensor, form: str, one: PackedSequence) -> Tensor:
    return _part(tensor, form, one.at, one.first_q, one.queries)


def _keys(tensor: Tensor, form: str, one: PackedSequence) -> Tensor:
    return _part(tensor, form, one.at, one.first_kv, one.keys)


def _statistics(tensor: Tensor, one: PackedSequence, packed: bool) -> Tensor:
    """A view ``[heads, queries]`` of sums, or of largest scores."""
    if packed and tensor.dim() == 3:
        return tensor[one.first_q : one.first_q + one.queries, :, 0].t()
    return tensor[one.at, :, : one.queries, 0]


def _seen(call: AttentionCall, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """Which keys a query sees, and how far behind it they are, ``[queries, keys]``."""
    shift = keys - queries if call.bottom_right or call.mask in _AT_THE_END else 0
    distance = torch.arange(queries)[:, None] + shift - torch.arange(keys)
    right = 0 if call.mask in _CAUSAL else call.right
    seen = torch.ones_like(distance, dtype=torch.bool)
    if right >= 0:
        seen &= distance >= -right
    if call.left >= 0:
        seen &= distance <= call.left
    return seen, distance


def _slopes(heads: int) -> Tensor:
    """ALiBi's: powers of ``2^(-8 / n)``, ``n`` the power of two that is not above the heads; then every second of those
    between."""
    power = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8 * (at + 1) / power) for at in range(power)]
    between = [2.0 ** (-4 * (2 * at + 1) / power) for at in range(heads - power)]
    return torch.tensor(first + between)


def _scores(call: AttentionCall, one: PackedSequence) -> tuple[Tensor, Tensor]:
    """``[heads, queries, keys]``, minus infinity where a key is not seen; and queries."""
    q, k = _queries(call.q, call.format_q, one).float(), _keys(call.k, call.format_kv, one).float()
    k = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    scores = q @ k.transpose(1, 2)
    bias = None if call.bias is None else _bias(call.bias, one).float()
    if bias is not None and call.bias_type == _PRE_SCALE:
        scores = scores + bias
    scores = scores * call.scale
    if bias is not None and call.bias_type == _POST_SCALE:
        scores = scores + bias
    seen, distance = _seen(call, one.queries, one.keys)
    if call.bias_type == _ALIBI:
        scores = scores - _slopes(q.shape[0])[:, None, None] * distance.abs()
    return scores.masked_fill(~seen, -math.inf), q


def _bias(bias: Tensor, one: PackedSequence) -> Tensor:
    """Of one sequence, ``[heads or 1, queries, keys]``."""
    return bias[min(one.at, bias.shape[0] - 1), :, : one.queries, : one.keys]


def _kept(call: AttentionCall, one: PackedSequence, shape: torch.Size) -> Tensor:
    """What dropout leaves, ``1 / (1 - p)`` or zero: the same for both passes, by the state of the generator."""
    generator = torch.Generator().manual_seed((int(call.rng.reshape(-1)[0]) + 0x9E3779B9 * one.at) % (1 << 63))
    return (torch.rand(shape, generator=generator) >= call.dropout) / (1 - call.dropout)


def _extra(call: AttentionCall, heads: int) -> Tensor | None:
    """A score that counts among the sums and has no value, ``[heads, 1]``."""
    if not call.softmax:
        return None
    return torch.zeros(heads, 1) if call.offset is None else call.offset.float().view(heads, 1)


def result_of(call: AttentionCall, out: Tensor, sums: Tensor, most: Tensor | None, format_out: str) -> None:
    """Writes the result, the logarithms of the sums, and the largest scores where they are wanted."""
    packed = call.format_q == "thd"
    if call.mask in _PADDED or packed:
        out.zero_()
        sums.zero_()
        if most is not None:
            most.fill_(-math.inf)
    for one in _sequences(call):
        if not one.queries:
            continue
        scores, q = _scores(call, one)
        extra = _extra(call, q.shape[0])
        whole = scores if extra is None else torch.cat([scores, extra[:, None].expand(-1, one.queries, -1)], -1)
        logs = torch.logsumexp(whole, -1)
        shares = torch.exp(scores - logs[..., None]).nan_to_num(0.0)
        if call.dropout:
            shares = shares * _kept(call, one, shares.shape)
        v = _keys(call.v, call.format_kv, one).float()
        _queries(out, format_out, one).copy_(shares @ v.repeat_interleave(q.shape[0] // v.shape[0], 0))
        _statistics(sums, one, packed).copy_(logs)
        if most is not None and one.keys:
            _statistics(most, one, packed).copy_(scores.amax(-1))


Made = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


def gradients(
    call: AttentionCall, o: Tensor, do: Tensor, sums: Tensor, formats: tuple[str, str, str, str], made: Made
) -> None:
    """Writes the gradients of queries, keys, values, bias and offsets. ``formats``: of ``o``, ``do``, and the gradients
    of queries and keys."""
    dq, dk, dv, dbias, doffset = made
    for each in made:
        if each is not None:
            each.zero_()
    of_out, of_dout, of_dq, of_dkv = formats
    packed = call.format_q == "thd"
    to_bias = None if dbias is None else torch.zeros(dbias.shape)
    to_offset = None if doffset is None else torch.zeros(doffset.numel())
    for one in _sequences(call):
        if not (one.queries and one.keys):
            continue
        scores, q = _scores(call, one)
        heads = q.shape[0]
        k, v = _keys(call.k, call.format_kv, one).float(), _keys(call.v, call.format_kv, one).float()
        groups = heads // k.shape[0]
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
        given, gave = _queries(do, of_dout, one).float(), _queries(o, of_out, one).float()
        logs = _statistics(sums, one, packed)[..., None].float()
        shares = torch.exp(scores - logs).nan_to_num(0.0)
        total = (given * gave).sum(-1, keepdim=True)
        change, kept = given @ v.transpose(1, 2), shares
        if call.dropout:
            mask = _kept(call, one, shares.shape)
            change, kept = change * mask, shares * mask
        change = shares * (change - total)
        if to_bias is not None:
            factor = call.scale if call.bias_type == _PRE_SCALE else 1.0
            room = _bias(to_bias, one)
            room += factor * (change if room.shape[0] == heads else change.sum(0, keepdim=True))
        extra = _extra(call, heads)
        if to_offset is not None and extra is not None:
            to_offset -= (torch.exp(extra[:, None] - logs) * total).sum((1, 2))
        _queries(dq, of_dq, one).copy_(change @ k * call.scale)
        for room, found in (
            (_keys(dk, of_dkv, one), change.transpose(1, 2) @ q * call.scale), (_keys(dv, of_dkv, one),
            kept.transpose(1, 2) @ given),
        ):  # fmt: skip
            room.copy_(found.unflatten(0, (heads // groups, groups)).sum(1))
    if dbias is not None and to_bias is not None:
        dbias.copy_(to_bias)
    if doffset is not None and to_offset is not None:
        doffset.copy_(to_offset.view(doffset.shape))
