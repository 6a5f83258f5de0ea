"""Enumerations of ``transformer_engine_torch``, with the numbers of its C++.

Facts are those of
``transformer_engine/common/include/transformer_engine/{transformer_engine,fused_attn,comm_gemm_overlap}.h`` and
``pytorch/csrc/common.h`` of github.com/NVIDIA/TransformerEngine (2.20). ``test_transformer_engine.py`` in
tests/packages compares them with the installed package's Python.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch


class BoundEnum(Enum):
    """An enumeration as pybind11 has it: members convert to whole numbers, and are equal to members of the same number only."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


class DType(BoundEnum):
    """Formats of elements; they are equal to numbers."""

    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10

    def __eq__(self, other: object) -> bool:
        return int(self) == int(other)  # type: ignore[call-overload]

    def __hash__(self) -> int:
        return int(self)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return DType, (int(self),)


TORCH = {
    0: torch.uint8, 2: torch.int32, 4: torch.float32, 5: torch.float16, 6: torch.bfloat16, 7: torch.float8_e4m3fn,
    8: torch.float8_e5m2,
}  # fmt: skip
"""The format of torch for a number of :class:`DType`."""


def torch_format(dtype: Any) -> torch.dtype:
    """The format of torch for a member of either ``DType``, the extension's or the package's."""
    return TORCH[int(dtype)]


_enumeration: Any = BoundEnum
"""By a name and numbers of members."""


def _of(title: str, start: int, names: str) -> Any:
    return _enumeration(title, {name: start + at for at, name in enumerate(names.split())})


NVTE_Bias_Type = _of("NVTE_Bias_Type", 0, "NVTE_NO_BIAS NVTE_PRE_SCALE_BIAS NVTE_POST_SCALE_BIAS NVTE_ALIBI")
NVTE_Mask_Type = _of(
    "NVTE_Mask_Type", 0,
    """NVTE_NO_MASK NVTE_PADDING_MASK NVTE_CAUSAL_MASK NVTE_PADDING_CAUSAL_MASK NVTE_CAUSAL_BOTTOM_RIGHT_MASK
    NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK""",
)  # fmt: skip
NVTE_Softmax_Type = _of("NVTE_Softmax_Type", 0, "NVTE_VANILLA_SOFTMAX NVTE_OFF_BY_ONE_SOFTMAX NVTE_LEARNABLE_SOFTMAX")
NVTE_QKV_Format = _of(
    "NVTE_QKV_Format", 0,
    """NVTE_SBHD NVTE_BSHD NVTE_THD NVTE_BSHD_2SBHD NVTE_SBHD_2BSHD NVTE_THD_2BSHD NVTE_THD_2SBHD NVTE_BHSD
    NVTE_QKV_Format_NOT_SET""",
)  # fmt: skip
NVTE_QKV_Layout = _of(
    "NVTE_QKV_Layout", 0,
    """NVTE_SB3HD NVTE_SBH3D NVTE_SBHD_SB2HD NVTE_SBHD_SBH2D NVTE_SBHD_SBHD_SBHD NVTE_BS3HD NVTE_BSH3D NVTE_BSHD_BS2HD
    NVTE_BSHD_BSH2D NVTE_BSHD_BSHD_BSHD NVTE_T3HD NVTE_TH3D NVTE_THD_T2HD NVTE_THD_TH2D NVTE_THD_THD_THD NVTE_SBHD_BSHD_BSHD
    NVTE_BSHD_SBHD_SBHD NVTE_THD_BSHD_BSHD NVTE_THD_SBHD_SBHD NVTE_Paged_KV_BSHD_BSHD_BSHD NVTE_Paged_KV_BSHD_SBHD_SBHD
    NVTE_Paged_KV_SBHD_BSHD_BSHD NVTE_Paged_KV_SBHD_SBHD_SBHD NVTE_Paged_KV_THD_BSHD_BSHD NVTE_Paged_KV_THD_SBHD_SBHD
    NVTE_BHSD_BHSD_BHSD NVTE_QKV_Layout_NOT_SET""",
)  # fmt: skip
NVTE_Fused_Attn_Backend = _enumeration(
    "NVTE_Fused_Attn_Backend", {"NVTE_No_Backend": -1, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2}
)
NVTEScalingMode = _of(
    "NVTEScalingMode", 0,
    "NVTE_DELAYED_TENSOR_SCALING NVTE_MXFP8_1D_SCALING NVTE_BLOCK_SCALING_1D NVTE_BLOCK_SCALING_2D NVTE_NVFP4_1D_SCALING",
)  # fmt: skip
NVTERoutingMapFormat = _of("NVTERoutingMapFormat", 0, "BYTEMAP BITMAP_U8")
NVTEQBHistogramMode = _of("NVTEQBHistogramMode", 0, "TWO_KERNEL FUSED_ATOMIC")
Float8BlockScaleTensorFormat = _of("Float8BlockScaleTensorFormat", 0, "GEMM_READY COMPACT INVALID")
CommOverlapType = _of("CommOverlapType", 0, "RS AG")
CommOverlapAlgo = _of(
    "CommOverlapAlgo", 0,
    """BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS SPLIT_PIPELINED_RS_P2P ATOMIC_GEMM_RS
    ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P EXTERNAL_BULK_OVERLAP_AG""",
)  # fmt: skip
FP8FwdTensors = _of(
    "FP8FwdTensors", 0,
    """GEMM1_INPUT GEMM1_WEIGHT GEMM1_OUTPUT GEMM2_INPUT GEMM2_WEIGHT GEMM2_OUTPUT GEMM3_INPUT GEMM3_WEIGHT
    GEMM3_OUTPUT""",
)  # fmt: skip
FP8BwdTensors = _of("FP8BwdTensors", 0, "GRAD_OUTPUT1 GRAD_INPUT1 GRAD_OUTPUT2 GRAD_INPUT2 GRAD_OUTPUT3 GRAD_INPUT3")


class FP8TensorMeta:
    """Scales and maxima of a module's tensors."""

    scale: torch.Tensor
    scale_inv: torch.Tensor
    amax_history: torch.Tensor


_NO_OVERLAP = (
    "The stand-in for transformer_engine has no communication that overlaps products (userbuffers): leave out "
    "ub_overlap_ag, ub_overlap_rs and initialize_ub (of Megatron-LM: --tp-comm-overlap)."
)


def bulk_overlap_ag_with_external_gemm(*args: object) -> None:
    """Not there."""
    raise NotImplementedError(_NO_OVERLAP)


class _Overlap:
    """Products that overlap with communication, by buffers of the package's own: not there."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(_NO_OVERLAP)


class CommOverlapHelper(_Overlap):
    """See :class:`_Overlap`."""


class CommOverlapCore(_Overlap):
    """See :class:`_Overlap`."""


class CommOverlapBase(CommOverlapCore):
    """See :class:`_Overlap`."""


class CommOverlapP2PBase(CommOverlapCore):
    """See :class:`_Overlap`."""


class CommOverlap(CommOverlapBase):
    """See :class:`_Overlap`."""


class CommOverlapP2P(CommOverlapP2PBase):
    """See :class:`_Overlap`."""
