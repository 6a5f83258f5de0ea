"""The table of torch's operators: what each does, as far as its time depends on it. One row each, and no other list.

A row says what the recorder has to know (:class:`Kind`), which model is asked (:class:`Model`) and what that model needs:
dimensions of the product, which operands are multiplied, the bytes that are moved, the number of launches.
:mod:`kernbench.cost.op_estimates` asks the models. Spellings of one operator (``add``, ``add_``, ``aten::add.Tensor``,
``_foreach_add_``, and the gradient ``tanh_backward``) share its row (:func:`find`).

What torch composes of other operators (``einsum``, ``linalg.multi_dot``, ``bilinear``, ``conv_transpose2d``) needs no row: the
recorder sees what it is composed of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from math import ceil, log2, prod

from kernbench.cost.cuda_kernels import (
    embedding_gradient,
    embedding_gradient_launches,
    fused_step,
    list_launches,
    norm_gradient,
    picked_rows,
    picked_rows_gradient,
    reduced_list_launches,
    step_launches,
)
from kernbench.cost.operands import Operand, Operands, Shape, Shapes, everything, nbytes_of
from kernbench.cost.scratch import (
    Scratch,
    distances,
    efficient_gradient,
    flash_gradient,
    like_result,
    log_sum_exp,
    reduced,
    sampled,
    sorted_rows,
)
from kernbench.memory.workspaces import BLAS, LT
from kernbench.topology.dtypes import ITEM_BYTES


class Kind(Enum):
    """What the recorder does with an operator."""

    METADATA = "metadata"
    """It launches nothing, and its result is no tensor or the one that it was given."""
    VIEW = "view"
    """It launches nothing and describes memory that is there. The recorder knows these by their schema, too."""
    ALLOCATION = "allocation"
    """It takes memory and launches nothing."""
    HOST_READ = "host read"
    """Its result is a value of the host's, which waits for it."""
    TRANSFER = "transfer"
    """A copy, which may be between two devices."""
    COMPUTE = "compute"


class Model(Enum):
    """Which model says how long it takes."""

    ROWS = "rows"  # row_kernels: bytes, with a block for each row
    TRAFFIC = "traffic"  # memory_bound: bytes, at the pace of a kind of kernel
    PRODUCT = "product"  # gemm
    ATTENTION = "attention"
    WORK = "work"  # operations at a share of the device's rate, in dependent steps


Product = tuple[int, int, int, int]
"""Batch, M, N and K."""


@dataclass(frozen=True, slots=True)
class Operator:
    """What one operator does.

    Attributes:
        kind: for the recorder.
        model: which model is asked.
        pace: row of :data:`kernbench.cost.memory_bound.OPS` whose kernel it is like; ``"pointwise"`` is ``"unary"`` or
            ``"binary"``, by the operands.
        traffic: bytes read and written, from operands and results.
        products: the matrix products that it is made of, from shapes of operands and results.
        multiplied: positions of the operands that are multiplied: their format selects the engine.
        convolves: whether the product is a convolution's.
        channels_last: of one: whether the channels of a pixel are beside each other.
        adds: whether the first operand is added to the product.
        groups: whether a batch of products is one of groups, of which each has operands of its own.
        library: whose product it is (:mod:`kernbench.memory.workspaces`); ``""``: it needs no workspace of one.
        scratch: bytes of each piece of memory that its kernels allocate while they run (:mod:`kernbench.cost.scratch`).
        flops: operations, of those that are modelled by them.
        share: of the device's peak that they reach.
        matrix: whether matrix engines do them.
        panels: whether it takes a matrix panel after panel, each waiting for the one before.
        sequence: dimension of an attention's operands that counts tokens; heads are in the other of the two.
        gradient: whether it is a gradient: of an attention five products instead of two, of a convolution one for each operand.
        variant: whose attention it is (:attr:`kernbench.cost.generations.Generation.attention`).
        launches: kernels, one after the other: a number, or from operands and results.
        lists: whether it takes lists of tensors, each of which costs the host something.
        bookkeeping: what the host does besides, in units of :attr:`kernbench.topology.system.HostSpec.unit`.
    """

    kind: Kind = Kind.COMPUTE
    model: Model = Model.TRAFFIC
    pace: str = "pointwise"
    traffic: Callable[[Operands, Operands], float] | None = None
    products: Callable[[Shapes, Shapes], list[Product]] | None = None
    multiplied: tuple[int, ...] = (0, 1)
    convolves: bool = False
    channels_last: bool = False
    adds: bool = False
    groups: bool = False
    library: str = ""
    scratch: Scratch | None = None
    flops: Callable[[Shapes, Shapes], float] | None = None
    share: float = 1.0
    matrix: bool = True
    panels: bool = False
    sequence: int = 2
    gradient: bool = False
    variant: str = "flash"
    launches: int | Callable[[Operands, Operands], int] = 1
    lists: bool = False
    bookkeeping: float = 0.0

    def library_of(self, given: Shapes) -> str:
        """The library that multiplies operands of these shapes: a bias that is added in the kernel has it be cuBLASLt."""
        return LT if self.library and self.adds and given and len(given[0]) == 1 < len(given[1]) else self.library

    @property
    def uses_matrix_engines(self) -> bool:
        """Whether it is a product, a convolution, an attention."""
        return self.model in (Model.PRODUCT, Model.ATTENTION)

    def count_launches(self, given: Operands, made: Operands) -> int:
        """Kernels that one call launches."""
        if self.kind in (Kind.VIEW, Kind.METADATA, Kind.ALLOCATION):
            return 0
        return self.launches if isinstance(self.launches, int) else self.launches(given, made)


