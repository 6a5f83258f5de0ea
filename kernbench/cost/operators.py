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
from dataclasses import replace
from functools import cache, partial

from kernbench.cost.cuda_kernels import (
    embedding_gradient,
    embedding_gradient_launches,
    fused_step,
    list_launches,
    norm_gradient,
    picked_rows,
    picked_rows_gradient,
    reduced_list_launches,
    selection_launches,
    sort_launches,
    step_launches,
)
from kernbench.cost.operands import Operands, Shapes, everything
from kernbench.cost.operator import Batched, Kind, Model, Operator, Product
from kernbench.cost.operator_products import (
    addbmm,
    convolution,
    convolution_backward,
    cubic,
    distance_operations,
    grouped,
    linear,
    linear_backward,
    of,
    packed_linear,
    solved,
    trilinear,
    trilinear_launches,
    two_of_four,
)
from kernbench.cost.operator_traffic import (
    as_log_of_sum,
    by_sorting,
    coalesced,
    copied_and_put_one_by_one,
    copied_and_scattered,
    drawn,
    first_result_copied,
    gathered,
    gathered_by_bag,
    gathered_for_first,
    looked_for,
    looking_launches,
    once_more_read,
    picked_one_by_one,
    put_one_by_one,
    read_as_written,
    rows_of_elements,
    scattered,
    selected,
    transformed,
    twice_read,
    written,
)
from kernbench.cost.recurrent_shapes import recurrent_calls, recurrent_launches, recurrent_products
from kernbench.cost.scratch import (
    distances,
    efficient_gradient,
    flash_gradient,
    layout_copies_of,
    like_result,
    log_sum_exp,
    recurrent_states,
    reduced,
    sampled,
    sorted_rows,
)
from kernbench.memory.workspaces import BLAS, DNN, FFT, LT, SOLVER

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


def _pools(kind: str) -> Operator:
    return Operator(model=Model.POOL, variant=kind, images=True)


def _sorts(launches: int | Callable[[Operands, Operands], int]) -> Operator:
    return replace(_moves("sorted", by_sorting, launches=launches), model=Model.SORT)


def _guessed(pace: str) -> Operator:
    """Nothing but its bytes is known."""
    return replace(_moves(pace), guessed=True)


def _factors(
    flops: Callable[[Shapes, Shapes], float], share: float, column: float = 0.0, batched: Batched | None = None
) -> Operator:
    """``column``: microseconds of each column, which waits for the one before [H]."""
    return replace(_works(flops, share), library=SOLVER, column=column * 1e-6, batched=batched, launches=20)


def _recurs(gradient: bool) -> Operator:
    return replace(
        _multiplies(partial(recurrent_products, gradient), library=DNN), recurs=True, gradient=gradient, chosen=True,
        launches=partial(recurrent_launches, gradient), bookkeeping=partial(recurrent_calls, gradient),
        scratch=recurrent_states,
    )  # fmt: skip


