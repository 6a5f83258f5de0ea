"""Operations whose tensors are on several devices: refused as torch refuses them on GPUs, in its words.

The tensors of simulated GPUs are the CPU's (ADR 0041), so C++ sees nothing wrong. What CUDA refuses is said by the file that
torch's code is generated from and that is installed with it (``native_functions.yaml``): a function with a kernel for CUDA
compares the devices of its tensors, one after the other, unless its row says that it leaves this to ``TensorIterator``, which
takes tensors of the host without dimensions for numbers, or that it compares none. What has no kernel of its own leaves it to
what it calls: the few of those that the recorder sees as one operation are in a table here (:data:`_BY_ANOTHER`,
:data:`_OWN_WORDS`); the others, and functions that compare on their own, are not checked.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kernbench.simulation.memory.tensor_queries import listed_tensors, tells_of_looks
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.kernels.refused_types import LETTERS
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.relies_on import Reliance


def _has_rules(torchgen: Any) -> bool:
    return (
        _row("mm").exact
        and _row("add.Tensor").iterates
        and not (_row("set_.source_Tensor").exact or _row("set_.source_Tensor").iterates)
        and _row("equal").method == "wrapper_CUDA__equal"
        and _row("clamp.Tensor").method == "wrapper_CUDA_clamp_Tensor"
    )


RELIES_ON = (
    Reliance("torchgen", "its file of native functions, installed with torch, says which compare the devices of their tensors",
             holds=_has_rules),
    Reliance("torch.fx.graph_module._forward_from_src", "the code of a graph has a file name that says so",
             holds=lambda build: build("def forward(): pass", {}).__code__.co_filename.startswith(_GRAPHS)),
    Reliance("sys._getframe", "the frames of the program"),
    Reliance("torch.ops.aten.mm.default", "its schema says names and order of its arguments", has=("_schema",),
             holds=lambda overload: [each.name for each in overload._schema.arguments] == ["self", "mat2"]),
)  # fmt: skip


class DeviceRule(NamedTuple):
    """What torch says of a function.

    Attributes:
        exact: its kernel for CUDA compares the devices of all its tensors.
        iterates: ``TensorIterator`` does.
        method: what errors call that kernel.
    """

    exact: bool
    iterates: bool
    method: str


_GRAPHS = "<eval_with_key>"
"""What the file names of code begin with that torch has written for a graph."""

_NOTHING = DeviceRule(exact=False, iterates=False, method="")
_FUNCTION = re.compile(r"^- func: ", re.MULTILINE)
_KEYS = re.compile(r"^    ([\w, ]+):", re.MULTILINE)


@functools.cache
def _functions() -> Mapping[str, str]:
    """What the file says of each function, by its name with the overload. 600 KB, read when a call first mixes devices."""
    spec = importlib.util.find_spec("torchgen")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).with_name("packaged").joinpath("ATen", "native", "native_functions.yaml").read_text()
    return {each.partition("(")[0]: each for each in _FUNCTION.split(text)[1:]}


@functools.cache
def _row(name: str) -> DeviceRule:
    """The row of a function of ATen; one that nothing is said of compares nothing."""
    text = _functions().get(name)
    if text is None:
        return _NOTHING
    _, _, check = text.partition("\n  device_check: NoCheck")
    if check:
        return DeviceRule(exact=False, iterates="TensorIterator" in check.partition("\n")[0], method="")
    structured = "\n  structured" in text  # or it delegates to what is
    if not structured and not any("CUDA" in keys.split(", ") for keys in _KEYS.findall(text)):
        return _NOTHING
    base, _, overload = name.partition(".")
    out = (
        "_out" if re.search(r"Tensor\(\w!\)(\[\])? \w+[^*]*\) ->", text.partition("*, ")[2].partition("\n")[0]) else ""
    )
    named = f"{base}{out}_{overload}" if overload and structured else base + out
    return DeviceRule(exact=True, iterates=False, method=f"wrapper_CUDA_{'' if structured else overload + '_'}{named}")


_BY_ANOTHER: dict[str, tuple[str, tuple[tuple[int, str], ...]]] = {
    "embedding": ("index_select", ((0, "self"), (1, "index"))),
    "stack": ("cat", ((0, "tensors"),)),
    "_stack": ("cat", ((0, "tensors"),)),
    "mv": ("addmv.out", ((1, "vec"), (0, "mat"))),
    "masked_scatter": ("masked_scatter_", ((0, "self"), (1, "mask"), (2, "source"))),
    "put": ("put_", ((0, "self"), (1, "index"), (2, "source"))),
    "_native_batch_norm_legit_no_training": (
        "native_batch_norm",
        ((0, "input"), (1, "weight"), (2, "bias"), (3, "running_mean"), (4, "running_var")),
    ),
}  # fmt: skip
"""Functions without a kernel, by name: the one whose kernel compares, and its arguments by their place in the call."""

_UNCHECKED = frozenset(("_ctc_loss",))
"""Functions that C++ moves an argument for: labels, to the device of the probabilities. Here it moves none."""

_ITERATE = frozenset(("complex", "polar", "ldexp", "ldexp_", "soft_margin_loss", "allclose"))
"""Functions without a kernel that iterate over what they are given."""


def type_of(tensor: torch.Tensor, *, on_gpu: bool) -> str:
    """What torch calls the type of a tensor with its device: ``torch.cuda.FloatTensor``."""
    return f"torch.{'cuda.' if on_gpu else ''}{LETTERS.get(tensor.dtype, str(tensor.dtype))}Tensor"


def _convolution(device: RankDevice, args: Any) -> str:
    kinds = [type_of(each, on_gpu=block_of(each) is not None) for each in args[:3] if each is not None]
    for name, kind in zip(("weight", "bias"), kinds[1:], strict=False):
        if kind != kinds[0]:
            return f"Input type ({kinds[0]}) and {name} type ({kind}) should be the same"
    return ""


def _masked_fill(device: RankDevice, args: Any) -> str:
    where, mask = (name_of(device, each) for each in args[:2])
    if where != mask:
        return f"expected self and mask to be on the same device, but got mask on {mask} and self on {where}"
    return ""


def _index(device: RankDevice, args: Any) -> str:
    where = name_of(device, args[0])
    others = {name_of(device, each) for each in args[1] if each is not None} - {where, "cpu"}
    if others:
        return f"indices should be either on cpu or on the same device as the indexed tensor ({where})"
    values = args[2] if len(args) > 2 else None
    if isinstance(values, torch.Tensor) and values.dim() and name_of(device, values) != where:
        return _found_two(sorted({where, name_of(device, values)}, reverse=True))
    return ""


def _lstm(device: RankDevice, args: Any) -> str:
    """Of a layer of an LSTM: its operand, four parameters, two states."""
    where = name_of(device, args[0])
    for role, tensor in (*(("hidden", each) for each in args[5:7]), *(("parameter", each) for each in args[1:5])):
        there = name_of(device, tensor)
        if there != where:
            return (
                f"Input and {role} tensors are not at the same device, found input tensor at {where} and {role} tensor at "
                f"{there}"
            )
    return ""


_OWN_WORDS: dict[str, Callable[[RankDevice, Any], str]] = {
    "convolution": _convolution, "_convolution": _convolution, "mkldnn_convolution": _convolution,
    "masked_fill": _masked_fill, "masked_fill_": _masked_fill,
    "index": _index, "_unsafe_index": _index, "index_put": _index, "index_put_": _index, "_index_put_impl_": _index,
    "mkldnn_rnn_layer": _lstm,
}  # fmt: skip
"""Functions that compare devices themselves, by name: what is wrong with their arguments; empty: nothing."""


def name_of(device: RankDevice, tensor: torch.Tensor) -> str:
    """The device that a tensor is on, as torch writes it."""
    block = block_of(tensor)
    return "cpu" if block is None else f"cuda:{device.told(device.index_of(block.memory.sip))}"


def is_mixed(args: Any, kwargs: Any) -> bool:
    """Whether the tensors of a call are on several devices, of which the host is one. What ranks share is everywhere, and
    so are tensors of the context."""
    tensors = listed_tensors((*args, *kwargs.values()) if kwargs else args)
    if len(tensors) < 2:
        return False
    homes = set()
    for tensor in tensors:
        if tensor.is_meta or tells_of_looks(tensor):
            return False
        block = block_of(tensor)
        if block is not None and block.shared:
            return False
        homes.add(None if block is None else block.memory.sip)
    return len(homes) > 1


FILLS = frozenset(("index_fill_", "masked_fill_"))
"""What ``x[index] = 1.0`` calls since torch 2.15. Indexing moves an index of the host to the GPU; by name they refuse it."""


def check(call: OperatorCall, is_helper: Callable[[torch.Tensor], bool], by_indexing: Callable[[str], bool]) -> bool:
    """Raise RuntimeError, in torch's words, if CUDA refuses a call whose tensors are on several devices.

    Args:
        call: of an operator of ATen.
        is_helper: whether a tensor of the host is one that C++ has made within the call of the program that this one is a part
            of. On hardware it is on the GPU.
        by_indexing: whether the program has called a function of this name by indexing.

    Returns:
        Whether it is allowed for such helpers, or indices, only, or because a graph that one rank has traced names that rank's
        GPU.
    """
    operator, args = call.operator, call.args
    name = operator.func.name().removeprefix("aten::")
    text = _why(call, name)
    if not text:
        return False
    given = listed_tensors((*args, *(call.kwargs or {}).values()))
    on_host = [each for each in given if block_of(each) is None]
    if any(map(is_helper, on_host)) or (not on_host and _in_a_graph()):
        return True
    if operator.name in FILLS and block_of(args[0]) is not None and by_indexing(operator.name):
        return True
    raise RuntimeError(text)


def _in_a_graph() -> bool:
    """Whether code is executed that torch has written for a graph. Ranks share what Dynamo has traced for one of them."""
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_GRAPHS):
        frame = frame.f_back
    return frame is not None


def _why(call: OperatorCall, name: str) -> str:
    operator = call.operator
    if operator.name in _UNCHECKED:
        return ""
    own = _OWN_WORDS.get(operator.name)
    if own is not None:
        return own(call.device, call.args)
    if operator.name in _BY_ANOTHER:
        target, places = _BY_ANOTHER[operator.name]
        return _compared(call.device, [(as_name, call.args[at]) for at, as_name in places], _row(target).method)
    row = _row(name)
    if row.exact:
        return _compared(call.device, _in_order(call), row.method)
    if row.iterates or operator.name in _ITERATE:
        return _iterated(call)
    return ""


def _in_order(call: OperatorCall) -> Iterator[tuple[str, Any]]:
    """The arguments whose devices a kernel compares, in its order: what it writes its result to, then all that have a place."""
    arguments = call.operator.func._schema.arguments
    kwargs = call.kwargs or {}
    for each in arguments:
        if each.is_out:
            yield each.name, kwargs.get(each.name)
    for at, each in enumerate(arguments):
        if not each.is_out and not each.kwarg_only:
            yield each.name, call.args[at] if at < len(call.args) else kwargs.get(each.name)


def _compared(device: RankDevice, arguments: Iterable[tuple[str, Any]], method: str) -> str:
    first = ""
    for name, value in arguments:
        for tensor in listed_tensors((value,)):
            where = name_of(device, tensor)
            first = first or where
            if where != first:
                return (
                    f"Expected all tensors to be on the same device, but got {name} is on {where}, different from other "
                    f"tensors on {first} (when checking argument in method {method})"
                )
    return ""


def _iterated(call: OperatorCall) -> str:
    device, kwargs = call.device, call.kwargs or {}
    written = {id(each) for each in call.operator.written(call.args, kwargs)}
    found: list[str] = []
    for tensor in listed_tensors((*call.args, *kwargs.values())):
        where = name_of(device, tensor)
        if where == "cpu" and tensor.dim() == 0 and id(tensor) not in written:
            continue
        if where not in found:
            found.append(where)
    found.sort(key=lambda where: where == "cpu")
    return _found_two(found) if len(found) > 1 else ""


def _found_two(devices: list[str]) -> str:
    return (
        f"Expected all tensors to be on the same device, but found at least two devices, {devices[0]} and {devices[1]}!"
    )
