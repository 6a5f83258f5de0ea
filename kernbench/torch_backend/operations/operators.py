"""One row per operator of torch: all that is known of it before its arguments are, found out when it is first seen.

The schema is read here and nowhere else; what it does not say is in the tables of :mod:`kernbench.cost.operators` (costs and
kinds), :mod:`~kernbench.torch_backend.operations.semantics` (what is read and written) and of the modules of
:mod:`kernbench.torch_backend.gpu` that compute in the place of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kernbench.cost.convolution_shapes import is_channels_last
from kernbench.cost.op_estimates import CHANNELS_LAST, OUTER, OVERLAPS, SPREAD, is_matrix_operation
from kernbench.cost.operator import Kind, Model, Operator
from kernbench.cost.operators import find
from kernbench.memory.workspaces import DNN
from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.torch_backend.gpu.device.generators import draws
from kernbench.torch_backend.gpu.kernels.composed_operators import COMPOSED
from kernbench.torch_backend.gpu.kernels.missing_kernels import kernel_of
from kernbench.torch_backend.gpu.kernels.program_kernels import (
    dispatches_to_gpu,
    is_overridden,
    kernel_for,
    overload,
    tell,
)
from kernbench.torch_backend.gpu.kernels.refusals import Check, depends_on_settings, refusal_of
from kernbench.torch_backend.gpu.kernels.wide_products import widened
from kernbench.torch_backend.gpu.memory.unwritten_parameters import marking
from kernbench.torch_backend.operations import semantics
from kernbench.torch_backend.operations.flop_formulas import formula_of
from kernbench.torch_backend.operations.library_operators import TABLE, LibraryOperator
from kernbench.torch_backend.relies_on import Reliance


def _computes(overload: Any) -> bool:
    return bool(overload._op(torch.ones(1), torch.ones(1)) == 2) and overload._opname == "add"


def _says_what_is_written(overload: Any) -> bool:
    written = [each.alias_info is not None and each.alias_info.is_write for each in overload._schema.arguments]
    return written[:2] == [True, False] and overload._opname == "add_"


RELIES_ON = (
    Reliance("torch.ops.aten.add.Tensor", "an overload's `_op` computes what it does", has=("_op", "_opname", "_schema"),
             holds=_computes),
    Reliance("torch.ops.aten.add_.Tensor", "its schema says which arguments an operation writes", has=("_opname", "_schema"),
             holds=_says_what_is_written),
    Reliance("torch._ops.OpOverload", "other callables are no operations of one kind, and have no schema", has=("name",)),
    Reliance("torch._ops.HigherOrderOperator", "its functions of Python are found by dispatch key", has=("name", "py_impl"),
             holds=lambda kind: hasattr(torch.ops.higher_order.cond, "py_kernels")),
    Reliance("torch._C", "torch.backends asks it what products of fp32 are computed in", has=("_get_fp32_precision_getter",)),
    Reliance("torch._C", "a custom operator goes on below autograd, to the kernel of the GPU where it has one", has=(
        "DispatchKey", "DispatchKeySet", "_dispatch_keys", "_after_ADInplaceOrView_keyset",
        "_dispatch_has_kernel_for_dispatch_key",
    )),
)  # fmt: skip

SKIP, COLLECTIVE, COMPOSITE, HIGHER, CUSTOM, VIEW, TRANSFER, COMPUTE = range(8)
"""Kinds of operations. Those between SKIP and VIEW are opened; those behind VIEW are recorded."""

_TORCHS_OWN = frozenset({"aten", "prims", "torchvision"})
_FUNCTIONAL_COLLECTIVES = frozenset({"_c10d_functional", "_dtensor"})
_RUN_ELSEWHERE = frozenset({"c10d", "c10d_functional", "symm_mem", "profiler", "prim"})
"""Namespaces of what is no kernel, or is put on its stream by its executor."""
_WRITTEN_IN_PYTHON = frozenset({"torch_nn", "_c10d_functional_autograd"})
"""Namespaces of what torch composes of other operations, in Python."""
_SIZES = ("SymInt[]", "int[]", "List[int]")
_WINDOWS = ("dilation", "kernel_size", "stride")
_FAR = 8  # pixels between taps, beyond which a convolution is one of others
_SHAPES_BY_VALUE = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


def classify(func: Any) -> int:
    """What kind of operation an ``OpOverload`` is: by the table of operators, then by its schema."""
    if isinstance(func, torch._ops.HigherOrderOperator):
        return SKIP if _implementation(func) is None else CUSTOM if find(func.name()) is not None else HIGHER
    if not isinstance(func, torch._ops.OpOverload):
        return SKIP
    namespace = func.namespace
    if namespace in _FUNCTIONAL_COLLECTIVES:
        return COLLECTIVE
    schema = func._schema
    if namespace in _RUN_ELSEWHERE:
        return SKIP
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    composed = has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU")
    if namespace in _WRITTEN_IN_PYTHON or composed or func.name() in COMPOSED:
        return COMPOSITE
    row = find(func.name())
    kind = None if row is None else row.kind
    if kind is Kind.METADATA:
        return SKIP
    if kind is Kind.TRANSFER:
        return TRANSFER
    if kind is Kind.VIEW or torch.Tag.inplace_view in func.tags:
        return VIEW
    if namespace not in _TORCHS_OWN:
        if not _takes_or_gives_tensors(schema):
            return SKIP
        compiled = TABLE.get(func.name())
        return CUSTOM if compiled is None else COMPOSITE if compiled.launches else COMPUTE
    if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
        return VIEW
    return COMPUTE


def returned_arguments(schema: Any) -> list[str | None]:
    """For each result of an operator the argument that it is, None if it is a new one."""
    names = {
        frozenset(each.alias_info.before_set): each.name for each in schema.arguments if each.alias_info is not None
    }
    return [
        None if each.alias_info is None else names.get(frozenset(each.alias_info.before_set)) for each in schema.returns
    ]


def _takes_or_gives_tensors(schema: Any) -> bool:
    return any("Tensor" in str(each.type) for each in (*schema.arguments, *schema.returns))


def _implementation(func: Any) -> Any:
    """The function of Python that carries out an operation of higher order; None if it has none here."""
    key = torch._C.DispatchKey
    keys: Any = (key.BackendSelect, key.CompositeExplicitAutograd, key.CPU)
    return next((func.py_kernels[each] for each in keys if each in func.py_kernels), None)


class Argument(NamedTuple):
    """An argument of an operator.

    Attributes:
        at: its place.
        name: in the schema.
    """

    at: int
    name: str

    def of(self, args: Any, kwargs: Any) -> Any:
        """Its value in a call; None if it is not given."""
        return args[self.at] if self.at < len(args) else (kwargs or {}).get(self.name)


class TorchOperator:
    """What there is to know about an operator, whatever its arguments.

    Attributes:
        func: the ``OpOverload``, or another callable that a mode sees.
        kind: see :func:`classify`.
        passes: it is handed on whatever it is given, as nothing here is about it.
        call: computes it; without the frame that ``OpOverload.__call__`` is.
        name: without overload, and without namespace if it is torch's own.
        title: with the overload, for traces.
        inner: operators of torch call it, programs hardly do: no Python comes before it.
        allocates: it takes memory and launches nothing.
        host_reads: its result is a value of the host's.
        multiplies: it may have FLOPs to count.
        row: of the table of costs, if it says that kernels need memory besides operands and results; None otherwise.
        flag: the argument that changes what it costs, and the value that does; None if it has none.
        copies: it copies one tensor.
        images: it is of images, whose layout its time depends on: a convolution, a pool, a batch norm.
        gradient: of images, it is a gradient: what came back comes first.
        windows: arguments that say which pixels a filter or a pool sees, by name.
        beyond_shapes: whether its time depends on what :meth:`layout` says.
        along: the argument of a scan that is the dimension.
        steps: the argument of recurrent layers that says how many sequences each step of packed ones has.
        rounds: says whether a product of fp32 may be computed in TF32, as the program has set it; None for other operators.
        beside: what its cost depends on beside shapes and numbers, from its arguments; None: nothing.
        draws: it draws random numbers.
        check: raises if CUDA refuses it with given arguments; None for what it never refuses.
        wide: computes a product in 32 bits where the CPU is slow at less; None for what is no product.
        writes: arguments that it writes.
        unreturned: those of them that it does not return.
        returns_written: it returns what it writes, and nothing else.
        writes_out: what it writes is written as a whole and not read (``out=``).
        resizes: a tensor that it writes may have more memory afterwards.
        writes_all: in place, it leaves nothing of what was there.
        changes: what it writes depends on what was there: ``add_`` does, ``copy_`` and what writes ``out`` do not.
        shapes_only: it reads no values.
        chooses: its result need not have anything of each tensor that it is given.
        makes_nested: C++ keeps the shape of what it gives with the values.
        sized: its arguments say how large its result is.
        on_host: the place of the result that is the host's whatever the operands are; -1: none.
        by_signature: shapes of its results follow from shapes and numbers that it is given, and it does the same each time.
        mutates: its schema says that it writes.
        higher_order: it is given functions besides tensors.
        one_kernel: it is an operator of a compiled library, by its stand-in.
        program: the same of one that launches others and is no kernel itself; None: it is none.
        without_values: it is an operator of a stand-in, which does not compute it.
        stock: for one that a rank's program computes by a kernel of its own on GPUs: what it is everywhere else.
        for_gpus: a custom operation that has a kernel for CUDA of its own, written in Python.
    """

    def __init__(self, func: Any, *, overridden: bool = False) -> None:
        self.func = func
        self.stock = TorchOperator(func) if overridden else None
        self.kind = CUSTOM if overridden else classify(func)
        self.higher_order = not isinstance(func, torch._ops.OpOverload)
        self.title = str(getattr(func, "__name__", "op"))
        self.call = func
        self.name = self.title
        self.passes = False
        self.draws = draws(func)
        self.inner = self.title.partition(".")[0] in semantics.INNER
        self.wide = widened(func)
        self.copies = self.title.partition(".")[0] in semantics.COPIES
        self.rounds: Callable[[], bool] | None = None
        self.beside: Callable[[Any], list[Any]] | None = _strides if self.copies else None
        self.beyond_shapes = False
        self.multiplies = self.allocates = self.host_reads = self.images = self.gradient = False
        self.windows: dict[str, Argument] = {}
        self.steps: Argument | None = None
        self.along: Argument | None = None
        self.row: Operator | None = None
        self.check: Check | None = None
        self.flag: tuple[Argument, bool] | None = None
        self.writes: tuple[Argument, ...] = ()
        self.unreturned: tuple[Argument, ...] = ()
        self.resizes = self.returns_written = self.writes_out = self.writes_all = self.changes = self.mutates = False
        self.shapes_only = self.chooses = self.makes_nested = self.sized = self.by_signature = False
        self.one_kernel = self.without_values = self.for_gpus = False
        self.program: LibraryOperator | None = None
        self.on_host = -1
        self._unsaid: tuple[int, tuple[tuple[int, str], ...]] | None = None
        if not self.higher_order:
            self._read(func)
        elif self.kind in (HIGHER, CUSTOM):
            self.name = self.title = func.name()
            self.draws = False  # what it consists of does

    def _read(self, func: Any) -> None:
        """Take from the schema and the tables what they say."""
        own = func.namespace in _TORCHS_OWN and func.name() not in TABLE
        name = func._opname
        self.call = kernel_of(func)
        self.name = name if own else f"{func.namespace}::{name}"
        if self.kind == CUSTOM or func.name() in TABLE:
            self.title = self.name
        matrix = is_matrix_operation(self.name)
        compiled = TABLE.get(func.name())
        self.program = compiled if compiled is not None and compiled.launches else None
        self.one_kernel = compiled is not None and self.program is None
        self.without_values = compiled is not None and compiled.value is None
        self.for_gpus = (
            self.kind == CUSTOM and self.stock is None
            and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CUDA")
        )  # fmt: skip
        self.multiplies = self.kind == CUSTOM or matrix or self.one_kernel or formula_of(func) is not None
        self.check = refusal_of(func)
        if self.beside is None and depends_on_settings(func):
            self.beside = lambda args: [torch.are_deterministic_algorithms_enabled()]
        row = find(self.name)
        if row is not None and (row.library or row.scratch is not None):
            self.row = row
        self.allocates = row is not None and row.kind is Kind.ALLOCATION
        if self.allocates:
            self.call = marking(self.call)
        self.host_reads = row is not None and row.kind is Kind.HOST_READ
        schema = func._schema
        arguments = [(Argument(at, each.name), each) for at, each in enumerate(schema.arguments)]
        written = [
            (place, each) for place, each in arguments if each.alias_info is not None and each.alias_info.is_write
        ]
        returned = {name for each in schema.returns if each.alias_info for name in each.alias_info.before_set}
        returns_written = [each.alias_info is not None and each.alias_info.is_write for each in schema.returns]
        norm = row is not None and row.model is Model.BATCH_NORM
        if self.kind == CUSTOM or matrix or norm:
            named = semantics.EVALUATES if norm else semantics.FLAGS
            flags = [(place, named[place.name]) for place, _ in arguments if place.name in named]
            self.flag = flags[-1] if flags else None
        if row is not None and row.model is Model.PRODUCT:
            self.rounds = rounds = _convolutions_round if row.library == DNN else _products_round
            if row.convolves:
                self.beside = lambda args: [rounds(), is_channels_last(args, gradient=row.gradient)]
            else:
                self.beside = lambda args: [rounds()] if any(_is_wide(each) for each in args) else []
        if row is not None and row.images:
            self.images, self.gradient = True, row.gradient
            self.windows = {place.name: place for place, _ in arguments if place.name in _WINDOWS}
            if not row.convolves:
                others = self.beside or _nothing
                self.beside = lambda args: [is_channels_last(args, gradient=row.gradient), *others(args)]
        if row is not None and row.model is Model.SCAN:
            self.along = next((place for place, _ in arguments if place.name == "dim"), None)
        if row is not None and row.recurs:
            self.steps = next((place for place, _ in arguments if place.name == "batch_sizes"), None)
        self.beyond_shapes = self.images or self.steps is not None or self.along is not None
        self.writes = tuple([place for place, _ in written])
        self.unreturned = tuple([
            place for place, each in written if not returned.intersection(each.alias_info.before_set)
        ])  # fmt: skip
        self.mutates = bool(schema.is_mutable)
        self.returns_written = all(returns_written) and bool(returns_written or written)
        self.writes_out = bool(written) and all(each.is_out for _, each in written)
        self.resizes = self.writes_out or name in semantics.RESIZES
        self.passes = self.kind == SKIP and func.namespace != "c10d" and not (self.resizes or self.host_reads)
        self.writes_all = name in semantics.WRITES_ALL
        self.changes = (
            func.namespace == "aten" and name.endswith("_") and name not in semantics.WRITES_UNREAD
            and [place.at for place in self.writes] == [0]
        )  # fmt: skip
        self.shapes_only = semantics.takes_shapes_only(name)
        self.chooses = name in semantics.CHOOSES
        self.makes_nested = name in semantics.MAKES_NESTED
        self._unsaid = semantics.WRITES_UNSAID.get(name)
        self.on_host = semantics.ON_HOST.get(name, -1)
        takes_tensors = any("Tensor" in str(each.type) for _, each in arguments)
        self.sized = not takes_tensors or any(str(each.type) in _SIZES for _, each in arguments)
        self.by_signature = (
            self.kind in (COMPUTE, TRANSFER) and own and takes_tensors and not any(tag in func.tags for tag in _SHAPES_BY_VALUE)
            and not (self.draws or self.host_reads or self.allocates) and self.on_host < 0
        )  # fmt: skip

    def check_depends(self, inputs: list[torch.Tensor]) -> bool:
        """Whether it may be refused for what is in no signature: the layout of operands in eight bits."""
        return self.check is not None and any(each.dtype.itemsize == 1 for each in inputs)

    def is_flagged(self, args: Any, kwargs: Any) -> bool:
        """Whether an attention has to skip what comes later, a product in eight bits to keep its sums in 32 bits, one of
        fp32 may be computed in TF32, or a norm over a batch takes no statistics."""
        if self.flag is None:
            return self.rounds is not None and any(_is_wide(each) for each in args) and self.rounds()
        (at, name), value = self.flag
        return bool((kwargs or {}).get(name, args[at] if at < len(args) else False)) is value

    def layout(self, args: Any, kwargs: Any) -> str:
        """How the images that it is of lie, whether filters are dilated by much, and whether windows overlap; of packed
        sequences how many steps they are; of a scan whether it is along the last dimension."""
        if self.along is not None:
            dim, most = self.along.of(args, kwargs), args[0].dim() - 1
            return OUTER if dim is not None and most > 0 and dim not in (-1, most) else ""
        if self.steps is not None:
            sizes = self.steps.of(args, kwargs)
            return str(len(sizes)) if sizes else ""
        found = CHANNELS_LAST if is_channels_last(args, gradient=self.gradient) else "channels first"
        if not self.windows:
            return found
        apart, side, stride = (
            [*(self.windows[name].of(args, kwargs) or ())] if name in self.windows else [] for name in _WINDOWS
        )
        if apart and max(apart) > _FAR:
            found = f"{found}, {SPREAD}"
        return f"{found}, {OVERLAPS}" if side and stride and max(side) > min(stride) else found

    def is_non_blocking(self, args: Any, kwargs: Any) -> bool:
        """Whether a copy is not to wait for its end."""
        if kwargs and "non_blocking" in kwargs:
            return bool(kwargs["non_blocking"])
        return self.name == "copy_" and len(args) > 2 and bool(args[2])

    def written(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The tensors that a call writes."""
        return listed_tensors([each.of(args, kwargs) for each in self.writes])

    def written_unreturned(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """Those that it does not return."""
        return listed_tensors([each.of(args, kwargs) for each in self.unreturned])

    def written_unsaid(self, args: Any) -> list[torch.Tensor]:
        """The tensors that a call writes although its schema does not say so."""
        if self._unsaid is None or not args[self._unsaid[0]]:
            return []
        return listed_tensors([args[at] for at, _ in self._unsaid[1]])

    def read(self, args: Any, kwargs: Any, written: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that a call reads and does not write; ``written``: those that it writes."""
        if self.shapes_only:
            return []
        mine = {id(tensor) for tensor in written}
        given = listed_tensors((*args, *kwargs.values()) if kwargs else args)
        return [tensor for tensor in given if id(tensor) not in mine]

    def chosen(self, args: Any, kwargs: Any, rank: int | None) -> TorchOperator:
        """What it is with given arguments: the kernel of the rank's program is for tensors on GPUs."""
        if self.stock is None or (kernel_for(self.func.name(), rank) is not None and dispatches_to_gpu(args, kwargs)):
            return self
        return self.stock

    def body(self, args: Any, kwargs: Any, on_gpu: bool, rank: int | None) -> Any:
        """Compute it so that a mode which is on sees what it consists of.

        A custom operation runs as on hardware: the kernel for CUDA, where it has one of its own and its arguments are on a GPU.
        """
        func, kwargs = self.func, kwargs or {}
        if self.stock is not None:
            kernel = kernel_for(func.name(), rank)
            assert kernel is not None
            return kernel(*args, **kwargs)
        if isinstance(func, torch._ops.HigherOrderOperator):
            return _implementation(func)(*args, **kwargs)
        if on_gpu and func.name() in COMPOSED:
            return COMPOSED[func.name()](*args, **kwargs)
        if self.program is not None:
            return self.program(*args, **kwargs)
        if self.kind == COMPOSITE and func._can_decompose():
            return func.decompose(*args, **kwargs)
        given = [
            each
            for value in (*args, *kwargs.values())
            for each in (value if isinstance(value, list | tuple) else (value,))
        ]
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
        for each in given:
            if isinstance(each, torch.Tensor):
                keys = keys | torch._C._dispatch_keys(each)
        if on_gpu and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CUDA"):
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
        return func.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args, **kwargs)


def _nothing(args: Any) -> list[Any]:
    return []


def _is_wide(value: Any) -> bool:
    """Whether it is a tensor of fp32."""
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def _strides(args: Any) -> list[Any]:
    return [torch.Tensor.stride(each) for each in args if isinstance(each, torch.Tensor)]


_precision: Any = torch._C._get_fp32_precision_getter


def _products_round() -> bool:
    return bool(_precision("cuda", "matmul") == "tf32")


def _convolutions_round() -> bool:
    return bool(_precision("cuda", "conv") == "tf32")


class _RowByOperator(dict[Any, TorchOperator]):
    """The rows of the operators that have been seen."""

    def __missing__(self, func: Any) -> TorchOperator:
        overridden = isinstance(func, torch._ops.OpOverload) and is_overridden(func.name())
        found = self[func] = TorchOperator(func, overridden=overridden)
        return found

    def forget(self, operator: str) -> None:
        """The kernels of an operator are others now."""
        self.pop(overload(operator), None)


operators = _RowByOperator()
tell(operators.forget)