# -- bytes -------------------------------------------------------------------------------------------------------------


def _written(given: Operands, made: Operands) -> float:
    return nbytes_of(made)


def _gathered(given: Operands, made: Operands) -> float:
    """Of the first operand, as much is read as is written."""
    return 2 * nbytes_of(made) + nbytes_of(given[1:])


def _gathered_for_first(given: Operands, made: Operands) -> float:
    """Of the second operand, as much is read as the first has."""
    return 2 * nbytes_of(given[:1]) + nbytes_of(given[2:]) + nbytes_of(made)


def _scattered(given: Operands, made: Operands) -> float:
    """Of the first operand, as much is read and written as the others bring."""
    return 3 * nbytes_of(given[1:]) if len(given) > 1 else everything(given, made)


_SECTOR = 32  # bytes: the least that is read of memory for an element that has no neighbours


def _picked_one_by_one(given: Operands, made: Operands) -> float:
    """Each element of the result is somewhere: a sector is read for it, and where it is."""
    return sum(prod(each.shape) for each in made) * _SECTOR + nbytes_of(given[1:]) + nbytes_of(made)


def _put_one_by_one(given: Operands, made: Operands) -> float:
    """Each element goes somewhere: a sector is read, changed, written back, and read for the next one of it [H]."""
    count = max((prod(each.shape) for each in given[1:]), default=0)
    return 4 * count * _SECTOR + nbytes_of(given[1:])


def _copied_and_put_one_by_one(given: Operands, made: Operands) -> float:
    return nbytes_of(given[:1]) + nbytes_of(made) + _put_one_by_one(given, made)


def _once_more_read(given: Operands, made: Operands) -> float:
    """Statistics first, then the result."""
    return everything(given, made) + nbytes_of(given[:1])


def _as_log_of_sum(given: Operands, made: Operands) -> float:
    """Of the operand: read for the largest; the difference, which is broadcast, counts twice; exponentials; their sum."""
    return 8 * nbytes_of(given[:1])


def _copied_and_scattered(given: Operands, made: Operands) -> float:
    return nbytes_of(given[:1]) + nbytes_of(made) + _scattered(given, made)


def _first_result_copied(given: Operands, made: Operands) -> float:
    return 2 * nbytes_of(made[:1])


def _read_as_written(given: Operands, made: Operands) -> float:
    return 2 * nbytes_of(made or given)


def _in_rows(operand: Operand, longest: int) -> bool:
    return bool(operand.shape) and operand.shape[-1] <= longest


def _sorted(given: Operands, made: Operands) -> float:
    """A radix sort passes over keys and indices once for each byte of a key; rows that fit a block, once (CUB, torch)."""
    key = max(given, key=lambda operand: operand.nbytes)
    passes = 1.0 if _in_rows(key, 4096) else max(1.0, key.values * ITEM_BYTES[key.format])
    return passes * everything(given, made)


def _selected(given: Operands, made: Operands) -> float:
    """A radix selection reads its input once for each byte of a key."""
    key = max(given, key=lambda operand: operand.nbytes)
    return key.nbytes * max(1.0, key.values * ITEM_BYTES[key.format]) + nbytes_of(made)


def _twice_read(given: Operands, made: Operands) -> float:
    """Counted first, then written."""
    return 2 * nbytes_of(given) + nbytes_of(made)


def _transformed(given: Operands, made: Operands) -> float:
    """A Fourier transform passes over its data once for each factor of up to 4096 of its length."""
    length = max([2, *(operand.shape[-1] for operand in (*given, *made) if operand.shape)])
    return ceil(log2(length) / 12) * everything(given, made)


# -- products ----------------------------------------------------------------------------------------------------------


