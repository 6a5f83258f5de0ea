"""``torch.autocast`` by the device that tensors are on.

To C++ the tensors of simulated GPUs are a CPU's, so that there is one autocast for both, of a CPU: each of its kernels is
replaced here by one that applies CUDA's policy to tensors on simulated GPUs where CUDA's autocast is on, and a CPU's to others
where a CPU's is. CUDA's policies are those of ATen/autocast_mode.h, which is part of every build.

Casts of parameters are kept while a rank is within autocast. Torch keeps those of all threads of a process together, under a
lock that it holds while it casts: a rank that gives way there would stop all others, and ranks that are threads would drop
each other's.

A softmax of ``float16`` is one kernel that gives 32 bits (:mod:`.wide_softmax`), of ``bfloat16`` a cast comes before it
(ATen/native/SoftMax.cpp); a reduction reads 16 bits and gives 32 in one kernel (ATen/native/ReduceOps.cpp).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, block_of, is_on_gpu, place_result
from kernbench.torch_backend.kernel_registrations import replace_kernels
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_LOWER = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "cudnn_convolution", "cudnn_convolution_transpose",
    "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm",
    "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell",
    "rnn_tanh_cell", "rnn_relu_cell", "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
_LOWER_ON_HOSTS = (
    *_LOWER,
    "_addmm_activation",
    "_native_multi_head_attention",
    "conv1d.padding",
    "conv2d.padding",
    "conv3d.padding",
    "mkldnn_rnn_layer",
)
"""What a CPU's autocast computes in its dtype, of what it has kernels for."""
_IN_32_BITS = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm",
    "rms_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
    "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
_BY_A_CAST = ("cumprod", "cumsum")
_TAKING_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
"""Operators that take no dtype, and those that do the same with one."""
_BY_DTYPE = (
    "prod", "prod.dim_int", "sum", "sum.dim_IntList", "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord",
    *_TAKING_DTYPE,
)  # fmt: skip
"""Operators whose result is of 32 bits unless they are given another dtype."""
_WIDENING = {"softmax.int": "_softmax", "log_softmax.int": "_log_softmax"}
"""Operators of that kind that have a kernel of their own for float16."""
_PROMOTED = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot", "scatter_add",
)  # fmt: skip
_REFUSED = ("binary_cross_entropy",)
_ELIGIBLE = (torch.float32, torch.float16, torch.bfloat16)
_CPU, _CUDA = "AutocastCPU", "AutocastCUDA"
_BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

RELIES_ON = (
    Reliance("torch._C", "a kernel of autocast goes on below it, and is given where there is none", has=(
        "_ExcludeDispatchKeyGuard", "DispatchKey", "DispatchKeySet", "_dispatch_has_kernel_for_dispatch_key",
        "_dispatch_get_all_op_names",
    )),
    Reliance("torch.library.get_kernel", "torch's own kernels of a CPU's autocast are called by it"),
    Reliance("torch.set_autocast_enabled", "autocast is entered and left by it",
             looked_up_by=("torch.amp.autocast_mode.autocast.__enter__", "torch.amp.autocast_mode.autocast.__exit__")),
    Reliance("torch.is_autocast_enabled", "it remembers by it what was before",
             looked_up_by=("torch.amp.autocast_mode.autocast.__enter__",)),
    Reliance("torch.clear_autocast_cache", "the outermost autocast ends with it",
             looked_up_by=("torch.amp.autocast_mode.autocast.__exit__",)),
)  # fmt: skip

Compute = Callable[..., Any]


class _OfCpu(threading.local):
    """Whether a thread's autocast for tensors of the host is on. C++ has it on where it is for either device."""

    enabled = False


_of_cpu = _OfCpu()


_library: torch.library.Library | None = None


