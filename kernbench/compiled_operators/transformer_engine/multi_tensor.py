"""Functions over lists of tensors: Adam, SGD, scaling, norms; and what a recipe with delayed scales does after each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.compiled_operators.transformer_engine.formats import cast, exponents_above, scale_of
from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch
from kernbench.compiled_operators.transformer_engine.names import torch_format
from kernbench.cost.by_values import CallOperands
from kernbench.cost.work import StatedWork

Tensor = torch.Tensor
Lists = Sequence[Sequence[Tensor]]


def _moving(**times: int) -> object:
    """A cost: the tensors of each list are read or written so many times."""

    def cost(operands: CallOperands) -> StatedWork:
        return StatedWork(sum(count * each.nbytes for name, count in times.items() for each in operands[name]))

    return cost


@kernel(
    """adam(Tensor[] g, Tensor(p!)[] p, Tensor(m!)[] m, Tensor(v!)[] v, Tensor(w!)[] master, Tensor noop, Tensor? lr_at, Tensor?
    step_at, Tensor? inverse_scale, float lr, float beta1, float beta2, float epsilon, int step, int mode, bool bias_correction,
    float weight_decay)""",
    cost=_moving(g=1, p=2, m=2, v=2, master=2),
)  # fmt: skip
def _adam(
    g: list[Tensor], p: list[Tensor], m: list[Tensor], v: list[Tensor], master: list[Tensor], noop: Tensor,
    lr_at: Tensor | None, step_at: Tensor | None, inverse_scale: Tensor | None, lr: float, beta1: float, beta2: float,
    epsilon: float, step: int, mode: int, bias_correction: bool, weight_decay: float,
) -> None:  # fmt: skip
    if bool(noop.reshape(-1)[0]):
        return
    if inverse_scale is not None:
        g = [each.float() * inverse_scale.float() for each in g]
    lr = lr if lr_at is None else float(lr_at)
    step = step if step_at is None else int(step_at)
    _step_of_adam(g, p, m, v, master or p, lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)


def _step_of_adam(
    g: list[Tensor], p: list[Tensor], m: list[Tensor], v: list[Tensor], master: list[Tensor], lr: float, beta1: float,
    beta2: float, epsilon: float, step: int, mode: int, bias_correction: bool, weight_decay: float,
) -> None:  # fmt: skip
    """``master``: what parameters are computed from, which may be themselves."""
    first, second = (1 - beta1**step, 1 - beta2**step) if bias_correction else (1.0, 1.0)
    for at, each in enumerate(g):
        given, old = each.float(), master[at].float()
        if mode == 0:  # L2
            given = given + weight_decay * old
        mean = beta1 * m[at].float() + (1 - beta1) * given
        square = beta2 * v[at].float() + (1 - beta2) * given * given
        change = (mean / first) / ((square / second).sqrt() + epsilon)
        new = old - lr * (change if mode == 0 else change + weight_decay * old)
        m[at].copy_(mean)
        v[at].copy_(square)
        p[at].copy_(new)
        master[at].copy_(new)


def _adam_call(
    noop: Tensor, lists: Lists, lr: object, beta1: float, beta2: float, epsilon: float, step: object, mode: int,
    bias_correction: int, weight_decay: float, inverse_scale: Tensor | None = None,
) -> None:  # fmt: skip
    g, p, m, v, *master = (list(each) for each in lists)
    at_run = isinstance(lr, torch.Tensor)
    launch(
        "adam", g, p, m, v, master[0] if master else [], noop, lr if at_run else None, step if at_run else None,
        inverse_scale, 0.0 if at_run else lr, beta1, beta2, epsilon, 0 if at_run else step, mode, bool(bias_correction),
        weight_decay,
    )  # fmt: skip


def multi_tensor_adam(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: float, beta1: float, beta2: float, epsilon: float,
    step: int, mode: int, bias_correction: int, weight_decay: float,
) -> None:  # fmt: skip
    """Gradients, parameters, both moments, and master parameters where there are any. ``mode``: 0 adds weight decay to the
    gradient, 1 (AdamW) to the change."""
    _adam_call(noop_flag, tensor_lists, lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)


def multi_tensor_adam_capturable(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: Tensor, beta1: float, beta2: float, epsilon: float,
    step: Tensor, mode: int, bias_correction: int, weight_decay: float, inv_scale: Tensor,
) -> None:  # fmt: skip
    """The same; learning rate, step and inverse scale of the gradients are on the device."""
    _adam_call(noop_flag, tensor_lists, lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay, inv_scale)


multi_tensor_adam_capturable_master = multi_tensor_adam_capturable


@kernel(
    """adam_remainder(Tensor[] g, Tensor(p!)[] p, Tensor(m!)[] m, Tensor(v!)[] v, Tensor(r!)[] remainder, Tensor noop, float lr,
    float beta1, float beta2, float epsilon, int step, int mode, bool bias_correction, float weight_decay)""",
    cost=_moving(g=1, p=2, m=2, v=2, remainder=2),
)  # fmt: skip
def _adam_remainder(
    g: list[Tensor], p: list[Tensor], m: list[Tensor], v: list[Tensor], remainder: list[Tensor], noop: Tensor, lr: float,
    beta1: float, beta2: float, epsilon: float, step: int, mode: int, bias_correction: bool, weight_decay: float,
) -> None:  # fmt: skip
    if bool(noop.reshape(-1)[0]):
        return
    whole = [_joined(high, low) for high, low in zip(p, remainder, strict=True)]
    _step_of_adam(g, whole, m, v, whole, lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    for new, high, low in zip(whole, p, remainder, strict=True):
        _parted(new, high, low)


def _joined(high: Tensor, low: Tensor) -> Tensor:
    """A master parameter in float32: its upper bits are the parameter in bfloat16, rounded, its lower ones the remainder."""
    upper, lower = high.view(torch.int16).int(), low.view(torch.int16).int()
    upper = torch.where(lower < 0, upper - 1, upper)
    return ((upper << 16) | (lower & 0xFFFF)).view(torch.float32)


def _parted(whole: Tensor, high: Tensor, low: Tensor) -> None:
    bits = whole.view(torch.int32)
    lower = (bits & 0xFFFF).to(torch.int32)
    upper = bits >> 16
    upper = torch.where(lower >= 0x8000, upper + 1, upper)
    high.view(torch.int16).copy_(upper.to(torch.int16))
    low.view(torch.int16).copy_(torch.where(lower >= 0x8000, lower - 0x10000, lower).to(torch.int16))


def multi_tensor_adam_param_remainder(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: float, beta1: float, beta2: float, epsilon: float,
    step: int, mode: int, bias_correction: int, weight_decay: float,
) -> None:  # fmt: skip
    """With master parameters of which the lists have the lower 16 bits, and parameters in bfloat16 the upper ones."""
    launch(
        "adam_remainder", *(list(each) for each in tensor_lists), noop_flag, lr, beta1, beta2, epsilon, step, mode,
        bool(bias_correction), weight_decay,
    )  # fmt: skip


@kernel(
    """adam_fp8(Tensor[] g, Tensor(p!)[] p, Tensor(m!)[] m, Tensor(v!)[] v, Tensor(w!)[] master, Tensor[] scales,
    Tensor(a!)[] amaxes, Tensor(i!)[] inverses, Tensor noop, float lr, float beta1, float beta2, float epsilon, int
    step, int mode, bool bias_correction, float weight_decay, int dtype)""",
    cost=_moving(g=1, p=1, m=2, v=2, master=2),
)  # fmt: skip
def _adam_fp8(
    g: list[Tensor], p: list[Tensor], m: list[Tensor], v: list[Tensor], master: list[Tensor], scales: list[Tensor],
    amaxes: list[Tensor], inverses: list[Tensor], noop: Tensor, lr: float, beta1: float, beta2: float, epsilon: float,
    step: int, mode: int, bias_correction: bool, weight_decay: float, dtype: int,
) -> None:  # fmt: skip
    if bool(noop.reshape(-1)[0]):
        return
    _step_of_adam(g, master, m, v, master, lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    for at, new in enumerate(master):
        scale = scales[at].float().reshape(-1)[0]
        p[at].copy_(cast(new.float() * scale, torch_format(dtype)).view(p[at].shape))
        amaxes[at].copy_(
            torch.maximum(amaxes[at].float().reshape(-1)[0], new.float().abs().amax()).expand(amaxes[at].shape)
        )
        inverses[at].copy_((1 / scale).expand(inverses[at].shape))


def multi_tensor_adam_fp8(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: float, beta1: float, beta2: float, epsilon: float,
    step: int, mode: int, bias_correction: int, weight_decay: float, fp8_dtype: Any,
) -> None:  # fmt: skip
    """Gradients, parameters of eight bits, both moments, master parameters; scales, maxima and inverse scales."""
    launch(
        "adam_fp8", *(list(each) for each in tensor_lists), noop_flag, lr, beta1, beta2, epsilon, step, mode,
        bool(bias_correction), weight_decay, int(fp8_dtype),
    )  # fmt: skip


@kernel(
    """sgd(Tensor[] g, Tensor(p!)[] p, Tensor(m!)[] m, Tensor(c!)[] copies, Tensor noop, float wd, float momentum, float
    dampening, float lr, bool nesterov, bool first, bool wd_after, float scale)""",
    cost=_moving(g=1, p=2, m=2, copies=1),
)  # fmt: skip
def _sgd(
    g: list[Tensor], p: list[Tensor], m: list[Tensor], copies: list[Tensor], noop: Tensor, wd: float, momentum: float,
    dampening: float, lr: float, nesterov: bool, first: bool, wd_after: bool, scale: float,
) -> None:  # fmt: skip
    if bool(noop.reshape(-1)[0]):
        return
    for at, each in enumerate(g):
        given, old = each.float() * scale, p[at].float()
        if wd and not wd_after:
            given = given + wd * old
        if momentum:
            kept = given if first else momentum * m[at].float() + (1 - dampening) * given
            m[at].copy_(kept)
            given = given + momentum * kept if nesterov else kept
        if wd and wd_after:
            given = given + wd * old
        p[at].copy_(old - lr * given)
        if copies:
            copies[at].copy_(p[at])


def multi_tensor_sgd(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, wd: float, momentum: float, dampening: float, lr: float,
    nesterov: bool, first_run: bool, wd_after_momentum: bool, scale: float,
) -> None:  # fmt: skip
    """Gradients, parameters, momenta, and copies of the parameters in 16 bits where there are any."""
    g, p, m, *copies = (list(each) for each in tensor_lists)
    launch(
        "sgd", g, p, m, copies[0] if copies else [], noop_flag, wd, momentum, dampening, lr, nesterov, first_run,
        wd_after_momentum, scale,
    )  # fmt: skip


@kernel(
    "scale_list(Tensor[] x, Tensor(o!)[] out, Tensor! noop, Tensor? factor_at, float factor)", cost=_moving(x=1, out=1)
)
def _scale_list(x: list[Tensor], out: list[Tensor], noop: Tensor, factor_at: Tensor | None, factor: float) -> None:
    factor = factor if factor_at is None else float(factor_at)
    for given, made in zip(x, out, strict=True):
        made.copy_(given.float() * factor)
        if not bool(torch.isfinite(given.float()).all()):
            noop.fill_(1)


def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float) -> None:
    """The second list becomes the first one, times the scale; the flag is one if there was an infinite number."""
    launch("scale_list", list(tensor_lists[0]), list(tensor_lists[1]), noop_flag, None, scale)


def multi_tensor_scale_tensor(chunk_size: int, is_infinite: Tensor, tensor_lists: Lists, scale: Tensor) -> None:
    """The same with a scale on the device."""
    launch("scale_list", list(tensor_lists[0]), list(tensor_lists[1]), is_infinite, scale, 1.0)


@kernel("l2norm(Tensor[] x, Tensor! noop, Tensor! norm, Tensor(e!)? each, Tensor? inverse_scale)", cost=_moving(x=1))
def _l2norm(x: list[Tensor], noop: Tensor, norm: Tensor, each: Tensor | None, inverse_scale: Tensor | None) -> None:
    factor = 1.0 if inverse_scale is None else float(inverse_scale)
    squares = torch.stack([(given.float() * factor).square().sum() for given in x])
    norm.copy_(squares.sum().sqrt().view(norm.shape))
    if each is not None:
        each.copy_(squares.sqrt())
    if not bool(torch.isfinite(squares).all()):
        noop.fill_(1)


def _norm(noop: Tensor, lists: Lists, per_tensor: bool | None, inverse_scale: Tensor | None) -> tuple[Tensor, Tensor]:
    x = list(lists[0])
    device = x[0].device
    norm = torch.empty(1, dtype=torch.float32, device=device)
    each = torch.empty(len(x) if per_tensor else 0, dtype=torch.float32, device=device)
    launch("l2norm", x, noop, norm, each if per_tensor else None, inverse_scale)
    return norm, each


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor_python: bool | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of all, ``[1]``, and of each where that is wanted."""
    return _norm(noop_flag, tensor_lists, per_tensor_python, None)


