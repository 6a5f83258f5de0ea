"""Tensor parallelism with Megatron-Core's names and semantics, on Triton gemm kernels.

    from kernbench import tp

    tp.initialize_model_parallel(tensor_model_parallel_size=4)
    tp.model_parallel_manual_seed(1234)
    fc1 = tp.ColumnParallelLinear(1024, 4096, gather_output=False, activation="gelu")
    fc2 = tp.RowParallelLinear(4096, 1024, input_is_parallel=True)
    y, _ = fc2(fc1(x)[0])

One code for simulated ranks, gloo processes and GPUs with NCCL; see ``docs/tensor_parallel.md``.
"""

from __future__ import annotations

from kernbench.tp import comm as comm
from kernbench.tp import parallel_state as parallel_state
from kernbench.tp.cross_entropy import vocab_parallel_cross_entropy
from kernbench.tp.errors import AlreadyInitializedError, NotInitializedError, PartitionError
from kernbench.tp.gradients import DistributedDataParallel, clip_grad_norm, finalize_model_grads
from kernbench.tp.initialize import (
    init_method_normal,
    param_is_not_tensor_parallel_duplicate,
    scaled_init_method_normal,
    set_tensor_model_parallel_attributes,
)
from kernbench.tp.kernels.attention import flash_attention
from kernbench.tp.kernels.decode import decode_attention, merge_partial_softmax
from kernbench.tp.kernels.gemm import gemm
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from kernbench.tp.linear import (
    LinearWithAsyncCommunication,
    linear_with_async_communication,
    linear_with_grad_accumulation_and_async_allreduce,
)
from kernbench.tp.mappings import (
    all_gather_last_dim_from_tensor_parallel_region,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_last_dim_to_tensor_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
    scatter_to_tensor_model_parallel_region,
)
from kernbench.tp.parallel_state import *  # noqa: F403  (its __all__: get_*_group, get_*_rank, ...)
from kernbench.tp.parallel_state import __all__ as _parallel_state_names
from kernbench.tp.random import (
    CudaRNGStatesTracker,
    RNGStatesTracker,
    get_cuda_rng_tracker,
    get_data_parallel_rng_tracker_name,
    get_rng_tracker,
    model_parallel_cuda_manual_seed,
    model_parallel_manual_seed,
)
from kernbench.tp.transformer import (
    GPTModel,
    ParallelMLP,
    SelfAttention,
    TransformerConfig,
    TransformerLayer,
)
from kernbench.tp.utils import VocabUtility, divide, ensure_divisibility, split_tensor_along_last_dim

__all__ = [
    "AlreadyInitializedError",
    "ColumnParallelLinear",
    "CudaRNGStatesTracker",
    "DistributedDataParallel",
    "GPTModel",
    "LinearWithAsyncCommunication",
    "NotInitializedError",
    "ParallelMLP",
    "PartitionError",
    "RNGStatesTracker",
    "RowParallelLinear",
    "SelfAttention",
    "TransformerConfig",
    "TransformerLayer",
    "VocabParallelEmbedding",
    "VocabUtility",
    "all_gather_last_dim_from_tensor_parallel_region",
    "clip_grad_norm",
    "comm",
    "copy_to_tensor_model_parallel_region",
    "decode_attention",
    "divide",
    "ensure_divisibility",
    "finalize_model_grads",
    "flash_attention",
    "gather_from_sequence_parallel_region",
    "gather_from_tensor_model_parallel_region",
    "gemm",
    "get_cuda_rng_tracker",
    "get_data_parallel_rng_tracker_name",
    "get_rng_tracker",
    "init_method_normal",
    "linear_with_async_communication",
    "linear_with_grad_accumulation_and_async_allreduce",
    "merge_partial_softmax",
    "model_parallel_cuda_manual_seed",
    "model_parallel_manual_seed",
    "parallel_state",
    "param_is_not_tensor_parallel_duplicate",
    "reduce_from_tensor_model_parallel_region",
    "reduce_scatter_last_dim_to_tensor_parallel_region",
    "reduce_scatter_to_sequence_parallel_region",
    "scaled_init_method_normal",
    "scatter_to_sequence_parallel_region",
    "scatter_to_tensor_model_parallel_region",
    "set_tensor_model_parallel_attributes",
    "split_tensor_along_last_dim",
    "vocab_parallel_cross_entropy",
    *_parallel_state_names,
]
