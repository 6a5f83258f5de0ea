"""``causal_conv1d_cuda``: the convolution of each channel with its own few weights, over what came before.

``out[b, d, t] = bias[d] + sum over j of weight[d, j] * x[b, d, t - width + 1 + j]``, in float32, through SiLU where that is
wanted. What came before ``x`` is ``initial_states``, or zeros; with ``seq_idx`` a term counts only where it has the index of
its result, and results of negative indices are zeros. Costs are the bytes that are read and written: UNVERIFIED.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernbench.compiled_operators.kernel_table import KernelTable

__all__ = ["NAMES", "operators"]

Tensor = torch.Tensor

_TABLE = KernelTable("causal_conv1d")
operators = _TABLE.operators


class _SummedWindows:
    """What each result is a sum over, in float32.

    Attributes:
        whole: ``x`` behind what came before it, ``[batch, dim, width - 1 + length]``.
        counts: which terms count, ``[batch, 1, length, width]``; None: all.
        live: which results do, ``[batch, 1, length]``; None: all.
    """

    def __init__(self, x: Tensor, width: int, seq_idx: Tensor | None, before: Tensor | None) -> None:
        reach, x = width - 1, x.float()
        self.width = width
        self.whole = F.pad(x, (reach, 0)) if before is None else torch.cat((before.float(), x), -1)
        self.counts = self.live = None
        if seq_idx is not None:
            first = seq_idx[:, :1] if before is not None else torch.full_like(seq_idx[:, :1], -1)
            of_all = torch.cat((first.expand(-1, reach), seq_idx), -1)
            self.counts = (of_all.unfold(-1, width, 1) == seq_idx[..., None])[:, None]
            self.live = (seq_idx >= 0)[:, None]

    @property
    def terms(self) -> Tensor:
        """``[batch, dim, length, width]``."""
        windows = self.whole.unfold(-1, self.width, 1)
        return windows if self.counts is None else windows * self.counts

    def summed(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The results, before SiLU."""
        out = (self.terms * weight.float()[:, None]).sum(-1)
        out = out if bias is None else out + bias.float()[:, None]
        return out if self.live is None else out * self.live

    def spread(self, grad: Tensor, weight: Tensor) -> Tensor:
        """The gradient of ``whole``."""
        found = torch.zeros(self.whole.shape)
        for at in range(self.width):
            part = grad * weight.float()[:, at, None]
            found[..., at : at + grad.shape[-1]] += part if self.counts is None else part * self.counts[..., at]
        return found


@_TABLE.kernel(
    "fwd(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, Tensor? initial_states, Tensor(a!) out, "
    "Tensor(b!)? final_states, bool silu)",
    "x", "weight", "bias", "seq_idx", "initial_states", "out", "final_states",
)  # fmt: skip
def _fwd(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None, out: Tensor,
    final_states: Tensor | None, silu: bool,
) -> None:  # fmt: skip
    made = _SummedWindows(x, weight.shape[1], seq_idx, initial_states).summed(weight, bias)
    out.copy_(F.silu(made) if silu else made)
    if final_states is not None:
        whole = x if initial_states is None else torch.cat((initial_states, x), -1)
        final_states.copy_(F.pad(whole, (weight.shape[1] - 1, 0))[..., whole.shape[-1] :])