class _Casts(threading.local):
    """Parameters in autocast's dtype, by their ``id``, of a thread: of a rank."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}


_casts = _Casts()


def install(patches: Patches) -> None:
    """Tell the autocast of a CPU and of CUDA apart. Its kernels are replaced once it is on; :func:`close` gives them back."""
    stock_set, stock_is, stock_clear = torch.set_autocast_enabled, torch.is_autocast_enabled, torch.clear_autocast_cache

    def set_autocast_enabled(*device_and_enabled: Any) -> None:
        device, enabled = device_and_enabled if len(device_and_enabled) == 2 else ("cuda", *device_and_enabled)
        if enabled and _library is None:
            _open()
        if device == "cpu":
            _of_cpu.enabled = enabled
        else:
            stock_set(device, enabled)
        if device in ("cpu", "cuda"):
            stock_set("cpu", _of_cpu.enabled or stock_is("cuda"))

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return _of_cpu.enabled if device_type == "cpu" else stock_is(device_type)

    def clear_autocast_cache() -> None:
        _casts.of.clear()
        stock_clear()

    patches.set(torch, "clear_autocast_cache", clear_autocast_cache)
    patches.set(torch, "set_autocast_enabled", set_autocast_enabled)
    patches.set(torch, "is_autocast_enabled", is_autocast_enabled)
    patches.set(torch, "set_autocast_cpu_enabled", lambda enabled: set_autocast_enabled("cpu", enabled))
    patches.set(torch, "is_autocast_cpu_enabled", lambda: _of_cpu.enabled)


def _open() -> None:
    """Let autocast go by the device."""
    global _library
    _library = torch.library.Library("aten", "IMPL", _CPU)
    replace_kernels(_library, _kernels())


def close() -> None:
    """Give torch's kernels of autocast back. Idempotent."""
    global _library
    if _library is not None:
        _library._destroy()
    _library = None
    _casts.of.clear()


def policies() -> dict[str, Callable[[OpOverload], Compute]]:
    """What CUDA's autocast does, by the names of operators of ``aten``."""
    return {
        **dict.fromkeys(_LOWER, _lower),
        **dict.fromkeys(_IN_32_BITS, _in_32_bits),
        **dict.fromkeys(_BY_A_CAST, _by_a_cast),
        **dict.fromkeys(_BY_DTYPE, _by_dtype),
        **dict.fromkeys(_WIDENING, _softmax),
        **dict.fromkeys(_PROMOTED, _promoted),
        **dict.fromkeys(_REFUSED, _refused),
    }


@cache
def _kernels() -> dict[str, Compute]:
    """Kernels of autocast by the operators' names, of those that have one for a CPU or for CUDA."""
    known = policies()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    made = {}
    for qualified in torch._C._dispatch_get_all_op_names():
        space, _, name = qualified.partition("::")
        if space != "aten" or not (has_kernel(qualified, _CPU) or has_kernel(qualified, _CUDA)):
            continue
        overload = _overload(name)
        made[name] = _by_device(overload, known.get(name, _as_it_is)(overload), _on_hosts(overload))
    return made


def _stock(overload: OpOverload, key: str) -> Compute | None:
    """Torch's own kernel of an operator for autocast, if it has one."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key):
        return None
    kernel = torch.library.get_kernel(overload, key)
    return lambda *args, **kwargs: kernel.call_boxed(_BELOW, *args, **kwargs)


def _on_hosts(overload: OpOverload) -> Compute | None:
    """Torch's own kernel for a CPU, which finds parameters cast already."""
    stock = _stock(overload, _CPU)
    if stock is None or _name_of(overload) not in _LOWER_ON_HOSTS:
        return stock

    def compute(*args: object, **kwargs: object) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        with torch._C._ExcludeDispatchKeyGuard(_BELOW):
            args, kwargs = _each(_cast_parameter, dtype, args, kwargs)
        return stock(*args, **kwargs)

    return compute


def _by_device(overload: OpOverload, on_gpu: Compute, on_host: Compute | None) -> Compute:
    def compute(*args: object, **kwargs: object) -> Any:
        device = device_of(args, kwargs)
        kernel = on_gpu if device == "cuda" else on_host
        if kernel is not None and torch.is_autocast_enabled(device):
            return kernel(*args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_BELOW):
            return overload(*args, **kwargs)

    return compute


def device_of(args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    """The device whose autocast applies to a call: ``cuda`` if a tensor of it is on a simulated GPU, else ``cpu``."""
    return "cuda" if any(map(_says_gpu, listed_tensors((*args, *kwargs.values())))) else "cpu"


def _says_gpu(tensor: torch.Tensor) -> bool:
    """Whether it is on a GPU; a fake tensor has no memory there, and says so by its device."""
    return is_on_gpu(tensor) or (type(tensor) not in PLAIN and tensor.device.type == "cuda")


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _name_of(overload: OpOverload) -> str:
    return overload.name().removeprefix("aten::")


# -- policies of CUDA ---------------------------------------------------------------------------------------------------


def _lower(overload: OpOverload) -> Compute:
    return lambda *args, **kwargs: _below(overload, torch.get_autocast_dtype("cuda"), args, kwargs)


def _in_32_bits(overload: OpOverload) -> Compute:
    return lambda *args, **kwargs: _below(overload, torch.float32, args, kwargs)


def _by_a_cast(overload: OpOverload) -> Compute:
    def compute(tensor: torch.Tensor, *args: object, dtype: torch.dtype | None = None) -> Any:
        return _below(overload, torch.float32 if dtype is None else tensor.dtype, (tensor, *args), {"dtype": dtype})

    return compute


def _by_dtype(overload: OpOverload) -> Compute:
    name = _name_of(overload)
    takes_dtype = _overload(_TAKING_DTYPE.get(name, name))

    def compute(tensor: torch.Tensor, *args: object, **kwargs: object) -> Any:
        if tensor.dtype in _ELIGIBLE and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_BELOW):
            return takes_dtype(tensor, *args, **kwargs)

    return compute


