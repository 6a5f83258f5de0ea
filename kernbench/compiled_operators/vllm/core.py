"""``vllm._C_stable_libtorch``: norms, activations, rotary embedding, and what the library says of the device."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from kernbench.compiled_operators.layers import gated, rms_normed, rotated
from kernbench.compiled_operators.moved import moving, taken_from
from kernbench.compiled_operators.operators import Operators
from kernbench.cost.by_values import CallOperands
from kernbench.cost.matrix_work import MatrixWork
from kernbench.cost.work import StatedWork
from kernbench.topology.dtypes import ITEM_BYTES
from kernbench.torch_backend.gpu.memory.captured_memory import weak_reference
from kernbench.torch_backend.gpu.memory.mapped_memory import view_on_gpu

Tensor = torch.Tensor

operators = Operators("_C", "_C_cache_ops", "_C_custom_ar", "_C_cuda_utils")

# -- norms: x / sqrt(mean(x^2) + epsilon) * weight, in float32 -------------------------------------------------------------


@operators.value
def rms_norm(result: Tensor, input: Tensor, weight: Tensor | None, epsilon: float) -> None:
    """``result``: ``input`` over the root of the mean of its squares, times ``weight``."""
    result.copy_(rms_normed(input, weight, epsilon))


@operators.value
def fused_add_rms_norm(input: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float) -> None:
    """``residual`` becomes the sum of both, ``input`` its norm."""
    residual.copy_(input.float() + residual.float())
    input.copy_(rms_normed(residual, weight, epsilon))


operators.cost("rms_norm")(moving("result", "input", "weight"))
operators.cost("fused_add_rms_norm")(moving("input", "input", "residual", "residual", "weight"))

# -- activations: of two halves of the last dimension, or of all of it ----------------------------------------------------


@operators.value
def silu_and_mul(result: Tensor, input: Tensor) -> None:
    """The first half through SiLU, times the second."""
    result.copy_(gated("silu", input))


@operators.value
def mul_and_silu(out: Tensor, input: Tensor) -> None:
    """The first half, times the second through SiLU."""
    first, second = input.float().chunk(2, -1)
    out.copy_(first * F.silu(second))


@operators.value
def gelu_and_mul(out: Tensor, input: Tensor) -> None:
    """The first half through GELU, times the second."""
    out.copy_(gated("gelu", input))


@operators.value
def gelu_tanh_and_mul(out: Tensor, input: Tensor) -> None:
    """The first half through GELU by tanh, times the second."""
    out.copy_(gated("gelu_tanh", input))


@operators.value("gelu_new")
@operators.value("gelu_fast")
def gelu_by_tanh(out: Tensor, input: Tensor) -> None:
    """GELU by tanh."""
    out.copy_(F.gelu(input.float(), approximate="tanh"))


@operators.value
def gelu_quick(out: Tensor, input: Tensor) -> None:
    """``x * sigmoid(1.702 x)``."""
    out.copy_(input.float() * torch.sigmoid(1.702 * input.float()))


@operators.value
def relu_squared(out: Tensor, input: Tensor) -> None:
    """``max(x, 0)^2``."""
    out.copy_(F.relu(input.float()).square())


operators.cost("silu_and_mul")(moving("result", "input"))
for _name in (
    "mul_and_silu", "gelu_and_mul", "gelu_tanh_and_mul", "gelu_new", "gelu_fast", "gelu_quick", "relu_squared",
):  # fmt: skip
    operators.cost(_name)(moving("out", "input"))

operators.cost("silu_and_mul_with_clamp")(moving("result", "input"))
for _name in (
    "fatrelu_and_mul", "swigluoai_and_mul", "situ_and_mul", "muse_spark_mul_tanh_soft_cap",
):  # fmt: skip
    operators.cost(_name)(moving("out", "input"))

# -- small products -------------------------------------------------------------------------------------------------------


@operators.value
def dsv3_fused_a_gemm(output: Tensor, mat_a: Tensor, mat_b: Tensor) -> None:
    """``[M, K] @ [K, N]``."""
    output.copy_(mat_a.float() @ mat_b.float())


@operators.value
def fp32_router_gemm(output: Tensor, mat_a: Tensor, mat_b: Tensor) -> None:
    """``[M, K] @ [N, K].T``, sums in 32 bits."""
    output.copy_(mat_a.float() @ mat_b.float().t())


def _of_small_product(operands: CallOperands) -> MatrixWork:
    a, b, out = operands["mat_a"], operands["mat_b"], operands["output"]
    (rows, width), inner = out.shape, a.shape[-1]
    stored = b.nbytes / max(width * inner * ITEM_BYTES[a.format], 1)
    return MatrixWork(((rows, width, inner),), a.format, out.format, stored=stored)


for _name in ("dsv3_fused_a_gemm", "fp32_router_gemm"):
    operators.cost(_name)(_of_small_product)

# -- rotary embedding -----------------------------------------------------------------------------------------------------


@operators.value
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, cos_sin_cache: Tensor, is_neox: bool,
    rope_dim_offset: int = 0, inverse: bool = False,
) -> None:  # fmt: skip
    """``cos_sin_cache``: ``[positions, width]``, cosines in its first half; the ``width`` elements of each head from
    ``rope_dim_offset`` on are pairs: halves of them (``is_neox``), or neighbours."""
    cos, sin = cos_sin_cache[positions.flatten()].float()[:, None].chunk(2, -1)
    sin = -sin if inverse else sin
    width = 2 * cos.shape[-1]
    for given in (query, key):
        if given is not None:
            heads = given.reshape(positions.numel(), -1, head_size).clone()
            turned = heads[..., rope_dim_offset : rope_dim_offset + width]
            turned.copy_(rotated(turned, cos, sin, halves=is_neox))
            given.copy_(heads.view(given.shape))


@operators.cost("rotary_embedding")
def _of_rotary_embedding(operands: CallOperands) -> StatedWork:
    positions, query, key = operands["positions"], operands["query"], operands["key"]
    turned = query.nbytes + (0 if key is None else key.nbytes)
    return StatedWork(2 * turned + positions.nbytes + taken_from(operands["cos_sin_cache"], positions))


# -- embedding ------------------------------------------------------------------------------------------------------------


@operators.value
def vocab_parallel_embedding(
    out: Tensor, input_ids: Tensor, weight: Tensor, org_vocab_start_index: int, org_vocab_end_index: int,
    num_org_vocab_padding: int, added_vocab_start_index: int, added_vocab_end_index: int,
) -> None:  # fmt: skip
    """Rows of a rank's part of the table: the original tokens that it has, rows of padding, added tokens; zeros for others."""
    count = org_vocab_end_index - org_vocab_start_index
    original = (input_ids >= org_vocab_start_index) & (input_ids < org_vocab_end_index)
    added = (input_ids >= added_vocab_start_index) & (input_ids < added_vocab_end_index)
    rows = torch.where(original, input_ids - org_vocab_start_index, 0)
    rows = torch.where(added, input_ids - added_vocab_start_index + count + num_org_vocab_padding, rows)
    out.copy_(weight[rows] * (original | added)[..., None])


