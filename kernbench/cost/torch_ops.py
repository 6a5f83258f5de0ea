"""How long a torch operation takes on a SIP: the larger of moving its bytes and doing its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kernbench.topology.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class Work:
    """What an operation does.

    Attributes:
        nbytes: bytes read and written.
        flops: floating-point operations; a multiply-add counts as two.
        matrix: whether the matrix engines do them.
        dtype: short dtype name (``"fp16"``), which selects the rate.
    """

    nbytes: int
    flops: int = 0
    matrix: bool = False
    dtype: str = "fp32"

    def seconds(self, device: DeviceSpec) -> float:
        """Roofline: the larger of ``nbytes`` at copy bandwidth and ``flops`` at the dtype's peak."""
        moving = self.nbytes / device.hbm_copy_bandwidth
        if not self.flops:
            return moving
        rate = device.matrix_rate(self.dtype) if self.matrix else device.vector_rate(self.dtype)
        return max(moving, self.flops / rate)


def gemm_flops(name: str, shapes: Sequence[Sequence[int]]) -> int:
    """FLOPs of a matrix product called ``name`` by torch, 0 if it is none. ``shapes``: of its tensor arguments."""
    if name not in _GEMMS or len(shapes) < 2:
        return 0
    left, right = (shapes[1], shapes[2]) if name in _ADDED and len(shapes) > 2 else (shapes[0], shapes[1])
    if name == "linear":
        return 2 * prod(left) * right[0]
    if not left or not right:
        return 0
    columns = right[-1] if len(right) > 1 else 1
    batch = prod(right[:-2]) if len(right) > len(left) else 1
    return 2 * prod(left) * columns * batch


_GEMMS = frozenset(
    {"mm", "matmul", "bmm", "mv", "dot", "linear", "addmm", "addbmm", "baddbmm", "__matmul__", "__rmatmul__"}
)
_ADDED = frozenset({"addmm", "addbmm", "baddbmm"})
