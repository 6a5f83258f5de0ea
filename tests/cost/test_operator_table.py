"""The table of torch's operators, against torch: its samples of every operator, its counts of operations, its tags."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from kernbench.cost.memory_bound import OPS
from kernbench.cost.op_costs import OpCosts
from kernbench.cost.op_estimates import estimate_op
from kernbench.cost.operator import Kind, Model
from kernbench.cost.operators import _ROWS, OPERATORS, find
from kernbench.topology import load_device
from kernbench.torch_backend.features import sync_batch_norm
from kernbench.torch_backend.operations.operators import COMPOSITE, SKIP, VIEW, TorchOperator
from tests.torch_samples import operators

DEVICES = ("h100_sxm", "mi300x")
LARGE = 1 << 28
"""Elements of an operator's largest tensor, to which its sample is scaled: beyond every cache."""

READS_IN_PART = frozenset(
    """index index_select gather take embedding _embedding_bag _embedding_bag_forward_only
    _embedding_bag_per_sample_weights_backward _unsafe_index
    _unsafe_masked_index index_put index_put_ _unsafe_index_put put scatter scatter_ scatter_add scatter_reduce
    index_add index_add_ index_copy index_fill index_reduce _unsafe_masked_index_put_accumulate as_strided_copy
    as_strided_scatter slice_copy select_copy narrow_copy diagonal_copy trace select_scatter slice_scatter
    diagonal_scatter lu_unpack grid_sampler_2d grid_sampler_3d upsample_nearest1d upsample_nearest2d
    _upsample_nearest_exact1d col2im masked_scatter_backward ormqr embedding_dense_backward full_like zeros_like
    ones_like randn_like randint_like new_full new_ones new_zeros _embedding_bag_backward nll_loss_forward
    nll_loss2d_forward nll_loss_backward nll_loss2d_backward expand_copy zero_ fill fill_ normal_ uniform_
    exponential_ cauchy_ geometric_ log_normal_ bernoulli_ copy_ scalar_tensor max_unpool2d max_unpool3d
    linalg_lstsq _ctc_loss _ctc_loss_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward
    max_pool2d_with_indices_backward max_pool3d_with_indices_backward fractional_max_pool2d fractional_max_pool3d
    fractional_max_pool2d_backward fractional_max_pool3d_backward avg_pool2d_backward avg_pool3d_backward
    grid_sampler_2d_backward grid_sampler_3d_backward _fft_c2r _efficientzerotensor reflection_pad1d
    replication_pad1d replication_pad2d triu tril linalg_eig multi_margin_loss_backward nonzero_static
    segment_reduce _segment_reduce_backward renorm sparse_mask sparse_sampled_addmm _sparse_mm_reduce_impl
    _sparse_mm_reduce_impl_backward _to_sparse searchsorted bucketize polygamma im2col rrelu_with_noise_backward""".split()  # noqa: SIM905
)
"""Operators that need not read all of their operands."""


@dataclass(frozen=True)
class Call:
    """One call of an operator: shapes and dtypes, and whether any of its results is new memory."""

    func: Any
    args: Any
    kwargs: Any
    result: Any
    makes: bool

    def tensors(self, side: str) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        found = self.args if side == "given" else self.result
        return tuple((tuple(each.shape), each.dtype) for each in tree_leaves(found) if isinstance(each, torch.Tensor))


