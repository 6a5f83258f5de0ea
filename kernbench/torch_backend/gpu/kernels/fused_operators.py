"""Operators that are one kernel on a GPU, and that torch composes of others for CPU tensors.

- ``rms_norm``: on a GPU ``_fused_rms_norm``, forward and backward, where input and weight have one format.
- ``dropout``: on a GPU ``native_dropout``, which keeps its mask, for ``0 < p < 1``.
- ``one_hot``: of the host's tensor C++ looks at the least and the largest value; on a GPU it looks at the largest if it is not
  told how many classes there are, and at nothing otherwise.
- ``linalg.lstsq``: a CPU has four drivers, a GPU one.
- ``ctc_loss``: its mean is over lengths that C++ moves to the scores' device; the host's are given as numbers.

The functions of torch that choose are replaced, and choose for tensors on simulated GPUs as they would there. What CPUs have no
kernel for is given one (:func:`register`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.gpu.kernels.autocasting import cast
from kernbench.torch_backend.gpu.tensors.placement import block_of, is_on_gpu
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

Tensor = torch.Tensor

RELIES_ON = (
    Reliance("torch", "`torch.nn.functional.rms_norm` and others choose their kernel in these",
             has=("rms_norm", "dropout", "ctc_loss")),
    Reliance("torch._VF", "`torch.nn.functional.dropout` calls this", has=("dropout",)),
    Reliance("torch.ops.aten._fused_rms_norm.default", "what a GPU runs, with a gradient of its own", has=("_schema",)),
    Reliance("torch.ops.aten._fused_rms_norm_backward.default", "its gradient", has=("_schema",)),
    Reliance("torch.native_dropout", "what a GPU runs"),
    Reliance("torch.nn.functional", "programs call it by this name", has=("one_hot",)),
    Reliance("torch._C._nn", "torch calls it by this one", has=("one_hot",)),
    Reliance("torch.linalg", "so do they this", has=("lstsq",)),
    Reliance("torch._C._functorch.is_functorch_wrapped_tensor", "vmap's tensors are C++'s own business",
             holds=lambda is_wrapped: not is_wrapped(torch.ones(1))),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Let torch choose as on a GPU."""
    patches.set(torch, "rms_norm", _fused_norm(torch.rms_norm))
    patches.set(torch, "dropout", _fused_dropout(torch.dropout))
    patches.set(torch._VF, "dropout", _fused_dropout(torch._VF.dropout))
    patches.set(torch.linalg, "lstsq", _least_squares(torch.linalg.lstsq))
    one_hot = _one_hot(torch.nn.functional.one_hot)
    patches.set(torch.nn.functional, "one_hot", one_hot)
    patches.set(torch._C._nn, "one_hot", one_hot)
    patches.set(torch, "ctc_loss", _ctc_loss(torch.ctc_loss))


def register(library: Any) -> None:
    """Give the CPU the kernels that only a GPU has; ``library``: of ``aten``, for the key ``CPU``."""
    library.impl("_fused_rms_norm", fused_rms_norm)
    library.impl("_fused_rms_norm_backward", fused_rms_norm_backward)


def _fused_norm(stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(stock)
    def rms_norm(
        input: Tensor, normalized_shape: object, weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        if not is_on_gpu(input):
            return stock(input, normalized_shape, weight, eps)
        if torch.is_autocast_enabled("cuda"):
            input, weight = cast(input, torch.float32), cast(weight, torch.float32)
        if input.is_complex() or (weight is not None and weight.dtype is not input.dtype):
            return stock(input, normalized_shape, weight, eps)
        found: Tensor = torch.ops.aten._fused_rms_norm(input, normalized_shape, weight, eps)[0]
        return found

    return rms_norm


def _fused_dropout(stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(stock)
    def dropout(input: Tensor, p: float, train: bool) -> Tensor:
        if not (train and 0 < p < 1 and is_on_gpu(input) and input.numel()):
            return stock(input, p, train)
        return torch.native_dropout(input, p, train)[0]

    return dropout


def _least_squares(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A GPU's only driver is ``gels``, which is its default."""

    @functools.wraps(stock)
    def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None, **out: object) -> Any:
        if not is_on_gpu(A):
            return stock(A, B, rcond, driver=driver, **out)
        if driver not in (None, "gels"):
            raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")
        return stock(A, B, rcond, driver="gels", **out)

    return lstsq


def _one_hot(stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
    is_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor

    @functools.wraps(stock)
    def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
        if type(tensor) is not Tensor or is_wrapped(tensor) or block_of(tensor) is None:
            return stock(tensor, num_classes)
        if tensor.dtype is not torch.int64 or not tensor.numel() or num_classes == 0 or num_classes < -1:
            return stock(tensor, num_classes)  # it refuses what CUDA does
        classes = tensor.max().item() + 1 if num_classes == -1 else num_classes
        made = torch.zeros((*tensor.shape, int(classes)), dtype=torch.int64, device=tensor.device)
        return made.scatter_(-1, tensor.unsqueeze(-1), 1)

    return one_hot


def _ctc_loss(stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def listed(lengths: Any) -> Any:
        return lengths.tolist() if type(lengths) is Tensor and block_of(lengths) is None else lengths

    @functools.wraps(stock)
    def ctc_loss(
        log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *rest: Any, **kwargs: Any
    ) -> Tensor:
        lengths = (input_lengths, target_lengths)
        if is_on_gpu(log_probs):
            listed_lengths = tuple(map(listed, lengths))
            if not any(isinstance(each, Tensor) for each in listed_lengths):
                lengths = listed_lengths
        return stock(log_probs, targets, *lengths, *rest, **kwargs)

    return ctc_loss


def fused_rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """``input / rms * weight`` and ``1 / rms`` (fp32 at least, the last dimensions one), summed in fp32 at least."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    wide = input if input.dtype is torch.float64 else input.float()
    smallest = torch.finfo(wide.dtype).eps if eps is None else eps
    inverse = (wide.square().mean(dims, keepdim=True) + smallest).rsqrt()
    normed = wide * inverse
    if weight is not None:
        normed = normed * weight.to(wide.dtype)
    return normed.to(input.dtype), inverse


def fused_rms_norm_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: list[int], rstd: Tensor, weight: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of input and weight. With ``y = x r w`` and ``g = dL/dy``: ``r (g w - x r mean(g w x r))``, ``sum(g x r)``."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    others = list(range(input.dim() - len(normalized_shape)))
    wide, gradient = input.to(rstd.dtype), grad_out.to(rstd.dtype)
    normed = wide * rstd
    of_input = of_weight = None
    if output_mask[0]:
        scaled = gradient if weight is None else gradient * weight.to(rstd.dtype)
        of_input = (rstd * (scaled - normed * (scaled * normed).mean(dims, keepdim=True))).to(input.dtype)
    if output_mask[1] and weight is not None:
        product = gradient * normed
        of_weight = (product.sum(others) if others else product).to(weight.dtype)
    return of_input, of_weight
