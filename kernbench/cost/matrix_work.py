"""Products of matrices that one kernel, or several beside each other, compute: what a library's operator says that it does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from kernbench.cost.gemm import gemm_time, kernels_of
from kernbench.cost.grouped import grouped_gemm_time
from kernbench.cost.work import Cost
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES


@dataclass(frozen=True)
class MatrixWork:
    """Products ``[M, K] @ [K, N]``.

    Attributes:
        products: M, N and K of each; those with nothing to multiply are not computed.
        dtype, out_dtype: of the operands (``"bf16"``), of the results.
        accumulate: results are added to what was there.
        exact: of eight bits: sums are kept in 32 bits throughout.
        grouped: they follow one another, each with operands of its own.
        issue: seconds that such a product takes at least, where each is a launch of its own.
        stored: bytes of the second operands in memory and on the way to the PEs, as a share of what they have in ``dtype``:
            less than one where they are packed, and unpacked in front of the matrix engines.
    """

    products: tuple[tuple[int, int, int], ...]
    dtype: str
    out_dtype: str
    accumulate: bool = False
    exact: bool = False
    grouped: bool = False
    issue: float = 0.0
    stored: float = 1.0

    matrix = True

    @property
    def flops(self) -> int:
        """Floating-point operations; a multiply-add counts as two."""
        return sum(2 * m * n * k for m, n, k in self.products)

    @property
    def nbytes(self) -> int:
        """Bytes of operands and results."""
        read, written = ITEM_BYTES[self.dtype], ITEM_BYTES[self.out_dtype] * (1 + self.accumulate)
        return int(sum(read * (m * k + self.stored * k * n) + written * m * n for m, n, k in self.products))

    def cost(self, device: DeviceSpec) -> Cost:
        """What they occupy a stream for."""
        seconds = low = high = 0.0
        limit = "launch"
        for (m, n, k), count in Counter(each for each in self.products if min(each)).items():
            how: dict[str, Any] = {"dtype": self.dtype, "out_dtype": self.out_dtype, "accumulate": self.accumulate}
            if self.grouped:
                found = grouped_gemm_time(device, count, m, n, k, **how, issue=self.issue, stored=self.stored)
            else:
                found = gemm_time(device, m, n, k, **how, packed=self.stored)
            part = Cost.on_stream(found, device, kind="gemm", nbytes=0)
            factor = 1.0 if self.grouped else float(count)
            factor *= kernels_of(device).exact_sums if self.exact and found.algorithm == "compute" else 1
            seconds, low, high = seconds + factor * part.seconds, low + factor * part.low, high + factor * part.high
            limit = part.limit
        return Cost(seconds, low, high, self.nbytes, "gemm", limit)