class Listening(TorchDispatchMode):
    """Keeps the calls of each operator, with tensors on meta in place of the real ones."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, list[Call]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(func, torch._ops.OpOverload) and len(self.calls.setdefault(func, [])) < 3:
            given = {_memory(each) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
            made = [_memory(each) for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
            parts = tree_map_only(
                torch.Tensor, lambda x: torch.empty(x.shape, dtype=x.dtype, device="meta"), (args, kwargs, result)
            )
            self.calls[func].append(Call(func, *parts, makes=any(each not in given for each in made)))
        return result


def _memory(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        return id(tensor)


def _samples() -> Iterator[tuple[Any, Any]]:
    for op in operators():
        if "jiterator" in op.name:
            continue
        offered = (torch.float32, torch.int64, torch.bool, torch.complex64)
        dtype = next((dtype for dtype in offered if op.supports_dtype(dtype, "cpu")), None)
        if dtype is None:
            continue
        grad = dtype.is_floating_point and op.supports_autograd
        for _, sample in zip(range(2), op.sample_inputs_func(op, "cpu", dtype, grad), strict=False):
            yield op, sample


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    """What torch's samples of all its operators, and their gradients, come to below autograd."""
    listening = Listening()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op, sample in _samples():
            with listening:
                result = op(sample.input, *sample.args, **sample.kwargs)
                losses = [
                    each.sum() for each in _differentiable(result)
                    if not each.is_complex() and each.layout == torch.strided
                ]  # fmt: skip
                if losses:
                    leaves = _differentiable((sample.input, sample.args, sample.kwargs))
                    torch.autograd.grad(losses, leaves, allow_unused=True)
    return [call for found in listening.calls.values() for call in found]


def _differentiable(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor) and each.requires_grad]


def scaled(call: Call) -> Call:
    """The same call of larger tensors: every dimension above one is so many times as long."""
    shapes = [shape for side in ("given", "made") for shape, _ in call.tensors(side)]
    largest = max(shapes, key=prod, default=())
    sides = sum(length > 1 for length in largest)
    factor = max(1, round((LARGE / prod(largest)) ** (1 / sides))) if sides and prod(largest) else 1

    def grown(tensor: torch.Tensor) -> torch.Tensor:
        shape = [length * factor if length > 1 else length for length in tensor.shape]
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    return Call(call.func, *tree_map_only(torch.Tensor, grown, (call.args, call.kwargs, call.result)), call.makes)


def nbytes(tensors: Any) -> int:
    return sum(prod(shape) * dtype.itemsize for shape, dtype in tensors)


def test_torchs_operators_are_known_and_none_is_faster_than_the_device(calls: list[Call]) -> None:
    assert len({call.func for call in calls}) > 450
    problems: Counter[str] = Counter()
    for device in map(load_device, DEVICES):
        costs = OpCosts(device)
        cache = (device.l2.size if device.l2 else 0) + (device.llc.size if device.llc else 0)
        for small in calls:
            operation = TorchOperator(small.func)
            if operation.kind == COMPOSITE:
                continue  # what it is composed of is priced
            if operation.kind in (SKIP, VIEW) or operation.allocates or operation.host_reads:
                if small.makes and not operation.allocates and operation.name not in MAKES_NOTHING:
                    problems[f"{operation.name} is said to launch nothing, and makes a tensor"] += 1
                continue
            for call in (small, scaled(small)):
                given, made = call.tensors("given"), call.tensors("made")
                if not given and not made:
                    continue
                found = costs.of(operation.name, given, made)
                if found.seconds <= 0:
                    problems[f"{operation.name} costs nothing"] += 1
                moved = nbytes(made) if operation.name in READS_IN_PART else max(nbytes(given), nbytes(made))
                if operation.name in WRITES_IN_PART:
                    moved = nbytes(given[1:])
                if moved > 4 * cache and found.seconds < moved / device.hbm.bandwidth:
                    problems[f"{operation.name} moves {moved / found.seconds / 1e12:.1f} TB/s on {device.name}"] += 1
                count = flop_registry.get(small.func.overloadpacket)
                if count is not None:
                    flops = count(*call.args, **call.kwargs, out_val=call.result)
                    if flops / found.seconds > device.matrix_rate("fp32"):
                        problems[
                            f"{operation.name} does {flops / found.seconds / 1e12:.0f} TFLOP/s on {device.name}"
                        ] += 1
        for unknown in costs.unmodelled.operators:
            row = find(unknown.name)
            if row is None or not row.guessed:
                problems[str(unknown)] += 1
    assert not problems, "\n".join(sorted(problems))


WRITES_IN_PART = frozenset({"scatter_", "scatter_add_", "index_add_", "index_put_", "index_copy_", "_index_put_impl_"})
"""Operators that write as much of their first operand as the others bring."""

MAKES_NOTHING = frozenset({"_unsafe_view", "unsafe_split", "_linalg_check_errors"})
"""Views that hide from autograd that they are, and checks."""


