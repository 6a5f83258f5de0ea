"""Layer norm and RMS norm, forward and backward, in float32: ``(x - mean) * rsigma * gamma + beta``.

Results in eight bits are normed in the module's format and quantized by a kernel of their own, where the package has one kernel
for a delayed scale: their time is UNVERIFIED, that of both.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch
from kernbench.compiled_operators.transformer_engine.names import torch_format
from kernbench.compiled_operators.transformer_engine.quantizing import quantize

Tensor = torch.Tensor


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).float()


def _gamma(weight: Tensor, zero_centered: bool) -> Tensor:
    return weight.float() + 1 if zero_centered else weight.float()


@kernel(
    """layernorm_fwd(Tensor x, Tensor weight, Tensor? bias, float eps, Tensor! out, Tensor! mu, Tensor! rsigma, bool
    zero_centered)""",
    "x", "weight", "bias", "out", "mu", "rsigma",
)  # fmt: skip
def _layernorm_fwd(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor, mu: Tensor, rsigma: Tensor,
    zero_centered: bool,
) -> None:  # fmt: skip
    rows = _rows(x)
    mean = rows.mean(-1)
    rows = rows - mean[:, None]
    scale = torch.rsqrt(rows.square().mean(-1) + eps)
    found = rows * scale[:, None] * _gamma(weight, zero_centered)
    out.copy_((found if bias is None else found + bias.float()).view(out.shape))
    mu.copy_(mean)
    rsigma.copy_(scale)


@kernel(
    """layernorm_bwd(Tensor dz, Tensor x, Tensor mu, Tensor rsigma, Tensor gamma, Tensor! dx, Tensor! dgamma, Tensor!
    dbeta, bool zero_centered)""",
    "dz", "x", "mu", "rsigma", "gamma", "dx", "dgamma", "dbeta",
)  # fmt: skip
def _layernorm_bwd(
    dz: Tensor, x: Tensor, mu: Tensor, rsigma: Tensor, gamma: Tensor, dx: Tensor, dgamma: Tensor, dbeta: Tensor,
    zero_centered: bool,
) -> None:  # fmt: skip
    given, normed = _rows(dz), (_rows(x) - mu[:, None]) * rsigma[:, None]
    dgamma.copy_((given * normed).sum(0))
    dbeta.copy_(given.sum(0))
    given = given * _gamma(gamma, zero_centered)
    given = given - given.mean(-1, keepdim=True) - normed * (given * normed).mean(-1, keepdim=True)
    dx.copy_((given * rsigma[:, None]).view(dx.shape))


@kernel(
    "rmsnorm_fwd(Tensor x, Tensor weight, float eps, Tensor! out, Tensor! rsigma, bool zero_centered)",
    "x", "weight", "out", "rsigma",
)  # fmt: skip
def _rmsnorm_fwd(x: Tensor, weight: Tensor, eps: float, out: Tensor, rsigma: Tensor, zero_centered: bool) -> None:
    rows = _rows(x)
    scale = torch.rsqrt(rows.square().mean(-1) + eps)
    out.copy_((rows * scale[:, None] * _gamma(weight, zero_centered)).view(out.shape))
    rsigma.copy_(scale)


@kernel(
    """rmsnorm_bwd(Tensor dz, Tensor x, Tensor? add, Tensor rsigma, Tensor gamma, Tensor! dx, Tensor! dgamma, bool
    zero_centered)""",
    "dz", "x", "add", "rsigma", "gamma", "dx", "dgamma",
)  # fmt: skip
def _rmsnorm_bwd(
    dz: Tensor, x: Tensor, add: Tensor | None, rsigma: Tensor, gamma: Tensor, dx: Tensor, dgamma: Tensor,
    zero_centered: bool,
) -> None:  # fmt: skip
    given, normed = _rows(dz), _rows(x) * rsigma[:, None]
    dgamma.copy_((given * normed).sum(0))
    given = given * _gamma(gamma, zero_centered)
    found = (given - normed * (given * normed).mean(-1, keepdim=True)) * rsigma[:, None]
    dx.copy_((found if add is None else found + _rows(add)).view(dx.shape))


def _statistics(x: Tensor) -> Tensor:
    return torch.empty(x.numel() // max(x.shape[-1], 1), dtype=torch.float32, device=x.device)


def _forward(x: Tensor, ln_out: Any, quantizer: object, otype: Any) -> tuple[Tensor, Any]:
    """Where the norm is written, and what makes the result of it."""
    if quantizer is None:
        out = torch.empty_like(x, dtype=torch_format(otype)) if ln_out is None else ln_out
        return out, lambda: out
    out = torch.empty_like(x, dtype=torch_format(otype))
    return out, lambda: quantize(out, quantizer, ln_out)


def layernorm_fwd(
    input: Tensor, weight: Tensor, bias: Tensor | None, eps: float, ln_out: object, quantizer: object, otype: object,
    sm_margin: int, zero_centered_gamma: bool,
) -> list[Any]:  # fmt: skip
    """The norm, the means and the inverse deviations of the rows, ``[rows]`` in float32."""
    out, result = _forward(input, ln_out, quantizer, otype)
    mu, rsigma = _statistics(input), _statistics(input)
    launch("layernorm_fwd", input, weight, bias, eps, out, mu, rsigma, zero_centered_gamma)
    return [result(), mu, rsigma]


def layernorm_bwd(
    dz: Tensor, x: Tensor, mu: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> list[Tensor]:
    """Gradients of the input, of gamma and of beta."""
    dz, x = dz.contiguous(), x.contiguous()
    made = torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)
    launch("layernorm_bwd", dz, x, mu, rsigma, gamma, *made, zero_centered_gamma)
    return list(made)


def rmsnorm_fwd(
    input: Tensor, weight: Tensor, eps: float, ln_out: object, quantizer: object, otype: object, sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:  # fmt: skip
    """The norm, none, and the inverse roots of the rows' mean squares, ``[rows]`` in float32."""
    out, result = _forward(input, ln_out, quantizer, otype)
    rsigma = _statistics(input)
    launch("rmsnorm_fwd", input, weight, eps, out, rsigma, zero_centered_gamma)
    return [result(), None, rsigma]


def rmsnorm_bwd(
    dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> list[Tensor]:
    """Gradients of the input and of gamma."""
    return _rms_backward(dz, x, None, rsigma, gamma, zero_centered_gamma)


def rmsnorm_bwd_add(
    dz: Tensor, x: Tensor, add: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> list[Tensor]:
    """The same, with what is added to the gradient of the input."""
    return _rms_backward(dz, x, add.contiguous(), rsigma, gamma, zero_centered_gamma)


def _rms_backward(
    dz: Tensor, x: Tensor, add: Tensor | None, rsigma: Tensor, gamma: Tensor, zero_centered: bool
) -> list[Tensor]:
    dz, x = dz.contiguous(), x.contiguous()
    made = torch.empty_like(x), torch.empty_like(gamma)
    launch("rmsnorm_bwd", dz, x, add, rsigma, gamma, *made, zero_centered)
    return list(made)
