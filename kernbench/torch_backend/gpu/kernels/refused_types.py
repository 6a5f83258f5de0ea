"""Formats that a kernel of CUDA's is not there for, and a CPU's is: refused here, too, in CUDA's words.

Products are cuBLAS's, which has none of whole numbers; convolutions cuDNN's; other kernels are generated for the formats that
their sources name (``AT_DISPATCH_...`` in ``aten/src/ATen/native/cuda`` of github.com/pytorch/pytorch). Operands of two formats
are refused where CUDA refuses them: the products that compute in 32 bits here would take them. What both refuse has the words
of the CPU's kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch

_WHOLE = frozenset((torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
                    torch.uint16, torch.uint32, torch.uint64))  # fmt: skip
_EIGHT = frozenset((torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz))
_SIXTEEN = frozenset((torch.float16, torch.bfloat16))

LETTERS = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.int64: "Long",
    torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte", torch.bool: "Bool",
    torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble", torch.complex32: "ComplexHalf",
    torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64", torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e5m2: "Float8_e5m2", torch.float8_e4m3fnuz: "Float8_e4m3fnuz", torch.float8_e5m2fnuz: "Float8_e5m2fnuz",
}  # fmt: skip
"""Formats, as C++ names them."""

IN_C = {
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
    torch.int64: "long long", torch.int32: "int", torch.int16: "short", torch.int8: "signed char", torch.uint8: "unsigned char",
    torch.bool: "bool",
}  # fmt: skip
"""The types of C++ behind them."""


class MissingKernel(NamedTuple):
    """A kernel that is there for some formats only.

    Attributes:
        at: the argument whose format is asked.
        name: of the kernel, in errors.
        formats: that it is not there for.
    """

    at: int
    name: str
    formats: Collection[torch.dtype]


_PRODUCTS = _WHOLE | _EIGHT

MISSING: dict[str, MissingKernel] = {
    "mm": MissingKernel(0, "addmm_cuda", _PRODUCTS),
    "linear": MissingKernel(0, "addmm_cuda", _PRODUCTS),
    "addmm": MissingKernel(1, "addmm_cuda", _PRODUCTS),
    "addbmm": MissingKernel(1, "addmm_cuda", _PRODUCTS),
    "bmm": MissingKernel(0, "baddbmm_cuda", _PRODUCTS),
    "baddbmm": MissingKernel(1, "baddbmm_cuda", _PRODUCTS),
    "mv": MissingKernel(0, "addmv_impl_cuda", _PRODUCTS),
    "addmv": MissingKernel(1, "addmv_impl_cuda", _PRODUCTS),
    "_trilinear": MissingKernel(0, "baddbmm_cuda", _PRODUCTS),
    "dot": MissingKernel(0, "dot", _PRODUCTS),
    "vdot": MissingKernel(0, "vdot", _PRODUCTS),
    "max_pool2d_with_indices": MissingKernel(0, "max_pool2d_with_indices_out_cuda_frame", _WHOLE),
    "max_pool3d_with_indices": MissingKernel(0, "max_pool3d_with_indices_out_frame", _WHOLE),
    "avg_pool2d": MissingKernel(0, "avg_pool2d_out_cuda_frame", _WHOLE),
    "avg_pool3d": MissingKernel(0, "avg_pool3d_out_cuda", _WHOLE),
    "upsample_bilinear2d": MissingKernel(0, "upsample_bilinear2d_out_frame", _WHOLE),
    "_upsample_bilinear2d_aa": MissingKernel(0, "upsample_bilinear2d_out_frame", _WHOLE),
    "upsample_bicubic2d": MissingKernel(0, "upsample_bicubic2d_out_frame", _WHOLE),
    "_upsample_bicubic2d_aa": MissingKernel(0, "upsample_bilinear2d_out_frame", _WHOLE),
    "igamma": MissingKernel(0, "igamma_cuda", _SIXTEEN),
    "igammac": MissingKernel(0, "igammac_cuda", _SIXTEEN),
    "histc": MissingKernel(0, "histc", {torch.bfloat16}),
}  # fmt: skip
"""By operator, without the underscore of those that write their first argument."""


def _different(words: str, first: int, second: int, names: dict[torch.dtype, str] = LETTERS) -> Callable[[object], str]:
    """What is said, ``words`` with two formats in it, where two arguments have different ones."""

    def why(args: Any) -> str:
        tensors = [args[at] for at in (first, second) if at < len(args) and args[at] is not None]
        if len(tensors) < 2 or tensors[0].dtype is tensors[1].dtype:
            return ""
        return words.format(*(names.get(each.dtype, str(each.dtype)) for each in tensors))

    return why


_EXPECTED = "expected scalar type {} but found {}"
_ADDED = "self and mat2 must have the same dtype, but got {} and {}"
_MULTIPLIED = "expected mat1 and mat2 to have the same dtype, but got: {} != {}"


def _either(*checks: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda args: next(filter(None, (check(args) for check in checks)), "")


def _convolution(args: Any) -> str:
    kind, *others = (None if each is None else f"torch.cuda.{LETTERS.get(each.dtype)}Tensor" for each in args[:3])
    for name, other in zip(("weight", "bias"), others, strict=True):
        if other not in (None, kind):
            return f"Input type ({kind}) and {name} type ({other}) should be the same"
    if args[0].dtype in _PRODUCTS:
        return f"getCudnnDataTypeFromScalarType() not supported for {LETTERS[args[0].dtype]}"
    return ""


def _histogram(args: Any) -> str:
    return "HalfTensor is not supported" if args[0].dtype is torch.float16 else ""


def _norm_gradient(args: Any) -> str:
    """Of a batch norm: the kernel for gradients reads weight and running statistics in one format (``Normalization.cu``).

    Inputs whose channels are innermost have another one, which reads no running statistics.
    """
    given, weight, mean, reduces, wanted = args[1], args[2], args[3], args[7] or args[9][1] or args[9][2], args[9]
    if weight is None or mean is None or not (reduces and wanted[0]) or _has_channels_last(given):
        return ""
    read = given.dtype if weight.dtype is given.dtype else torch.float32
    if given.dtype not in _SIXTEEN or mean.dtype is read:
        return ""
    return f"Expected running_mean to have type {LETTERS[read]} but got {LETTERS.get(mean.dtype)}"


def _has_channels_last(tensor: torch.Tensor) -> bool:
    lasts = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = lasts.get(tensor.dim())
    if last is not None and tensor.is_contiguous(memory_format=last):
        return True
    return tensor.is_contiguous() and tensor.stride(1) == 1


_UNLIKE: dict[str, Callable[[object], str]] = {
    "mm": _different(_MULTIPLIED, 0, 1, IN_C),
    "addmm": _either(_different(_MULTIPLIED, 1, 2, IN_C), _different(_ADDED, 0, 2)),
    "linear": _either(_different(_MULTIPLIED, 0, 1, IN_C), _different(_ADDED, 2, 1)),
    "bmm": _different(_EXPECTED, 0, 1),
    "baddbmm": _either(_different(_EXPECTED, 1, 2), _different(_ADDED, 0, 2)),
    "mv": _different(_EXPECTED, 0, 1),
    "addmv": _different(_EXPECTED, 1, 2),
    "native_layer_norm": _different(_EXPECTED, 0, 2),
    "native_group_norm": _different(_EXPECTED, 0, 1),
    "native_batch_norm_backward": _norm_gradient,
    "convolution": _convolution,
    "_convolution": _convolution,
    "histc": _histogram,
}
"""By operator: what is wrong with the formats of its arguments; empty: nothing. A RuntimeError says it."""


def _loss(args: Any) -> str:
    """The name of the kernel that a loss has no target's format for; empty: it has."""
    target, reduced = args[1], args[3]
    if target.dtype in (torch.int64, torch.uint8):
        return ""
    if reduced == 0:
        return "nll_loss_forward_no_reduce_cuda_kernel_index"
    return f"nll_loss_forward_reduce_cuda_kernel_{args[0].dim()}d_index"


def refusal_of(name: str) -> Callable[[object], None] | None:
    """What raises if CUDA refuses the formats of an operator's arguments; None: it refuses none that a CPU takes."""
    name = name.rstrip("_")
    missing, unlike = MISSING.get(name), _UNLIKE.get(name)
    if name == "nll_loss_forward":
        return _check_loss
    if missing is None and unlike is None:
        return None

    def check(args: Any) -> None:
        if missing is not None and args[missing.at].dtype in missing.formats:
            raise NotImplementedError(f"\"{missing.name}\" not implemented for '{LETTERS[args[missing.at].dtype]}'")
        text = "" if unlike is None else unlike(args)
        if text:
            raise RuntimeError(text)

    return check


def _check_loss(args: Any) -> None:
    kernel = _loss(args)
    if kernel:
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{LETTERS[args[1].dtype]}'")