def test_operators_that_torch_has_for_gpus_alone_have_a_row() -> None:
    kernels = {kernel.__name__ for kernel in sync_batch_norm.KERNELS}
    assert {name for name in kernels if find(name) is None} == set()


def test_rows_do_not_contradict_each_other() -> None:
    names = Counter(name for group, _ in _ROWS for name in group.split())
    assert [name for name, count in names.items() if count > 1] == []
    assert {row.pace for row in OPERATORS.values()} <= {*OPS, "pointwise"}
    for row in OPERATORS.values():
        assert (row.products is not None) == (row.model is Model.PRODUCT)
        assert (row.flops is not None) == (row.model is Model.WORK)


def test_what_torch_calls_pointwise_is_priced_by_its_bytes() -> None:
    """Contract: the tag ``pointwise``; a torch with new ones is to have rows for them."""
    packets = {
        name.split(".")[0].removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if "aten::" in name
    }
    tagged = {
        name for name in packets for overload in getattr(torch.ops.aten, name).overloads()
        if torch.Tag.pointwise in getattr(getattr(torch.ops.aten, name), overload).tags
    }  # fmt: skip
    assert len(tagged) > 250
    rows = {name: find(name) for name in tagged if name != "equal"}  # whose result is the host's
    wrong = [
        name
        for name, row in rows.items()
        if row is None or row.model is not Model.TRAFFIC or row.kind is not Kind.COMPUTE
    ]
    assert wrong == []


H100 = load_device("h100_sxm")
F8, BF16, I8, F32, C64 = torch.float8_e4m3fn, torch.bfloat16, torch.int8, torch.float32, torch.complex64


SQUARE = (8192, 8192)
ROWS = (65536, 4096)
IMAGE, FILTER = (64, 512, 56, 56), (512, 512, 3, 3)
GROUPS = (8, 4096, 4096)
CUBE = 2 * 8192**3


@pytest.mark.parametrize(
    ("name", "given", "made", "flops", "rate"),
    [
        ("_scaled_mm", [(SQUARE, F8), (SQUARE, F8), ((), F32), ((), F32)], (SQUARE, BF16), CUBE, "fp8"),
        ("_scaled_mm_v2", [(SQUARE, F8), (SQUARE, F8)], (SQUARE, F32), CUBE, "fp8"),
        ("_int_mm", [(SQUARE, I8), (SQUARE, I8)], (SQUARE, torch.int32), CUBE, "int8"),
        ("_grouped_mm", [(ROWS, BF16), (GROUPS, BF16), ((8,), torch.int32)], (ROWS, BF16), 2 * 65536 * 4096**2, "bf16"),
        ("_scaled_grouped_mm", [(ROWS, F8), (GROUPS, F8)], (ROWS, BF16), 2 * 65536 * 4096**2, "fp8"),
        ("_weight_int8pack_mm", [(SQUARE, BF16), (SQUARE, I8), ((8192,), BF16)], (SQUARE, BF16), CUBE, "bf16"),
        ("addmm", [((8192,), BF16), (SQUARE, BF16), (SQUARE, BF16)], (SQUARE, BF16), CUBE, "bf16"),
        ("mm", [(SQUARE, C64), (SQUARE, C64)], (SQUARE, C64), 4 * CUBE, "fp32"),
        (
            "convolution_backward", [(IMAGE, BF16), (IMAGE, BF16), (FILTER, BF16)], (FILTER, BF16),
            2 * 64 * 56**2 * 512**2 * 9, "bf16",
        ),
        ("linalg_lu_factor_ex", [(SQUARE, F32)], (SQUARE, F32), CUBE / 3, "fp32"),
    ],
)  # fmt: skip
def test_products_run_on_the_engine_of_their_operands(name, given, made, flops, rate) -> None:
    """Within a factor of four of the peak of that engine, and never beyond it; factorisations, whose columns wait for one
    another, within one of eight."""
    seconds = OpCosts(H100).of(name, tuple(given), (made,)).seconds
    assert (0.125 if name.startswith("linalg") else 0.25) < flops / seconds / H100.matrix_rate(rate) < 1