def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, inv_scale: Tensor, per_tensor_python: bool | None = None
) -> tuple[Tensor, Tensor]:
    """The same of what is multiplied by a factor on the device."""
    return _norm(noop_flag, tensor_lists, per_tensor_python, inv_scale)


@kernel(
    """update_scales(Tensor reduced, Tensor(h!)[] histories, Tensor(s!)[] scales, str algorithm, int dtype, float margin)""",
    cost=_moving(histories=2, scales=2),
)  # fmt: skip
def _update_scales(
    reduced: Tensor, histories: list[Tensor], scales: list[Tensor], algorithm: str, dtype: int, margin: float
) -> None:
    largest, at = torch.finfo(torch_format(dtype)).max, 0
    for history, scale in zip(histories, scales, strict=True):
        width = history.shape[1]
        part = reduced[at : at + width]
        last = torch.where(part != 0, part, history[0])
        at += width
        later = torch.cat(
            [history[1:].clone(), last[None]]
        )  # the newest is the last one, and room for the next the first
        amax = torch.where(last != 0, later.amax(0) if algorithm == "max" else last, torch.zeros_like(last))
        later[0] = 0
        history.copy_(torch.where(last != 0, later, history))
        found = largest / amax / 2**margin
        found = torch.where((amax > 0) & torch.isfinite(amax), found, scale)
        scale.copy_(found.clamp(max=torch.finfo(torch.float32).max))


