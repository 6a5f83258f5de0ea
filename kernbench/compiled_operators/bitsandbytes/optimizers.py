"""Optimizers whose state is in 32 bits, or in eight, in blocks of 256 with a table: one kernel for each parameter."""

from __future__ import annotations

import torch

from kernbench.compiled_operators.bitsandbytes import formats
from kernbench.compiled_operators.bitsandbytes.kernels import TABLE

Tensor = torch.Tensor

_BLOCK = 256
_ONE_STATE = ("momentum", "lars", "rmsprop", "adagrad", "lion")
_HOW = "float beta1, float beta2, float eps, float decay, int step, float rate, float factor, bool skip"


def stepped(
    name: str, grad: Tensor, parameter: Tensor, first: Tensor, second: Tensor | None, *, beta1: float, beta2: float, eps: float,
    decay: float, step: int, rate: float, factor: float, skip: bool, share: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """One step in float32: the parameter and the states after it.

    Args:
        factor: by which gradients are multiplied.
        skip: whether elements without a gradient stay as they are.
        share: of the update that is made, where its norm is limited.

    Raises NotImplementedError for an optimizer that is not here.
    """
    given, value = grad.float() * factor, parameter.float()
    if name in ("momentum", "lars", "rmsprop", "adagrad"):
        given = given + decay * value
    if name in ("adam", "lamb"):
        assert second is not None
        first = beta1 * first + (1 - beta1) * given
        second = beta2 * second + (1 - beta2) * given.square()
        root = (1 - beta2**step) ** 0.5
        update = -rate * root / (1 - beta1**step) * first / (second.sqrt() + eps * root)
        shrunk = value * (1 - rate * decay)
    elif name in ("momentum", "lars"):
        first = given if step == 1 else beta1 * first + given
        update, shrunk = -rate * first, value
    elif name == "rmsprop":
        first = beta1 * first + (1 - beta1) * given.square()
        update, shrunk = -rate * given / (first.sqrt() + eps), value
    elif name == "adagrad":
        first = first + given.square()
        update, shrunk = -rate * given / (first.sqrt() + eps), value
    elif name == "lion":
        update = -rate * (beta1 * first + (1 - beta1) * given).sign()
        first, shrunk = beta2 * first + (1 - beta2) * given, value * (1 - rate * decay)
    else:
        raise NotImplementedError(f"bitsandbytes: its stand-in has no optimizer {name}: there are adam, lamb, "
                                  f"{', '.join(_ONE_STATE)}")  # fmt: skip
    after = shrunk + share * update
    return (torch.where(grad == 0, value, after) if skip else after), first, second


@TABLE.kernel(
    "step_in_32_bits(str name, Tensor grad, Tensor(a!) parameter, Tensor(b!) first, Tensor(c!)? second, "
    f"{_HOW}, Tensor(d!)? norm, float most, float size)",
    "grad", "parameter", "parameter", "first", "first", "second", "second",
)  # fmt: skip
def _step_in_32_bits(
    name: str, grad: Tensor, parameter: Tensor, first: Tensor, second: Tensor | None, beta1: float, beta2: float, eps: float,
    decay: float, step: int, rate: float, factor: float, skip: bool, norm: Tensor | None, most: float, size: float,
) -> None:  # fmt: skip
    if most > 0:
        raise NotImplementedError("bitsandbytes: the values of its stand-in limit no norms of updates (max_unorm)")
    after, one, two = stepped(
        name, grad, parameter, first, second, beta1=beta1, beta2=beta2, eps=eps, decay=decay, step=step, rate=rate,
        factor=factor, skip=skip,
    )  # fmt: skip
    parameter.copy_(after)
    first.copy_(one)
    if second is not None and two is not None:
        second.copy_(two)


@TABLE.kernel(
    "step_in_8_bits(str name, Tensor grad, Tensor(a!) parameter, Tensor(b!) first, Tensor(c!)? second, Tensor code1, "
    f"Tensor? code2, Tensor(d!) scales1, Tensor(e!)? scales2, {_HOW})",
    "grad", "parameter", "parameter", "first", "first", "second", "second", "scales1", "scales1", "scales2", "scales2",
)  # fmt: skip
def _step_in_8_bits(
    name: str, grad: Tensor, parameter: Tensor, first: Tensor, second: Tensor | None, code1: Tensor, code2: Tensor | None,
    scales1: Tensor, scales2: Tensor | None, beta1: float, beta2: float, eps: float, decay: float, step: int, rate: float,
    factor: float, skip: bool,
) -> None:  # fmt: skip
    states = [(first, code1, scales1), *([(second, code2, scales2)] if second is not None else [])]
    plain = [formats.from_eight_bits(state, scales, code, _BLOCK) for state, code, scales in states]  # type: ignore[arg-type]
    after, *made = stepped(
        name, grad, parameter, plain[0], plain[1] if len(plain) > 1 else None, beta1=beta1, beta2=beta2, eps=eps, decay=decay,
        step=step, rate=rate, factor=factor, skip=skip,
    )  # fmt: skip
    parameter.copy_(after)
    for (state, code, scales), numbers in zip(states, made, strict=False):
        assert state is not None
        assert code is not None
        assert scales is not None
        assert numbers is not None
        scaled, largest = formats.in_blocks(numbers, _BLOCK)
        state.copy_(formats.places_of(scaled, code).view(state.shape))
        scales.copy_(largest)


def update_32bit(
    optimizer_name: str, g: Tensor, p: Tensor, state1: Tensor, state2: Tensor | None, unorm_vec: Tensor | None,
    max_unorm: float, param_norm: float, beta1: float, beta2: float, beta3: float, alpha: float, eps: float,
    weight_decay: float, step: int, lr: float, gnorm_scale: float, skip_zeros: bool = False,
) -> None:  # fmt: skip
    """One step of a parameter."""
    TABLE.launch(
        "step_in_32_bits", optimizer_name, g, p, state1, state2, beta1, beta2, eps, weight_decay, step, lr, gnorm_scale,
        skip_zeros, unorm_vec, max_unorm, param_norm,
    )  # fmt: skip


def update_8bit(
    optimizer_name: str, g: Tensor, p: Tensor, state1: Tensor, state2: Tensor | None, beta1: float, beta2: float, beta3: float,
    alpha: float, eps: float, step: int, lr: float, qmap1: Tensor, qmap2: Tensor | None, absmax1: Tensor,
    absmax2: Tensor | None, weight_decay: float, gnorm_scale: float, skip_zeros: bool = False,
) -> None:  # fmt: skip
    """One step of a parameter."""
    TABLE.launch(
        "step_in_8_bits", optimizer_name, g, p, state1, state2, qmap1, qmap2, absmax1, absmax2, beta1, beta2, eps, weight_decay,
        step, lr, gnorm_scale, skip_zeros,
    )  # fmt: skip
