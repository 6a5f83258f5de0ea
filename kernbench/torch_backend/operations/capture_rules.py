"""What an operation of a CUDA graph that is being captured may not do: wait for the GPU, or copy what is not pinned.

Which operators do is their kernels' business on a GPU: sizes that follow from values are copied to the host, as are what a
factorisation says of itself, and bounds that are looked for; a number of the host among tensors is copied to the GPU where its
kernel has no argument for it. Read off a GPU with torch 2.11.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.simulation.ranks.graph_capture import OUTSIDE, GraphCapture
from kernbench.torch_backend.gpu.device.gradient_streams import gradient_of
from kernbench.torch_backend.gpu.device.rank_device import UNPINNED
from kernbench.torch_backend.gpu.tensors.pinning import is_pinned
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.operations.calls import OperatorCall

WAITS, COPIES = "waits", "copies"
"""Why an operation cannot be captured: the host waits for the GPU; memory that is not pinned is copied."""

Helper = Callable[[torch.Tensor], bool]
"""Whether a tensor of the host is one that C++ has made, which on hardware is on the GPU."""

_MASKS = (torch.bool, torch.uint8)


def check(call: OperatorCall, is_helper: Helper) -> None:
    """Raise what CUDA, or torch, says of a call on a GPU that cannot be captured. Only what CUDA says ends the capture."""
    graph = call.device.host.capture
    assert graph is not None
    given = listed_tensors((*call.args, *(call.kwargs or {}).values()))
    if all(block_of(each) is None for each in given):
        return
    _refuse_outside(call, graph)
    why = _why(call, is_helper)
    if why == WAITS:
        graph.forbid()
    if why == COPIES:
        raise RuntimeError(UNPINNED)


def _refuse_outside(call: OperatorCall, graph: GraphCapture) -> None:
    """A gradient is on the stream of what it is the gradient of: of what was computed before, no stream of the capture."""
    number = gradient_of()
    if number is None or number >= graph.first_node:
        return
    host = call.device.host
    if call.device.stream_changes.at(number, host.sip) == host.default_stream(host.sip):
        graph.forbid(OUTSIDE)


def _why(call: OperatorCall, is_helper: Helper) -> str:
    operator, args, kwargs = call.operator, call.args, call.kwargs or {}
    rule = _RULES.get(operator.name)
    if rule is not None:
        return rule(args, kwargs, is_helper)
    tags = getattr(operator.func, "tags", ())
    if torch.Tag.dynamic_output_shape in tags and not operator.host_reads:
        return WAITS
    return ""


def _always(why: str) -> Callable[[Any, Any, Helper], str]:
    return lambda args, kwargs, is_helper: why


def _repeated(args: Any, kwargs: Any, is_helper: Helper) -> str:
    return "" if kwargs.get("output_size") is not None else WAITS


def _on_host(tensor: Any, is_helper: Helper) -> bool:
    return isinstance(tensor, torch.Tensor) and block_of(tensor) is None and not is_helper(tensor)


def _indexed(args: Any, kwargs: Any, is_helper: Helper) -> str:
    indices = [each for each in args[1] if each is not None]
    if any(_on_host(each, is_helper) for each in indices):
        return COPIES
    return WAITS if any(each.dtype in _MASKS for each in indices) else ""


def _put(args: Any, kwargs: Any, is_helper: Helper) -> str:
    """A number of the host is copied to the GPU, unless what it goes to is a mask: that is filled."""
    indices, value = [each for each in args[1] if each is not None], args[2]
    adds = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    fills = not adds and value.numel() == 1 and block_of(value) is None and not is_helper(value)
    if fills and len(indices) == 1 and indices[0].dtype in _MASKS and block_of(indices[0]) is not None:
        return ""
    return COPIES if _on_host(value, is_helper) else _indexed(args, kwargs, is_helper)


def _filled(at: int) -> Callable[[Any, Any, Helper], str]:
    """An index of the host, among the arguments, is that of ``x[index] = 1.0``, which copies it. By name it is refused."""
    return lambda args, kwargs, is_helper: COPIES if len(args) > at and _on_host(args[at], is_helper) else ""


def _chosen(args: Any, kwargs: Any, is_helper: Helper) -> str:
    return COPIES if any(_on_host(each, is_helper) for each in args) else ""


def _copied(args: Any, kwargs: Any, is_helper: Helper) -> str:
    """A copy between host and GPU is captured if the host's end is pinned, and it does not wait."""
    ends = [each for each in args[:2] if block_of(each) is None]
    if len(ends) != 1 or is_helper(ends[0]):
        return ""
    if not is_pinned(ends[0]):
        return COPIES
    return "" if (args[2] if len(args) > 2 else kwargs.get("non_blocking", False)) else WAITS


def _histogram(args: Any, kwargs: Any, is_helper: Helper) -> str:
    """Bounds that are not given are looked for."""
    least = args[2] if len(args) > 2 else kwargs.get("min", 0)
    most = args[3] if len(args) > 3 else kwargs.get("max", 0)
    return COPIES if least == most else ""


def _drawn(args: Any, kwargs: Any, is_helper: Helper) -> str:
    """Deviations are computed: none may be negative."""
    return WAITS if len(args) > 1 and isinstance(args[1], torch.Tensor) else ""


_RULES: dict[str, Callable[[Any, Any, Helper], str]] = {
    "repeat_interleave": _repeated,
    "index": _indexed,
    "_unsafe_index": _indexed,
    "index_put": _put,
    "index_put_": _put,
    "_index_put_impl_": _put,
    "index_fill_": _filled(2),
    "masked_fill_": _filled(1),
    "copy_": _copied,
    "where": _chosen,
    "histc": _histogram,
    "bincount": _always(COPIES),
    "normal": _drawn,
    "_linalg_svd": _always(COPIES),
    "linalg_eig": _always(COPIES),
    "_linalg_eigvals": _always(COPIES),
    "_linalg_eigh": _always(WAITS),
    "_ctc_loss": _always(COPIES),
}
"""By operator: why it cannot be captured with given arguments; empty: it can. Others cannot if their result's size follows from
values."""
