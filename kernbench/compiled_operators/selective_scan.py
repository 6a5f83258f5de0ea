"""``selective_scan_cuda``, of ``mamba_ssm``: the recurrence of a selective state space, forward and backward.

With ``delta`` after its bias and softplus, for each channel ``d`` and state ``n``

    x[t] = exp(delta[t] * A[d, n]) * x[t - 1] + delta[t] * B[t, n] * u[t],    y[t] = sum over n of C[t, n] * x[t] + D[d] * u[t]

in float32 ("Mamba: Linear-Time Sequence Modeling with Selective State Spaces", section 3). ``B`` and ``C`` are ``[dim, state]``
or ``[batch, groups, state, length]``. A complex ``A`` is refused in words where values are wanted.

The cost: bytes, and an exponential and six further operations for each channel, place and state, where an exponential takes as
long as sixteen floating-point operations (a multiprocessor has 16 results of special functions per clock, and 128 fused
multiply-adds: CUDA C++ Programming Guide, arithmetic instructions). Twice as many backward, which makes the states again.
UNVERIFIED.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernbench.compiled_operators.kernel_table import KernelTable
from kernbench.cost.by_values import CallOperands
from kernbench.cost.work import StatedWork

__all__ = ["NAMES", "operators"]

Tensor = torch.Tensor

_TABLE = KernelTable("selective_scan")
operators = _TABLE.operators

_CHUNK = 2048
"""Places after which a state is kept for the backward pass (``selective_scan.cpp``)."""

_PER_STATE = 16 + 6


class _Scan:
    """One scan in float32.

    Attributes:
        steps: ``delta`` with its bias, through softplus where that is wanted; before that it is ``raw``.
        inputs, outputs: ``B`` and ``C`` of each channel, ``[batch or 1, dim, state, length]``.
        factors: by which a state shrinks at each place, ``[batch, dim, state, length]``.
        states: behind each place, likewise.
        results: ``[batch, dim, length]``.
    """

    def __init__(
        self, u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None, bias: Tensor | None, softplus: bool
    ) -> None:  # fmt: skip
        if a.is_complex():
            raise NotImplementedError("mamba_ssm: the values of a selective scan in its stand-in take no complex A")
        self.u = u.float()
        self.raw = delta.float() if bias is None else delta.float() + bias[:, None]
        self.steps = F.softplus(self.raw) if softplus else self.raw
        self.inputs, self.outputs = (_of_channels(each.float(), *u.shape[1:]) for each in (b, c))
        self.factors = (self.steps[:, :, None] * a[None, :, :, None]).exp()
        added = (self.steps * self.u)[:, :, None] * self.inputs
        self.states = torch.empty_like(self.factors)
        state = torch.zeros(self.factors.shape[:-1])
        for at in range(u.shape[2]):
            state = self.factors[..., at] * state + added[..., at]
            self.states[..., at] = state
        found = (self.outputs * self.states).sum(2)
        self.results = found if d is None else found + d[:, None] * self.u

    def of_states(self, grad: Tensor) -> Tensor:
        """The gradients of the states, from those of the results."""
        found = grad[:, :, None] * self.outputs
        for at in range(grad.shape[-1] - 2, -1, -1):
            found[..., at] += self.factors[..., at + 1] * found[..., at + 1]
        return found


def _of_channels(given: Tensor, dim: int, length: int) -> Tensor:
    """Of each channel, state and place: ``[batch or 1, dim, state, length]``."""
    if given.dim() == 2:
        return given[None, :, :, None].expand(1, -1, -1, length)
    return given.repeat_interleave(dim // given.shape[1], 1)


def _work(operands: CallOperands, passes: int) -> StatedWork:
    """All tensors once, and the operations of the states."""
    moved = sum(each.nbytes for each in operands.tensors)
    u, a = operands["u"], operands["a"]
    return StatedWork(moved, flops=passes * _PER_STATE * u.elements * a.shape[1], dtype="fp32", matrix=False)


@_TABLE.kernel(
    "fwd(Tensor u, Tensor delta, Tensor a, Tensor b, Tensor c, Tensor? d, Tensor? z, Tensor? bias, bool softplus, "
    "Tensor(a!) out, Tensor(b!) states, Tensor(c!)? out_z)",
    cost=lambda operands: _work(operands, 1),
)
def _fwd(
    u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None, z: Tensor | None, bias: Tensor | None,
    softplus: bool, out: Tensor, states: Tensor, out_z: Tensor | None,
) -> None:  # fmt: skip
    scan = _Scan(u, delta, a, b, c, d, bias, softplus)
    out.copy_(scan.results)
    states.zero_()
    for chunk in range(states.shape[2]):
        # of each chunk its last state; the product of its factors, before it, is not read
        states[:, :, chunk, 1::2] = scan.states[..., min((chunk + 1) * _CHUNK, u.shape[2]) - 1]
    if z is not None and out_z is not None:
        out_z.copy_(scan.results * F.silu(z.float()))


@_TABLE.kernel(
    "bwd(Tensor u, Tensor delta, Tensor a, Tensor b, Tensor c, Tensor? d, Tensor? z, Tensor? bias, Tensor dout, Tensor? out, "
    "bool softplus, Tensor(a!) du, Tensor(b!) ddelta, Tensor(c!) da, Tensor(d!) db, Tensor(e!) dc, Tensor(f!)? dd, "
    "Tensor(g!)? dbias, Tensor(h!)? dz, Tensor(i!)? out_z)",
    cost=lambda operands: _work(operands, 2),
)
def _bwd(
    u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None, z: Tensor | None, bias: Tensor | None,
    dout: Tensor, out: Tensor | None, softplus: bool, du: Tensor, ddelta: Tensor, da: Tensor, db: Tensor, dc: Tensor,
    dd: Tensor | None, dbias: Tensor | None, dz: Tensor | None, out_z: Tensor | None,
) -> None:  # fmt: skip
    scan, grad = _Scan(u, delta, a, b, c, d, bias, softplus), dout.float()
    if z is not None and out is not None:
        gate = z.float()
        share = gate.sigmoid()
        if dz is not None:
            dz.copy_(grad * out.float() * share * (1 + gate * (1 - share)))
        if out_z is not None:
            out_z.copy_(out.float() * gate * share)
        grad = grad * gate * share
    of_states = scan.of_states(grad)
    before = F.pad(scan.states, (1, 0))[..., :-1]
    shrunk = of_states * scan.factors * before
    of_added = (of_states * scan.inputs).sum(2)
    du.copy_(of_added * scan.steps if d is None else of_added * scan.steps + grad * d[:, None])
    of_steps = of_added * scan.u + (shrunk * a[None, :, :, None]).sum(2)
    of_steps = of_steps * scan.raw.sigmoid() if softplus else of_steps
    ddelta.copy_(of_steps)
    da.copy_((shrunk * scan.steps[:, :, None]).sum((0, 3)))
    _to_groups(of_states * (scan.steps * scan.u)[:, :, None], db)
    _to_groups(scan.states * grad[:, :, None], dc)
    if dd is not None:
        dd.copy_((grad * scan.u).sum((0, 2)))
    if dbias is not None:
        dbias.copy_(of_steps.sum((0, 2)))


def _to_groups(grad: Tensor, into: Tensor) -> None:
    """What each channel gives, ``[batch, dim, state, length]``, to ``B`` or ``C``."""
    if into.dim() == 2:
        into.copy_(grad.sum((0, 3)))
    else:
        into.copy_(grad.unflatten(1, (into.shape[1], -1)).sum(2))


def fwd(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, delta_softplus: bool,
) -> list[Tensor]:  # fmt: skip
    """The results, the states of chunks ``[batch, dim, chunks, 2 * state]``, and where there is ``z`` the gated results."""
    chunks = -(-u.shape[2] // _CHUNK)
    out = torch.empty_like(delta)
    states = torch.empty((*u.shape[:2], chunks, 2 * A.shape[1]), dtype=A.dtype, device=u.device)
    out_z = None if z is None else torch.empty_like(z)
    _TABLE.launch("fwd", u, delta, A, B, C, D, z, delta_bias, delta_softplus, out, states, out_z)
    return [out, states] if out_z is None else [out, states, out_z]


def bwd(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, dout: Tensor, x: Tensor | None, out: Tensor | None, dz: Tensor | None, delta_softplus: bool,
    recompute_out_z: bool,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of ``u``, ``delta``, ``A``, ``B``, ``C``, ``D``, the bias, ``z``; then gated results where they are wanted."""
    du, ddelta, da = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(A)
    db, dc = (torch.zeros_like(each, dtype=torch.float32 if each.dim() > 2 else each.dtype) for each in (B, C))
    dd, dbias = (None if each is None else torch.zeros_like(each) for each in (D, delta_bias))
    if z is not None and dz is None:
        dz = torch.empty_like(z)
    out_z = torch.empty_like(out) if z is not None and out is not None and recompute_out_z else None
    _TABLE.launch(
        "bwd", u, delta, A, B, C, D, z, delta_bias, dout, out, delta_softplus, du, ddelta, da, db, dc, dd, dbias, dz, out_z
    )  # fmt: skip
    made: list[Tensor | None] = [du, ddelta, da, db.to(B.dtype), dc.to(C.dtype), dd, dbias]
    return made + ([] if z is None else [dz]) + ([out_z] if recompute_out_z else [])


NAMES = {"fwd": fwd, "bwd": bwd}