@_TABLE.kernel(
    "bwd(Tensor x, Tensor weight, Tensor? bias, Tensor dout, Tensor? seq_idx, Tensor? initial_states, Tensor? dfinal_states, "
    "Tensor(a!) dx, Tensor(b!) dweight, Tensor(c!)? dbias, Tensor(d!)? dinitial_states, bool silu)",
    "x", "weight", "bias", "dout", "seq_idx", "initial_states", "dfinal_states", "dx", "dweight", "dweight", "dbias",
    "dinitial_states",
)  # fmt: skip
def _bwd(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, seq_idx: Tensor | None, initial_states: Tensor | None,
    dfinal_states: Tensor | None, dx: Tensor, dweight: Tensor, dbias: Tensor | None, dinitial_states: Tensor | None,
    silu: bool,
) -> None:  # fmt: skip
    reach = weight.shape[1] - 1
    windows, grad = _SummedWindows(x, weight.shape[1], seq_idx, initial_states), dout.float()
    if silu:
        made = windows.summed(weight, bias)
        share = made.sigmoid()
        grad = grad * share * (1 + made * (1 - share))
    if windows.live is not None:
        grad = grad * windows.live
    of_whole = windows.spread(grad, weight)
    if dfinal_states is not None:
        of_whole[..., of_whole.shape[-1] - reach :] += dfinal_states.float()
    dx.copy_(of_whole[..., reach:])
    dweight.add_((windows.terms * grad[..., None]).sum((0, 2)))
    if dbias is not None:
        dbias.add_(grad.sum((0, 2)))
    if dinitial_states is not None:
        dinitial_states.copy_(of_whole[..., :reach])


@_TABLE.kernel(
    "update(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias, Tensor(b!) out, bool silu, Tensor? cache_seqlens, "
    "Tensor? conv_state_indices)",
    "x", "conv_state", "conv_state", "weight", "bias", "out", "cache_seqlens", "conv_state_indices",
)  # fmt: skip
def _update(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, silu: bool,
    cache_seqlens: Tensor | None, conv_state_indices: Tensor | None,
) -> None:  # fmt: skip
    """Further elements of each sequence, whose last ones are in ``conv_state [slots, dim, length]``: shifted, or round a ring
    that ``cache_seqlens`` elements have been put into. A negative index is a sequence that is left out."""
    at = torch.arange(len(x)) if conv_state_indices is None else conv_state_indices.long()
    live = at >= 0
    at, given = at[live], x[live]
    room, width = conv_state.shape[-1], weight.shape[1]
    states, fresh = conv_state[at], given.to(conv_state.dtype)
    if cache_seqlens is None:
        before = states[..., room - (width - 1) :]
        conv_state[at] = torch.cat((states, fresh), -1)[..., -room:]
    else:
        seen = cache_seqlens[live].long()[:, None]

        def places(first: int, end: int) -> Tensor:
            """In the ring, from the next one: ``[sequences, dim, end - first]``."""
            return ((torch.arange(first, end) + seen) % room)[:, None].expand(-1, x.shape[1], -1)

        before = states.gather(-1, places(1 - width, 0))
        conv_state[at] = states.scatter(-1, places(0, x.shape[-1]), fresh)
    made = torch.zeros(x.shape)
    made[live] = _SummedWindows(given, width, None, before).summed(weight, bias)
    out.copy_(F.silu(made) if silu else made)


def causal_conv1d_fwd(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None, out: Tensor,
    final_states_out: Tensor | None, silu_activation: bool,
) -> None:  # fmt: skip
    """``out`` and ``final_states_out`` are written."""
    _TABLE.launch("fwd", x, weight, bias, seq_idx, initial_states, out, final_states_out, silu_activation)


def causal_conv1d_bwd(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, seq_idx: Tensor | None, initial_states: Tensor | None,
    dfinal_states: Tensor | None, dx: Tensor, dweight: Tensor, dbias: Tensor | None, dinitial_states: Tensor | None,
    silu_activation: bool,
) -> None:  # fmt: skip
    """``dx`` and ``dinitial_states`` are written, ``dweight`` and ``dbias`` added to."""
    _TABLE.launch(
        "bwd", x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, dweight, dbias, dinitial_states,
        silu_activation,
    )  # fmt: skip


def causal_conv1d_update(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, silu_activation: bool,
    cache_seqlens: Tensor | None, conv_state_indices: Tensor | None,
) -> None:  # fmt: skip
    """``conv_state`` and ``out`` are written."""
    _TABLE.launch("update", x, conv_state, weight, bias, out, silu_activation, cache_seqlens, conv_state_indices)


NAMES = {
    "causal_conv1d_fwd": causal_conv1d_fwd, "causal_conv1d_bwd": causal_conv1d_bwd,
    "causal_conv1d_update": causal_conv1d_update,
}  # fmt: skip