def _matmul(left: Shape, right: Shape) -> list[Product]:
    """``left @ right``; a matrix on the right takes all rows of the left as one."""
    if not left or not right:
        return []
    columns = right[-1] if len(right) > 1 else 1
    depth = left[-1]
    if len(right) <= 2:
        return [(1, max(prod(left[:-1]), 1), columns, depth)]
    rows = left[-2] if len(left) > 1 else 1
    return [(max(prod(left[:-2]), prod(right[:-2])), rows, columns, depth)]


def _of(first: int, count: int = 1) -> Callable[[Shapes, Shapes], list[Product]]:
    def dims(given: Shapes, made: Shapes) -> list[Product]:
        return count * _matmul(given[first], given[first + 1]) if len(given) > first + 1 else []

    return dims


def _linear(given: Shapes, made: Shapes) -> list[Product]:
    """``input [..., K]``, ``weight [N, K]``."""
    if len(given) < 2 or not given[0] or not given[1]:
        return []
    return [(1, max(prod(given[0][:-1]), 1), given[1][0], given[0][-1])]


def _linear_backward(given: Shapes, made: Shapes) -> list[Product]:
    """``input, gradient [..., N], weight``: the gradients of input and weight."""
    return 2 * _linear((given[0], given[2]), made) if len(given) > 2 else []


def _packed_linear(given: Shapes, made: Shapes) -> list[Product]:
    """A weight in a layout of its own: the result says how many columns it has."""
    return [(1, max(prod(given[0][:-1]), 1), made[0][-1], given[0][-1])] if given and made and given[0] else []


def _addbmm(given: Shapes, made: Shapes) -> list[Product]:
    """A batch of products that are added up: one with a long K."""
    if len(given) < 3 or len(given[1]) != 3:
        return []
    batch, rows, depth = given[1]
    return [(1, rows, given[2][-1], batch * depth)]


def _grouped(given: Shapes, made: Shapes) -> list[Product]:
    """Groups of rows, of columns or of K, which offsets tell apart: taken as of equal size."""
    if len(given) < 2:
        return []
    left, right = given[:2]
    if len(left) == 2 and len(right) == 3:
        return [(right[0], ceil(left[0] / right[0]), right[2], left[1])]
    if len(left) == 3 and len(right) == 2:
        return [(left[0], left[1], ceil(right[1] / left[0]), left[2])]
    if len(left) == 2 and len(right) == 2:
        groups = made[0][0] if made and len(made[0]) == 3 else 1
        return [(groups, left[0], right[1], ceil(left[1] / groups))]
    return _matmul(left, right)