def _softmax(overload: OpOverload) -> Compute:
    widening = _overload(_WIDENING[_name_of(overload)])

    def compute(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_BELOW):
            if dtype is not None:
                return overload(tensor, dim, dtype)
            if tensor.dtype is torch.float16 and type(tensor) in PLAIN and block_of(tensor) is not None:
                return widening(tensor, dim, True)
            return overload(cast(tensor, torch.float32), dim)

    return compute


def _promoted(overload: OpOverload) -> Compute:
    """In 32 bits if one of the tensors is, else in autocast's dtype."""

    def compute(*args: object, **kwargs: object) -> Any:
        given = [*args, *kwargs.values()]
        wide = any(isinstance(each, torch.Tensor) and each.dtype is torch.float32 for each in given)
        return _below(overload, torch.float32 if wide else torch.get_autocast_dtype("cuda"), args, kwargs)

    return compute


def _refused(overload: OpOverload) -> Compute:
    kernel = _stock(overload, _CUDA)
    assert kernel is not None
    return kernel


def _as_it_is(overload: OpOverload) -> Compute:
    """An operator that CUDA's autocast has no policy for, but maybe for what it consists of."""

    def compute(*args: object, **kwargs: object) -> Any:
        if overload._can_decompose():
            return overload.decompose(*args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_BELOW):
            return overload(*args, **kwargs)

    return compute


def _below(overload: OpOverload, dtype: torch.dtype, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_BELOW):
        args, kwargs = _each(cast, dtype, args, kwargs)
        return overload(*args, **kwargs)


def _each(
    change: Callable[[Any, torch.dtype], Any], dtype: torch.dtype, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """``change`` of all arguments, the last one first, as the code of torch's builds evaluates them: the order in which
    gradients come depends on it, and so do DDP's buckets."""
    named = {name: change(each, dtype) for name, each in reversed(kwargs.items())}
    return tuple([change(each, dtype) for each in reversed(args)][::-1]), named


def cast(value: Any, dtype: torch.dtype) -> Any:
    """A tensor that autocast applies to, or each of a list, in ``dtype``; any other value as it is."""
    if type(value) is list:
        return [cast(each, dtype) for each in value]
    if not isinstance(value, torch.Tensor) or value.dtype is dtype or value.dtype not in _ELIGIBLE:
        return value
    return _kept_cast(value, dtype) if _is_kept(value) else _cast_tensor(value, dtype)


def _cast_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    found = tensor.to(dtype)
    block = block_of(tensor)
    if block is not None:
        place_result(found, block.memory)  # also where nothing is recorded
    return found


def _cast_parameter(value: Any, dtype: torch.dtype) -> Any:
    """A parameter, or each of a list, in ``dtype``; any other value as it is."""
    if type(value) is list:
        return [_cast_parameter(each, dtype) for each in value]
    if not isinstance(value, torch.Tensor) or value.dtype is dtype or not _is_kept(value):
        return value
    return _kept_cast(value, dtype)


def _kept_cast(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A parameter in ``dtype``, cast once in the outermost autocast whatever is written to it."""
    casts = _casts.of
    of, found = casts.get(id(parameter), (None, parameter))
    if of is None or of() is not parameter:
        with torch.enable_grad():
            found = _cast_tensor(parameter, dtype)
        casts[id(parameter)] = (weakref.ref(parameter), found)
    return found


def _is_kept(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor whose cast is kept (``cached_cast`` of ATen/autocast_mode.h)."""
    return (
        tensor.requires_grad and tensor.dtype is torch.float32 and tensor.is_leaf and not tensor._is_view()
        and torch.is_autocast_cache_enabled() and not torch.is_inference_mode_enabled()
    )  # fmt: skip