@operators.cost("vocab_parallel_embedding")
def _of_embedding(operands: CallOperands) -> StatedWork:
    ids, out = operands["input_ids"], operands["out"]
    return StatedWork(ids.nbytes + out.nbytes + taken_from(operands["weight"], ids))


# -- what the library says ------------------------------------------------------------------------------------------------

_SHARED_MEMORY_OPTIN = 97
"""``cudaDevAttrMaxSharedMemoryPerBlockOptin``."""


@operators.value("get_cuda_view_from_cpu_tensor")
def _view_on_gpu(cpu_tensor: Tensor) -> Tensor:
    """The GPU's view of pinned memory."""
    return view_on_gpu(cpu_tensor)


@operators.shape("get_cuda_view_from_cpu_tensor")
def _of_view(cpu_tensor: Tensor) -> Tensor:
    return cpu_tensor


@operators.program
def weak_ref_tensor(input: Tensor) -> Tensor:
    """A tensor in the same memory, which does not keep it."""
    return weak_reference(input)


@operators.value
def get_device_attribute(attribute: int, device_id: int) -> int:
    """An attribute of a device, by CUDA's number."""
    if attribute != _SHARED_MEMORY_OPTIN:
        raise NotImplementedError(f"vllm: of the device attributes its stand-in knows {_SHARED_MEMORY_OPTIN} only")
    return get_max_shared_memory_per_block_device_attribute(device_id)


@operators.value
def get_max_shared_memory_per_block_device_attribute(device_id: int) -> int:
    """Bytes that a block may opt in for."""
    device = None if device_id < 0 else device_id
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


# Of wheels, which are built with CUDA 12.8 or later: e4m3 from 8.9 on, scales of blocks and groups from 9.0, fp4 from 10.0


@operators.value
def cutlass_scaled_mm_supports_fp8(cuda_device_capability: int) -> bool:
    """e4m3."""
    return cuda_device_capability >= 89


@operators.value
def cutlass_scaled_mm_supports_block_fp8(cuda_device_capability: int) -> bool:
    """e4m3 with a scale for each block."""
    return cuda_device_capability >= 90


@operators.value
def cutlass_group_gemm_supported(cuda_device_capability: int) -> bool:
    """Products of several groups."""
    return cuda_device_capability >= 90


@operators.value
def cutlass_scaled_mm_supports_fp4(cuda_device_capability: int) -> bool:
    """Products of nvfp4."""
    return cuda_device_capability >= 100


@operators.value
def mxfp4_experts_quant_supported(cuda_device_capability: int) -> bool:
    """Experts in mxfp4."""
    return cuda_device_capability >= 100