def _convolved(result: Shape, image: Shape, weight: Shape) -> list[Product]:
    """A convolution as the product that its kernel computes: pixels x output channels x filter.

    A transposed one has ``weight [in, out / groups, ...]``, and the pixels are those of its input.
    """
    if len(weight) < 3 or len(result) < 3 or len(image) < 3:
        return []
    pixels = image if weight[0] == image[1] != result[1] else result
    return [(1, prod(pixels) // max(pixels[1], 1), weight[0], prod(weight[1:]))]


def _convolution(given: Shapes, made: Shapes) -> list[Product]:
    return _convolved(made[0], given[0], given[1]) if len(given) > 1 and made else []


def _convolution_backward(given: Shapes, made: Shapes) -> list[Product]:
    """``gradient, input, weight``: a product for each gradient of the two that is wanted."""
    if len(given) < 3:
        return []
    wanted = sum(len(shape) > 2 for shape in made[:2]) or 2
    return wanted * _convolved(given[0], given[1], given[2])


def _recurrent(given: Shapes, made: Shapes) -> list[Product]:
    """``input [T, B, I], weight [gates, I], weight [gates, H]``: all steps' inputs at once, then one step after the other."""
    if len(given) < 3 or len(given[0]) != 3 or len(given[1]) != 2 or len(given[2]) != 2:
        return []
    steps, batch, width = given[0]
    return [(1, steps * batch, given[1][0], width), *[(1, batch, given[2][0], given[2][1])] * steps]


# -- operations --------------------------------------------------------------------------------------------------------


def _cubic(factor: float) -> Callable[[Shapes, Shapes], float]:
    """``factor * m n min(m, n)`` for each matrix of the first operand."""

    def flops(given: Shapes, made: Shapes) -> float:
        shape = given[0] if given and len(given[0]) > 1 else (1, 1)
        return factor * prod(shape) * min(shape[-2:])

    return flops


def _solved(matrix: int, right: int, factor: float = 0.0) -> Callable[[Shapes, Shapes], float]:
    """Right-hand sides against a matrix, ``2 n^2`` for each column; ``factor * n^3`` to factorise it first."""

    def flops(given: Shapes, made: Shapes) -> float:
        if len(given) <= max(matrix, right):
            return 0.0
        side = given[matrix][-1] if given[matrix] else 1
        first = _cubic(factor)([given[matrix]], ())
        return first + 2.0 * side * max(prod(given[right]), 1)

    return flops


def _trilinear(given: Shapes, made: Shapes) -> float:
    """``x [N, I], weight [O, I, J], y [N, J]``, or a gradient of it: each row of the first operand meets all of the weight."""
    return 2.0 * prod(given[0][:-1]) * max(prod(shape) for shape in (*given, *made))


def _distances(given: Shapes, made: Shapes) -> float:
    """A subtraction, a power and a sum for each coordinate of each pair of points."""
    widest = max(given, key=prod, default=(1,))
    points = max((prod(shape) for shape in (*made, *given)), default=1)
    return 3.0 * max(points, 1) * (widest[-1] if widest else 1)


# -- the rows ----------------------------------------------------------------------------------------------------------


def _moves(
    pace: str,
    traffic: Callable[[Operands, Operands], float] | None = None,
    launches: int | Callable[[Operands, Operands], int] = 1,
    bookkeeping: float = 0.0,
) -> Operator:
    return Operator(pace=pace, traffic=traffic, launches=launches, bookkeeping=bookkeeping)


def _multiplies(products: Callable[[Shapes, Shapes], list[Product]], *multiplied: int, library: str = "") -> Operator:
    return Operator(model=Model.PRODUCT, products=products, multiplied=multiplied or (0, 1), library=library)


def _attends(first: int = 0, sequence: int = 2, variant: str = "flash") -> Operator:
    """Query, key and value from the ``first`` operand on; before them is the gradient of the result.

    A gradient is three kernels: the products of the result and its gradient, those of the operands', and their rounding.
    """
    return Operator(
        model=Model.ATTENTION, multiplied=(first, first + 1, first + 2), sequence=sequence, gradient=first > 0,
        variant=variant, launches=3 if first else 1,
    )  # fmt: skip


def _works(
    flops: Callable[[Shapes, Shapes], float], share: float, *, matrix: bool = True, panels: bool = True
) -> Operator:
    return Operator(model=Model.WORK, flops=flops, share=share, matrix=matrix, panels=panels)


_VIEW, _METADATA, _ALLOCATION, _HOST_READ = (
    Operator(kind) for kind in (Kind.VIEW, Kind.METADATA, Kind.ALLOCATION, Kind.HOST_READ)
)
_COPY = _moves("copy")
_POINTWISE = _moves("pointwise")
_FACTORIZATION = 0.4  # of the peak: cuSOLVER's and MAGMA's LU, Cholesky and QR of large matrices
_DECOMPOSITION = 0.05  # eigenvalues and singular values: half of it are products of a matrix and a vector

_ROWS: tuple[tuple[str, Operator], ...] = (
    # -- nothing is launched
    (
        """view reshape expand expand_as transpose t permute squeeze unsqueeze slice select narrow split split_with_sizes
        chunk unbind detach alias as_strided view_as unflatten flatten movedim swapaxes diagonal numpy_T _unsafe_view
        unsafe_split unsafe_split_with_sizes unfold lift lift_fresh view_as_real view_as_complex _conj _neg_view
        _reshape_alias""",
        _VIEW,
    ),
    (
        """is_same_size detach_ set_ resize_ resize_as_ record_stream is_pinned _has_compatible_shallow_copy_type
        _has_same_storage_numel is_set_to is_coalesced _coalesced_ sparse_dim dense_dim _nnz squeeze_ unsqueeze_
        transpose_ t_ as_strided_ _fused_sdp_choice _assert_tensor_metadata _assert_async _functional_assert_async
        sym_constrain_range sym_constrain_range_for_size _make_dep_token fsdp::set_ inductor::resize_storage_bytes_
        fsdp::record_grad_output_stream
        inductor::_reinterpret_tensor inductor::_alloc_from_pool _nested_tensor_size _nested_tensor_strides
        _nested_tensor_storage_offsets""",
        _METADATA,
    ),
    (
        "empty empty_like empty_strided empty_permuted new_empty new_empty_strided empty_quantized _efficientzerotensor",
        _ALLOCATION,
    ),
    ("_local_scalar_dense is_nonzero equal allclose _is_all_true _is_any_true _linalg_check_errors", _HOST_READ),
    # -- bytes
    ("_to_copy copy_", Operator(Kind.TRANSFER, pace="copy")),
    (
        """copy clone contiguous cat stack _stack repeat tile constant_pad_nd block_diag diag_embed
        pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im complex _coalesce _to_sparse _to_dense
        sparse_mask _pin_memory lift_fresh_copy slice_scatter select_scatter diagonal_scatter as_strided_scatter
        slice_backward select_backward diagonal_backward unfold_backward reflection_pad1d reflection_pad2d
        reflection_pad3d replication_pad1d replication_pad2d replication_pad3d _foreach_copy fsdp::copy_ slice_inverse
        narrow_copy lu_unpack _copy_from dequantize int_repr _convert_weight_to_int4pack _jagged_to_padded_dense
        _padded_dense_to_jagged _nested_from_padded_tensor nested_to_padded_tensor
        to_padded_tensor _nested_from_padded _nested_tensor_from_tensor_list""",
        _COPY,
    ),
    # what FSDP copies in and out: a copy of where everything is, and one kernel; the host looks after the unit's parameters
    (
        "_chunk_cat fsdp::chunk_cat fsdp::chunk_cat_mixed_dtype split_with_sizes_copy fsdp::split_with_sizes_copy",
        _moves("copy", _read_as_written, launches=2, bookkeeping=1.0),
    ),
    ("_embedding_bag_per_sample_weights_backward", _moves("copy", _gathered_for_first)),
    ("fsdp::all_gather_copy_in", _moves("copy", _first_result_copied, bookkeeping=1.0)),
    (
        """embedding index_select index _unsafe_index _unsafe_masked_index _embedding_bag _embedding_bag_forward_only""",
        _moves("gathered", _gathered),
    ),
    ("gather take", _moves("copy", _picked_one_by_one)),
    ("scatter_ scatter_add_ scatter_reduce_ put_", _moves("copy", _put_one_by_one)),
    ("scatter scatter_add scatter_reduce put", _moves("copy", _copied_and_put_one_by_one)),
    ("index_add_ index_reduce_", _moves("added_rows", _scattered)),
    ("index_copy_ index_fill_ index_put_ _index_put_impl_ embedding_renorm_", _moves("strided", _scattered)),
    (
        """index_add index_copy index_fill index_put _unsafe_index_put index_reduce _unsafe_masked_index_put_accumulate
        masked_scatter""",
        _moves("strided", _copied_and_scattered),
    ),
    ("embedding_dense_backward", _moves("copy", embedding_gradient, embedding_gradient_launches)),
    ("_embedding_bag_backward _embedding_bag_dense_backward", _moves("copy", None, launches=3)),
    (
        """zeros ones full zero zero_ fill fill_ arange range linspace logspace eye zeros_like ones_like
        full_like new_zeros new_ones new_full scalar_tensor tril_indices triu_indices bartlett_window
        blackman_window
        hamming_window hann_window kaiser_window fft_fftfreq fft_rfftfreq _foreach_zero
        _new_zeros_with_same_feature_meta _philox_key_split _philox_key_fold_in
        _cudnn_init_dropout_state affine_grid_generator""",
        _moves("fill", _written),
    ),
    (
        """rand randn randint randperm uniform exponential cauchy geometric log_normal random rand_like randn_like randint_like
        _philox_uniform _philox_normal normal_ bernoulli_""",
        _moves("random", _written),
    ),
    ("normal bernoulli normal_functional", _moves("random")),
    ("dropout fused_dropout", _moves("dropout")),
    ("flip rot90 tril triu", _moves("strided")),
    ("roll", _moves("rolled")),
    ("cummax cummin cumprod cumsum logcumsumexp", _moves("scan")),
    (
        """adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d max_pool2d max_pool2d_with_indices
        max_pool3d_with_indices""",
        _moves("pool"),
    ),
    (
        """abs acos acosh add addcdiv addcmul addr and angle asin asinh atan atan2 atanh binomial bitwise_and
        bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min
        clip conj_physical copysign cos cosh deg2rad digamma div elu eq erf erfc erfinv exp2 expm1 float_power
        floor floor_divide fmax fmin fmod frac frexp gcd ge gt hardshrink hardsigmoid hardswish hardtanh
        heaviside hypot i0 igamma igammac ilshift irshift isfinite isin isinf isnan isneginf isposinf ixor lcm
        ldexp le leaky_relu lerp lgamma log log10 log1p log2 log_sigmoid logaddexp logaddexp2 logical_and logical_not
        logical_or logical_xor logit lshift lt masked_fill masked_scale maximum minimum mish mul mvlgamma nan_to_num
        ne neg nextafter or poisson polar polygamma positive pow prelu_kernel prelu rad2deg reciprocal relu
        relu6 remainder renorm round rrelu rrelu_with_noise rshift rsqrt rsub selu sgn sign signbit
        sin sinc sinh softplus softshrink sqrt square standard_gamma standard_gamma_grad sub tan threshold true_divide
        trunc where xlogy xor airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t
        chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w entr erfcx hermite_polynomial_h
        hermite_polynomial_he i0e i1 i1e laguerre_polynomial_l legendre_polynomial_p log_ndtr modified_bessel_i0
        modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtri scaled_modified_bessel_k0
        scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u
        shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w spherical_bessel_j0 xlog1py zeta linalg_cross
        quantize_per_tensor quantize_per_channel fake_quantize_per_tensor_affine_cachemask
        fake_quantize_per_channel_affine_cachemask fake_quantize_learnable_per_tensor_affine
        fake_quantize_learnable_per_channel_affine add_relu binary_cross_entropy binary_cross_entropy_with_logits
        huber_loss mse_loss smooth_l1_loss soft_margin_loss multi_margin_loss multilabel_margin_loss dirichlet_grad
        sample_dirichlet adaptive_avg_pool2d adaptive_avg_pool3d fractional_max_pool2d fractional_max_pool3d
        max_unpool2d max_unpool3d grid_sampler_2d grid_sampler_3d upsample_bicubic2d
        upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
        upsample_trilinear3d upsample_bicubic2d_aa upsample_bilinear2d_aa upsample_lanczos2d_aa upsample_nearest_exact1d
        upsample_nearest_exact2d upsample_nearest_exact3d thnn_fused_lstm_cell thnn_fused_gru_cell
        thnn_fused_lstm_cell_backward_impl transform_bias_rescale_qkv
        masked_scatter_backward convert_indices_from_coo_to_csr convert_indices_from_csr_to_coo
        amp_update_scale batch_norm_elemt
        inductor::accumulate_grad_""",
        _POINTWISE,
    ),
    ("fused_adam fused_adamw fused_sgd fused_adagrad", replace(_moves("stepped", fused_step, step_launches), lists=True)),
    ("amp_foreach_non_finite_check_and_unscale", replace(_moves("unary", None, list_launches), lists=True)),
    ("gelu", _moves("gelu")),
    ("silu glu tanh sigmoid exp", _POINTWISE),
    (
        """batch_norm batch_norm_legit batch_norm_with_update batch_norm_no_update batch_norm_legit_no_training
        batch_norm_with_update_functional batch_norm_legit_functional""",
        _moves("batch_norm", _once_more_read, launches=2),
    ),
    ("group_norm", _moves("group_norm", _once_more_read, launches=2)),
    ("layer_norm", _moves("layer_norm")),
    ("native_layer_norm_backward", _moves("norm_gradient", norm_gradient, launches=3)),
    ("rms_norm weight_norm_interface", _moves("rms_norm")),
    ("fused_rms_norm", _moves("layer_norm")),  # the kernel of a layer norm, configured to leave the mean out
    ("fused_rms_norm_backward", _moves("norm_gradient", norm_gradient, launches=3)),
    (
        "softmax log_softmax safe_softmax masked_softmax cross_entropy sparse_softmax sparse_log_softmax",
        Operator(model=Model.ROWS, pace="softmax"),
    ),
    ("log_softmax_backward_data", Operator(model=Model.ROWS, pace="softmax", gradient=True)),
    # the product of the gradient and the result is a kernel of its own [K] SoftMax.cu
    (
        "softmax_backward_data",
        replace(_moves("unary", lambda given, made: 2 * everything(given, made), launches=2), scratch=like_result),
    ),
    ("nll_loss nll_loss_forward nll_loss2d nll_loss2d_forward", _moves("reduce", picked_rows)),
    ("nll_loss_backward nll_loss2d_backward", _moves("fill", picked_rows_gradient, launches=2)),
    (
        "sum mean nansum vector_norm linalg_vector_norm norm prod",
        replace(_moves("reduce"), scratch=reduced()),
    ),
    (
        """count_nonzero linalg__powsum dist trace ctc_loss
        hash_tensor bincount histc histogram histogramdd_bin_edges histogramdd_from_bin_cts histogramdd_from_bin_tensors
        segment_reduce powsum batch_norm_stats batch_norm_backward_reduce batch_norm_gather_stats
        batch_norm_gather_stats_with_counts batch_norm_update_stats sparse_sum sparse_csr_sum sparse_csr_prod""",
        _moves("reduce"),
    ),
    ("amax amin", replace(_moves("extreme"), scratch=reduced())),
    ("aminmax", _moves("extreme")),
    ("all any", replace(_moves("extreme"), scratch=reduced(1))),
    ("max min argmax argmin", _moves("indexed")),
    ("std std_mean var var_mean", replace(_moves("indexed"), scratch=reduced(16))),
    ("logsumexp", replace(_moves("reduce", _as_log_of_sum, launches=6), scratch=log_sum_exp)),
    ("searchsorted bucketize", _moves("pointwise", None, launches=2)),
    ("multinomial", replace(_moves("pointwise", None, launches=2), scratch=sampled)),
    ("sort argsort msort", replace(_moves("sorted", _sorted, launches=4), scratch=sorted_rows)),
    (
        "unique unique2 unique_dim unique_consecutive unique_dim_consecutive mode",
        _moves("sorted", _sorted, launches=4),
    ),
    ("topk kthvalue median nanmedian", _moves("selected", _selected, launches=3)),
    ("nonzero nonzero_static masked_select repeat_interleave", _moves("copy", _twice_read, launches=3)),
    ("fft_c2c fft_c2r fft_r2c", _moves("copy", _transformed)),
    # -- products
    (
        "sparse_mm sparse_sparse_matmul sparse_mm_reduce_impl sparse_mm_reduce_impl_backward",
        _multiplies(_of(0)),
    ),
    ("mm matmul bmm mv dot vdot", _multiplies(_of(0), library=BLAS)),
    ("int_mm scaled_mm scaled_mm_v2", _multiplies(_of(0), library=LT)),
    ("addmm baddbmm addmv addmm_activation", replace(_multiplies(_of(1), 1, 2, library=BLAS), adds=True)),
    ("sparse_addmm sparse_sampled_addmm", replace(_multiplies(_of(1), 1, 2), adds=True)),
    ("addbmm", replace(_multiplies(_addbmm, 1, 2, library=BLAS), adds=True)),
    ("linear mkldnn_linear mkldnn::_linear_pointwise", _multiplies(_linear, library=BLAS)),
    ("weight_int8pack_mm", _multiplies(_linear)),
    ("linear_backward", _multiplies(_linear_backward, 0, 1, 2, library=BLAS)),
    ("matmul_backward", _multiplies(_of(1, 2), 1, 2, library=BLAS)),
    (
        """weight_int4pack_mm weight_int4pack_mm_for_cpu weight_int4pack_mm_with_scales_and_zeros dyn_quant_matmul_4bit
        mkl::_mkl_linear""",
        _multiplies(_packed_linear, 0),
    ),
    # a kernel makes problems of the offsets, another multiplies
    ("grouped_mm scaled_grouped_mm scaled_grouped_mm_v2", replace(_multiplies(_grouped), launches=2, groups=True)),
    (
        """convolution convolution_overrideable cudnn_convolution cudnn_convolution_relu cudnn_convolution_transpose
        miopen_convolution mkldnn_convolution slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d
        slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d conv_depthwise2d conv_depthwise3d
        nnpack_spatial_convolution mkldnn::_convolution_pointwise""",
        replace(_multiplies(_convolution), convolves=True),
    ),
    (
        "convolution_backward convolution_backward_overrideable slow_conv2d_backward",
        replace(_multiplies(_convolution_backward, 0, 1, 2), convolves=True, gradient=True),
    ),
    ("trilinear", _works(_trilinear, 0.5, panels=False)),
    ("mkldnn_rnn_layer", _multiplies(_recurrent)),
    # -- attention: [batch, heads, tokens, width], or [batch, tokens, heads, width]
    (
        """scaled_dot_product_attention scaled_dot_product_flash_attention scaled_dot_product_flash_attention_for_cpu
        scaled_dot_product_fused_attention_overrideable flash_attention""",
        _attends(),
    ),
    (
        "scaled_dot_product_flash_attention_backward scaled_dot_product_flash_attention_for_cpu_backward",
        replace(_attends(1), scratch=flash_gradient),
    ),
    ("scaled_dot_product_fused_attention_overrideable_backward", _attends(1)),
    ("scaled_dot_product_efficient_attention efficient_attention", _attends(variant="efficient")),
    (
        "scaled_dot_product_efficient_attention_backward",
        replace(_attends(1, variant="efficient"), scratch=efficient_gradient),
    ),
    ("scaled_dot_product_cudnn_attention", _attends(variant="cudnn")),
    ("scaled_dot_product_cudnn_attention_backward", _attends(1, variant="cudnn")),
    ("flash_attention_forward", _attends(sequence=1)),
    ("flash_attention_backward", _attends(1, sequence=1)),
    ("efficient_attention_forward", _attends(sequence=1, variant="efficient")),
    ("efficient_attention_backward", _attends(1, sequence=1, variant="efficient")),
    ("cudnn_attention_forward", _attends(sequence=1, variant="cudnn")),
    ("cudnn_attention_backward", _attends(1, sequence=1, variant="cudnn")),
    # -- linear algebra: Golub and Van Loan, Matrix Computations, 4th ed.
    ("linalg_cholesky_ex cholesky linalg_ldl_factor_ex", _works(_cubic(1 / 3), _FACTORIZATION)),
    ("linalg_lu linalg_lu_factor_ex linalg_det linalg_slogdet", _works(_cubic(2 / 3), _FACTORIZATION)),
    ("linalg_qr geqrf linalg_householder_product", _works(_cubic(2), _FACTORIZATION)),
    ("linalg_inv_ex cholesky_inverse", _works(_cubic(2), _FACTORIZATION)),
    ("linalg_pinv", _works(_cubic(22), _DECOMPOSITION)),
    ("linalg_matrix_exp", _works(_cubic(20), _FACTORIZATION)),
    ("linalg_eigh", _works(_cubic(9), _DECOMPOSITION)),
    ("linalg_svd", _works(_cubic(22), _DECOMPOSITION)),
    ("linalg_matrix_sqrth", _works(_cubic(9 + 2), _DECOMPOSITION)),  # of linalg_eigh, and a product
    ("linalg_polar", _works(_cubic(22 + 4), _DECOMPOSITION)),  # of linalg_svd, and two products: torch without nvmath-python
    ("linalg_eig linalg_eigvals", _works(_cubic(25), _DECOMPOSITION)),
    ("linalg_solve_ex spsolve", _works(_solved(0, 1, 2 / 3), _FACTORIZATION)),
    ("linalg_lstsq", _works(_solved(0, 1, 2), _FACTORIZATION)),
    ("linalg_solve_triangular", _works(_solved(0, 1), _FACTORIZATION)),
    ("triangular_solve cholesky_solve cholesky_solve_helper", _works(_solved(1, 0), _FACTORIZATION)),
    ("linalg_lu_solve linalg_ldl_solve ormqr", _works(_solved(0, 2), _FACTORIZATION)),
    (
        "cdist_backward pdist_forward pdist_backward",
        _works(_distances, 0.25, matrix=False, panels=False),
    ),
    ("cdist_forward euclidean_dist", replace(_works(_distances, 0.25, matrix=False, panels=False), scratch=distances)),
)  # fmt: skip


def _by_name(rows: Sequence[tuple[str, Operator]]) -> Iterator[tuple[str, Operator]]:
    for names, row in rows:
        for name in names.split():
            yield name, row


OPERATORS: Mapping[str, Operator] = dict(_by_name(_ROWS))
"""Rows by name: of ATen without namespace, of others with it."""

_PREFIXES = ("", "native_", "foreach_", "special_", "_native_", "_foreach_")
_DERIVED = ("_backward_data", "_backward", "_forward", "_jvp", "_copy")
_OWN = ("aten", "prims", "")


def split_name(name: str) -> tuple[str, str]:
    """Namespace, empty if it is torch's own, and name of ``"mylib::flash.default"`` or ``"aten::add_.Tensor"``."""
    namespace, _, plain = name.partition(".")[0].rpartition("::")
    return ("" if namespace in _OWN else namespace), plain


def qualified(name: str) -> str:
    """The name that operators of ours and of others are known by: ``"add_"``, ``"mylib::flash"``."""
    namespace, plain = split_name(name)
    return f"{namespace}::{plain}" if namespace else plain


@cache
def find(name: str) -> Operator | None:
    """The row of an operator, however it is spelled; None for one that the table does not know.

    In-place, list and ``native`` variants share a row; so does a gradient that moves bytes with what it is the gradient of.
    """
    namespace, plain = split_name(name)
    if namespace:
        return OPERATORS.get(f"{namespace}::{plain}")
    stripped = plain.strip("_")
    for spelling in (plain, plain.rstrip("_"), stripped):
        for prefix in _PREFIXES:
            if spelling.startswith(prefix) and (found := OPERATORS.get(spelling.removeprefix(prefix))):
                return _over_lists(found) if stripped.startswith("foreach_") else found
    for suffix in _DERIVED:
        if stripped.endswith(suffix):
            found = find(stripped.removesuffix(suffix))
            if found is None or found.model not in (Model.TRAFFIC, Model.ROWS):
                return None
            if found.model is Model.ROWS and suffix.startswith("_backward"):
                return replace(found, gradient=True)
            return _COPY if found.kind is not Kind.COMPUTE else replace(found, scratch=None) if found.scratch else found
    return None


def _over_lists(row: Operator) -> Operator:
    """The row of an operator that does the same to each of many tensors."""
    return replace(
        row, scratch=None, lists=True, launches=reduced_list_launches if row.pace == "reduce" else list_launches
    )