def test_an_attention_is_computed_in_the_format_of_its_operands() -> None:
    heads = ((2, 32, 8192, 128), BF16)
    name = "_scaled_dot_product_flash_attention"
    costs = OpCosts(H100)
    alone = costs.of(name, (heads,) * 3, (heads,), flag=True)
    with_sums = costs.of(name, (heads,) * 3, (heads, ((2, 32, 8192), F32)), flag=True)
    assert with_sums.seconds == alone.seconds == pytest.approx(3.11e-3, rel=0.01)


def test_packed_sequences_are_as_many_as_their_boundaries_say() -> None:
    packed, apart = ((8 * 1024, 16, 128), BF16), ((8, 1024, 16, 128), BF16)
    bounds = ((9,), torch.int32)
    costs = OpCosts(H100)
    found = costs.of("_flash_attention_forward", (*(packed,) * 3, bounds, bounds), (packed,))
    assert found.seconds == costs.of("_flash_attention_forward", (apart,) * 3, (apart,)).seconds


def test_weights_of_fewer_bits_are_read_sooner() -> None:
    """One token against a large weight: the time is that of reading the weight."""
    token, result = ((1, 8192), BF16), ((1, 28672), BF16)
    costs = OpCosts(H100)
    wide = costs.of("linear", (token, ((28672, 8192), BF16)), (result,)).seconds
    narrow = costs.of("_weight_int8pack_mm", (token, ((28672, 8192), I8), ((28672,), BF16)), (result,)).seconds
    assert 0.45 < narrow / wide < 0.6


def test_sorting_passes_over_its_keys_more_often_than_a_copy() -> None:
    keys, places = ((1 << 26,), F32), ((1 << 26,), torch.int64)
    costs = OpCosts(H100)
    moved = 4 * (4 + 4 + 8) * 2**26  # four passes over keys and results
    assert costs.of("sort", (keys,), (keys, places)).seconds > moved / H100.hbm.bandwidth
    assert costs.of("topk", (keys,), (((16,), F32), ((16,), torch.int64))).seconds > 4 * 4 * 2**26 / H100.hbm.bandwidth


def test_a_gather_reads_what_it_gives() -> None:
    table, rows, places = ((1 << 20, 1024), F32), ((512, 1024), F32), ((512,), torch.int64)
    costs = OpCosts(H100)
    assert costs.of("embedding", (table, places), (rows,)).seconds < 10e-6
    assert costs.of("index_add_", (table, places, rows), (table,)).seconds < 15e-6
    assert costs.of("scatter_add", (table, places, rows), (table,)).seconds > 2 * 4 * 2**30 / H100.hbm.bandwidth


def test_operators_that_nobody_knows_are_counted_by_their_bytes() -> None:
    costs = OpCosts(H100, where=lambda: "train.py:7")
    big = ((1 << 28,), F32)
    first, second = (costs.of("mylib::x", (big,), (big,)) for _ in range(2))
    assert first == second
    assert first.seconds == pytest.approx(2 * 4 * 2**28 / H100.hbm_copy_bandwidth, rel=0.02)
    costs.of("mylib::y", (big,), ())
    assert [str(each) for each in costs.unmodelled.operators] == [
        "not modelled: mylib::x, counted by its bytes (2 calls, first at train.py:7)",
        "not modelled: mylib::y, counted by its bytes (1 call, first at train.py:7)",
    ]


def test_estimates_by_name_need_no_dtypes_of_results() -> None:
    assert estimate_op("aten::_unsafe_view", [(4, 4)], "float16", "h100_sxm").seconds == 0
    assert estimate_op("slice_backward", [(4, 4)], "float16", "h100_sxm", outputs=[(8, 8)]).seconds > 0


@pytest.mark.parametrize("name", [row for row, found in OPERATORS.items() if found.model is Model.WORK])
def test_factors_of_matrices_without_elements_take_some_time(name: str) -> None:
    for shape in ((0, 0), (2, 0, 0), (0, 3, 3)):
        found = OpCosts(H100).of(name, ((shape, F32),) * 3, ((shape, F32),))
        assert found.seconds > 0