def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: Tensor, amax_histories: Sequence[Tensor], scales: Sequence[Tensor], amax_compute_algo: str,
    fp8_dtype: Any, margin: float,
) -> None:  # fmt: skip
    """New scales by the histories of maxima, which then go on by one."""
    launch(
        "update_scales", amax_reduction_buffer, list(amax_histories), list(scales), amax_compute_algo, int(fp8_dtype),
        float(margin),
    )  # fmt: skip


@kernel(
    "compute_scales(Tensor[] amaxes, Tensor(s!)[] scales, Tensor(i!)[] inverses, float largest, bool powers, float epsilon)",
    cost=_moving(amaxes=1, scales=1, inverses=1),
)
def _compute_scales(
    amaxes: list[Tensor], scales: list[Tensor], inverses: list[Tensor], largest: float, powers: bool, epsilon: float
) -> None:
    for amax, scale, inverse in zip(amaxes, scales, inverses, strict=True):
        scale.copy_(scale_of(amax.float(), largest, powers, epsilon))
        inverse.copy_(1 / scale)


def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, max_fp8: float, force_pow_2_scales: bool, epsilon: float
) -> None:
    """Scales and inverse scales of maxima."""
    launch("compute_scales", *(list(each) for each in tensor_lists), max_fp8, force_pow_2_scales, epsilon)


@kernel("compute_exponents(Tensor[] amaxes, Tensor(i!)[] inverses)", cost=_moving(amaxes=1, inverses=1))
def _compute_exponents(amaxes: list[Tensor], inverses: list[Tensor]) -> None:
    most = torch.finfo(torch.float8_e4m3fn).max
    for amax, inverse in zip(amaxes, inverses, strict=True):
        inverse.copy_(exponents_above(amax.float() * torch.tensor(1 / most)).to(torch.uint8))


def multi_tensor_compute_scale_inv_e8m0(chunk_size: int, dummy: object, tensor_lists: Lists) -> None:
    """Inverse scales of maxima in bfloat16, as powers of two in eight bits, for e4m3."""
    launch("compute_exponents", *(list(each) for each in tensor_lists))