_VIEW, _METADATA, _ALLOCATION, _HOST_READ = (
    Operator(kind) for kind in (Kind.VIEW, Kind.METADATA, Kind.ALLOCATION, Kind.HOST_READ)
)
_COPY = _moves("copy")
_BATCH_NORM = Operator(model=Model.BATCH_NORM, pace="batch_norm", traffic=once_more_read, images=True, chosen=True)
_POINTWISE = _moves("pointwise")
_FACTORIZATION = 0.4  # of the peak: cuSOLVER's and MAGMA's LU, Cholesky and QR of large matrices
_APART = 0.0045  # of the peak: kernels that take the coordinates of two points one by one [H]
# MAGMA's, of many matrices [H]
_CHOLESKY, _LU = Batched(1.2e-6, 8e12), Batched(3.8e-6, 1.67e12)
_INVERSE, _SOLUTION = Batched(6.6e-6, 4.3e12), Batched(6.6e-6, 5e12)
_TRIANGLE, _TRIANGLES = Batched(0.75e-6, 8e12), Batched(1.5e-6, 8e12)
_ALONE, _LARGE_ALONE = Batched(alone=1), Batched(alone=32)  # [H]: cuSOLVER's, which takes matrices of up to 32 together
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
        _nested_tensor_storage_offsets _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_with_dims""",
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
        complex _to_sparse _to_dense
        sparse_mask _pin_memory lift_fresh_copy slice_scatter select_scatter diagonal_scatter as_strided_scatter
        slice_backward select_backward diagonal_backward unfold_backward _foreach_copy fsdp::copy_ slice_inverse
        narrow_copy lu_unpack _copy_from dequantize int_repr _convert_weight_to_int4pack _cslt_compress
        _jagged_to_padded_dense
        _padded_dense_to_jagged _nested_from_padded_tensor nested_to_padded_tensor
        to_padded_tensor _nested_from_padded _nested_tensor_from_tensor_list""",
        _COPY,
    ),
    (
        """reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d""",
        _moves("mirrored"),
    ),
    ("pixel_shuffle pixel_unshuffle channel_shuffle", _moves("shuffled")),
    ("im2col", _moves("unfolded")),
    ("col2im", _moves("folded")),
    # what FSDP copies in and out: a copy of where everything is, and one kernel; the host looks after the unit's parameters
    (
        "_chunk_cat fsdp::chunk_cat fsdp::chunk_cat_mixed_dtype split_with_sizes_copy fsdp::split_with_sizes_copy",
        _moves("copy", read_as_written, launches=2, bookkeeping=1.0),
    ),
    ("_embedding_bag_per_sample_weights_backward", _moves("copy", gathered_for_first)),
    ("fsdp::all_gather_copy_in", _moves("copy", first_result_copied, bookkeeping=1.0)),
    (
        "embedding index_select index _unsafe_index _unsafe_masked_index",
        _moves("gathered", gathered),
    ),
    ("_embedding_bag _embedding_bag_forward_only", _moves("bags", gathered_by_bag)),
    ("gather take", _moves("copy", picked_one_by_one)),
    ("scatter_ scatter_add_ scatter_reduce_ put_", _moves("copy", put_one_by_one)),
    ("scatter scatter_add scatter_reduce put", _moves("copy", copied_and_put_one_by_one)),
    ("index_add_ index_reduce_", _moves("added_rows", scattered)),
    ("index_copy_ index_fill_ index_put_ _index_put_impl_ embedding_renorm_", _moves("strided", scattered)),
    (
        """index_add index_copy index_fill index_put _unsafe_index_put index_reduce _unsafe_masked_index_put_accumulate
        masked_scatter""",
        _moves("strided", copied_and_scattered),
    ),
    (
        "embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward",
        replace(_moves("copy", embedding_gradient, embedding_gradient_launches), model=Model.TABLE_GRADIENT),
    ),
    (
        """zeros ones full zero zero_ fill fill_ arange range linspace logspace eye zeros_like ones_like
        full_like new_zeros new_ones new_full scalar_tensor tril_indices triu_indices bartlett_window
        blackman_window
        hamming_window hann_window kaiser_window fft_fftfreq fft_rfftfreq _foreach_zero
        _new_zeros_with_same_feature_meta _philox_key_split _philox_key_fold_in
        _cudnn_init_dropout_state affine_grid_generator cudnn_affine_grid_generator""",
        _moves("fill", written),
    ),
    (
        """rand randn randint randperm uniform exponential cauchy geometric log_normal random rand_like randn_like randint_like
        _philox_uniform _philox_normal normal_ bernoulli_""",
        _moves("random", written),
    ),
    ("normal bernoulli normal_functional", _moves("random")),
    ("dropout fused_dropout", _moves("dropout")),
    ("flip rot90 tril triu", _moves("strided")),
    ("roll", _moves("rolled")),
    ("cummax cummin cumprod cumsum logcumsumexp", replace(_moves("scan"), model=Model.SCAN)),
    ("max_pool2d max_pool2d_with_indices max_pool3d_with_indices", _pools("largest")),
    ("avg_pool2d avg_pool3d", _pools("average")),
    ("adaptive_max_pool2d adaptive_max_pool3d", _pools("adaptive largest")),
    ("adaptive_avg_pool2d adaptive_avg_pool3d", _pools("adaptive average")),
    (
        """upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_nearest_exact1d upsample_nearest_exact2d
        upsample_nearest_exact3d""",
        _pools("nearest"),
    ),
    ("upsample_linear1d upsample_trilinear3d", _pools("trilinear")),
    ("upsample_bilinear2d", _pools("bilinear")),
    ("upsample_bicubic2d", _pools("bicubic")),
    ("grid_sampler_2d grid_sampler_3d cudnn_grid_sampler", _pools("grid")),
    (
        """abs acos acosh add addcdiv addcmul addr and angle asin asinh atan atan2 atanh bitwise_and
        bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min
        clip conj_physical copysign cos cosh deg2rad digamma div elu eq erf erfc erfinv exp2 expm1 float_power floor
        floor_divide fmax fmin fmod frac frexp gcd ge gt hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0
        igamma igammac ilshift irshift isfinite isinf isnan isneginf isposinf ixor lcm ldexp le leaky_relu lerp lgamma
        log log10 log1p log2 log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit
        lshift lt masked_fill masked_scale maximum minimum mish mul mvlgamma nan_to_num ne neg nextafter or polar
        polygamma positive pow prelu_kernel prelu rad2deg reciprocal relu relu6 remainder round rrelu rrelu_with_noise
        rshift rsqrt rsub selu sgn sign signbit sin sinc sinh softplus softshrink sqrt square sub tan threshold
        true_divide trunc where xlogy xor airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t
        chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w entr erfcx hermite_polynomial_h
        hermite_polynomial_he i0e i1 i1e laguerre_polynomial_l legendre_polynomial_p log_ndtr modified_bessel_i0
        modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtri scaled_modified_bessel_k0
        scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u
        shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w spherical_bessel_j0 xlog1py zeta linalg_cross
        quantize_per_tensor quantize_per_channel fake_quantize_per_tensor_affine_cachemask
        fake_quantize_per_channel_affine_cachemask fake_quantize_learnable_per_tensor_affine
        fake_quantize_learnable_per_channel_affine add_relu binary_cross_entropy binary_cross_entropy_with_logits
        huber_loss mse_loss smooth_l1_loss soft_margin_loss transform_bias_rescale_qkv masked_scatter_backward
        convert_indices_from_coo_to_csr convert_indices_from_csr_to_coo amp_update_scale batch_norm_elemt
        batch_norm_backward_elemt inductor::accumulate_grad_""",
        _POINTWISE,
    ),
    # both sums of gates, the states; a gradient adds up those of the biases besides
    ("thnn_fused_gru_cell thnn_fused_lstm_cell", _moves("pointwise")),
    ("thnn_fused_gru_cell_backward", _moves("pointwise", None, launches=3)),
    ("thnn_fused_lstm_cell_backward_impl", _moves("pointwise", None, launches=2)),
    ("fused_adam fused_adamw fused_sgd fused_adagrad", replace(_moves("stepped", fused_step, step_launches), lists=True)),
    ("amp_foreach_non_finite_check_and_unscale", replace(_moves("unary", None, list_launches), lists=True)),
    ("gelu", _moves("gelu")),
    ("silu glu tanh sigmoid exp", _POINTWISE),
    (
        """batch_norm batch_norm_legit batch_norm_with_update batch_norm_with_update_functional batch_norm_legit_functional
        cudnn_batch_norm miopen_batch_norm""",
        _BATCH_NORM,
    ),
    ("batch_norm_no_update batch_norm_legit_no_training", replace(_BATCH_NORM, evaluated=True)),
    ("group_norm", _moves("group_norm", once_more_read, launches=2)),
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
        """count_nonzero linalg__powsum dist trace hash_tensor powsum batch_norm_stats batch_norm_backward_reduce
        batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats sparse_sum sparse_csr_sum
        sparse_csr_prod""",
        _moves("reduce"),
    ),
    ("amax amin", replace(_moves("extreme"), scratch=reduced())),
    ("aminmax", _moves("extreme")),
    ("all any", replace(_moves("extreme"), scratch=reduced(1))),
    ("max min argmax argmin", _moves("indexed")),
    ("std std_mean var var_mean", replace(_moves("indexed"), scratch=reduced(16))),
    ("logsumexp", replace(_moves("reduce", as_log_of_sum, launches=6), scratch=log_sum_exp)),
    ("searchsorted bucketize", _moves("searched")),
    ("isin", _moves("extreme", looked_for, launches=looking_launches)),
    ("bincount histc", _moves("histogram")),
    # weights are checked, a number is drawn for each, the largest quotient is found [H]
    ("multinomial", replace(_moves("pointwise", drawn, launches=38), scratch=sampled)),
    ("sort argsort msort", replace(_sorts(sort_launches), scratch=sorted_rows)),
    ("mode", _sorts(sort_launches)),
    ("unique unique2 unique_dim", replace(_sorts(40), flat=True)),
    ("unique_consecutive unique_dim_consecutive", _moves("copy", twice_read, launches=12)),
    ("topk", replace(_moves("indexed", selected, launches=selection_launches), model=Model.SELECT)),
    ("kthvalue median nanmedian", _moves("ranked")),
    ("_coalesce", _moves("copy", coalesced, launches=12)),  # keys, their order by merging, the distinct ones, sums [H]
    ("nonzero nonzero_static masked_select repeat_interleave", _moves("copy", twice_read, launches=3)),
    ("fft_c2c fft_c2r fft_r2c", replace(_moves("transform", transformed), library=FFT)),
    # -- what nothing but its bytes is known of, and is said to be so
    (
        """fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d upsample_bicubic2d_aa upsample_bilinear2d_aa
        upsample_lanczos2d_aa ctc_loss cudnn_ctc_loss histogram histogramdd_bin_edges histogramdd_from_bin_cts
        histogramdd_from_bin_tensors segment_reduce renorm multi_margin_loss multilabel_margin_loss binomial
        sample_dirichlet dirichlet_grad standard_gamma standard_gamma_grad poisson""",
        _guessed("pointwise"),
    ),
    # -- products
    # of indices, values and a matrix [H]: operators whose operands are sparse are priced by what these consist of
    (
        """sparse_mm sparse_sparse_matmul sparse_mm_reduce_impl sparse_mm_reduce_impl_backward sparse_addmm
        sparse_sampled_addmm""",
        _moves("gathered", rows_of_elements, launches=2),
    ),
    ("mm matmul bmm mv dot vdot", _multiplies(of(0), library=BLAS)),
    ("int_mm scaled_mm scaled_mm_v2", _multiplies(of(0), library=LT)),
    ("addmm baddbmm addmv addmm_activation", replace(_multiplies(of(1), 1, 2, library=BLAS), adds=True)),
    ("addbmm", replace(_multiplies(addbmm, 1, 2, library=BLAS), adds=True)),
    ("linear mkldnn_linear mkldnn::_linear_pointwise", _multiplies(linear, library=BLAS)),
    ("weight_int8pack_mm", _multiplies(linear)),
    ("linear_backward", _multiplies(linear_backward, 0, 1, 2, library=BLAS)),
    ("matmul_backward", _multiplies(of(1, 2), 1, 2, library=BLAS)),
    (
        """weight_int4pack_mm weight_int4pack_mm_for_cpu weight_int4pack_mm_with_scales_and_zeros dyn_quant_matmul_4bit
        mkl::_mkl_linear""",
        _multiplies(packed_linear, 0),
    ),
    # two of four elements are kept
    ("cslt_sparse_mm", _multiplies(two_of_four(1, 0), library=LT)),
    ("semi_structured::cusparselt_mm", _multiplies(two_of_four(0, 1), library=LT)),
    ("semi_structured::cutlass_mm sparse_semi_structured_linear", _multiplies(two_of_four(0, 1))),
    ("sparse_semi_structured_mm", _multiplies(two_of_four(2, 0), 0, 2)),
    ("sparse_semi_structured_addmm", replace(_multiplies(two_of_four(3, 1), 1, 3), adds=True)),
    # a kernel makes problems of the offsets, another multiplies
    ("grouped_mm scaled_grouped_mm scaled_grouped_mm_v2", replace(_multiplies(grouped), launches=2, groups=True)),
    (
        """convolution convolution_overrideable cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu
        cudnn_convolution_transpose miopen_convolution mkldnn_convolution slow_conv2d_forward slow_conv3d_forward
        slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d conv_depthwise2d
        conv_depthwise3d nnpack_spatial_convolution mkldnn::_convolution_pointwise""",
        replace(_multiplies(convolution, library=DNN), convolves=True, images=True, chosen=True, scratch=layout_copies_of),
    ),
    (
        "convolution_backward convolution_backward_overrideable slow_conv2d_backward",
        replace(
            _multiplies(convolution_backward, 0, 1, 2, library=DNN), convolves=True, images=True, gradient=True, chosen=True,
            scratch=layout_copies_of,
        ),
    ),
    ("trilinear", replace(_works(trilinear, 0.5, panels=False), launches=trilinear_launches)),
    # and a layer of an LSTM where cuDNN is off, which the CPU has one operator for, and a GPU what cuDNN does for each step
    ("cudnn_rnn mkldnn_rnn_layer", _recurs(False)),
    ("cudnn_rnn_backward mkldnn_rnn_layer_backward", _recurs(True)),
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
    ("linalg_cholesky_ex cholesky linalg_ldl_factor_ex", _factors(cubic(1 / 3), _FACTORIZATION, 0.33, _CHOLESKY)),
    ("linalg_lu linalg_lu_factor_ex linalg_det linalg_slogdet", _factors(cubic(2 / 3), _FACTORIZATION, 2.1, _LU)),
    ("linalg_qr geqrf linalg_householder_product", _factors(cubic(2), _FACTORIZATION, 3.6, _ALONE)),
    ("linalg_inv_ex", _factors(cubic(2), _FACTORIZATION, 2.6, _INVERSE)),
    ("cholesky_inverse", _factors(cubic(2), _FACTORIZATION, 2.6)),
    ("linalg_pinv", _factors(cubic(22), _DECOMPOSITION, 28)),
    ("linalg_matrix_exp", replace(_works(cubic(20), _FACTORIZATION), column=14e-6)),
    ("linalg_eig linalg_eigvals", _factors(cubic(25), _DECOMPOSITION)),
    ("linalg_eigh", _factors(cubic(9), _DECOMPOSITION, 30, _LARGE_ALONE)),
    ("linalg_svd", _factors(cubic(22), _DECOMPOSITION, 28, _LARGE_ALONE)),
    ("linalg_matrix_sqrth", _works(cubic(9 + 2), _DECOMPOSITION)),  # of linalg_eigh, and a product
    ("linalg_polar", _works(cubic(22 + 4), _DECOMPOSITION)),  # of linalg_svd, and two products: torch without nvmath-python
    ("linalg_solve_ex spsolve", _factors(solved(0, 1, 2 / 3), _FACTORIZATION, 2.3, _SOLUTION)),
    ("linalg_lstsq", _factors(solved(0, 1, 2), _FACTORIZATION, 5.5)),
    ("linalg_solve_triangular", replace(_works(solved(0, 1), _FACTORIZATION), column=0.25e-6)),
    ("triangular_solve", replace(_works(solved(1, 0), _FACTORIZATION), batched=_TRIANGLE)),
    ("cholesky_solve cholesky_solve_helper", replace(_works(solved(1, 0), _FACTORIZATION), batched=_TRIANGLES)),
    ("linalg_lu_solve linalg_ldl_solve ormqr", _works(solved(0, 2), _FACTORIZATION)),
    (
        "cdist_backward pdist_forward pdist_backward",
        _works(distance_operations, _APART, matrix=False, panels=False),
    ),
    ("euclidean_dist", replace(_works(distance_operations, 0.25, matrix=False, panels=False), scratch=distances)),
    ("cdist_forward", replace(_works(distance_operations, _APART, matrix=False, panels=False), scratch=distances)),
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
_WITH_GRADIENTS = (Model.TRAFFIC, Model.ROWS, Model.BATCH_NORM, Model.POOL)
"""Models of operators whose gradients are like them."""


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
            if found is None or found.model not in _WITH_GRADIENTS:
                return None
            if found.model is not Model.TRAFFIC and suffix.startswith("_backward"):
                return replace(found, gradient=True)
            return _COPY if found.kind is not Kind.COMPUTE else replace(found, scratch=None) if found.scratch else found
    return None


def _over_lists(row: Operator) -> Operator:
    """The row of an operator that does the same to each of many tensors."""
    return replace(
        row, scratch=None, lists=True, launches=reduced_list_launches if row.pace == "reduce" else list_launches
    )
