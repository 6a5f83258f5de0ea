"""Which types and reductions the communication libraries take, as torch 2.13 finds out when a program calls them.

A library is asked for by the name of a backend: ``nccl`` is NCCL on NVIDIA's GPUs and RCCL on AMD's, ``gloo`` is Gloo. What no
row refuses is taken. A row says of which library, operations, types, reductions, GPUs and versions it is, and has torch's
error: its class and its words. The first row that fits counts, in the order in which torch and the library look.

Sources, by the letter in a row:

- [T] torch 2.13: ``ncclDataType`` in ``NCCLUtils.hpp`` (a header of every build), ``getNcclDataType``, ``getNcclReduceOp`` and
  ``isUnsupportedFloat8`` in ``ProcessGroupNCCL.cpp``, ``to_nccl_data_type`` in ``torch/csrc/cuda/nccl.cpp``.
- [N] NCCL, ``taskAppend`` in ``src/enqueue.cc``, compared from 2.24.3 to 2.30.7: the check of 8-bit floats came with 2.24 for
  all collectives, and is one of reductions alone since 2.28.3.
- [A] measured by others: RCCL of ROCm 7.2.1 under torch 2.10 on an MI355X (the benchmarks of AMD's Iris).
- [G] gloo processes of torch 2.13, asked for every type and reduction; ``tests/torch_backend/test_library_types.py`` asks
  again.

Other backends (``mpi``, ``ucc``, ``xccl``) are not in the table: they take what torch computes on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import torch
import torch.distributed as dist

from kernbench.ccl.reduce_op import PREMULTIPLIED_AVERAGE, ReduceOp, Reduction

Library = Literal["nccl", "rccl", "gloo", ""]
"""``""``: one that is not in the table."""

Version = tuple[int, int]

_REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
_COPYING = frozenset({"all_gather", "broadcast"})
_BY_MESSAGES = frozenset({"all_to_all", "gather", "scatter", "send", "recv"})
"""What torch makes of sends and receives with NCCL."""
OPERATIONS = _REDUCING | _COPYING | _BY_MESSAGES
"""Operations of the table."""

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})
_PLAIN = frozenset({torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool}) | _FLOATS
_FP8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
_FP8_OTHER = frozenset({torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})
_BITWISE = frozenset({ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR})

_SCALAR_TYPES = {
    torch.int8: "Char", torch.uint8: "Byte", torch.int32: "Int", torch.int64: "Long", torch.bool: "Bool",
    torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64",
    torch.float8_e8m0fnu: "Float8_e8m0fnu", torch.float4_e2m1fn_x2: "Float4_e2m1fn_x2",
    torch.quint8: "QUInt8", torch.qint8: "QInt8", torch.qint32: "QInt32",
}  # fmt: skip
"""Types as C++ writes them, of those that messages name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A row of the table: what a library does not take.

    Attributes:
        libraries: whose it is.
        source: letters of the module's list.
        error, words: torch's; ``{type}``, ``{reduction}`` stand for names, ``{says}`` for what to do.
        operations: which; those of :data:`OPERATIONS`.
        types: which; None: all.
        but: types that are not meant.
        reductions: which; None: all, and none.
        below: compute capability under which GPUs are meant; None: all.
        since, before: versions of the library, the first that is meant and the first that is not.
        instead: what a program can do.
    """

    libraries: tuple[Library, ...]
    source: str
    error: type[Exception]
    words: str
    operations: frozenset[str] = OPERATIONS
    types: frozenset[torch.dtype] | None = None
    but: frozenset[torch.dtype] = field(default_factory=frozenset)
    reductions: frozenset[ReduceOp] | None = None
    below: int | None = None
    since: Version = (0, 0)
    before: Version = (1 << 16, 0)
    instead: str = ""

    def fits(
        self,
        library: Library,
        operation: str,
        dtype: torch.dtype,
        reduction: ReduceOp | None,
        arch: int | None,
        version: Version,
    ) -> bool:
        """Whether a call is one that this row refuses; ``arch``: compute capability times ten, None of a GPU that has none."""
        return (
            library in self.libraries
            and operation in self.operations
            and (self.types is None or dtype in self.types)
            and dtype not in self.but
            and (self.reductions is None or reduction in self.reductions)
            and (self.below is None or (arch is not None and arch < self.below))
            and (library != "nccl" or self.since <= version < self.before)
        )

    def exception(self, dtype: torch.dtype, reduction: ReduceOp | None) -> Exception:
        """What torch raises, and after its words what to do."""
        name = "" if reduction is None else reduction.name
        text = self.words.format(type=_SCALAR_TYPES.get(dtype, str(dtype).removeprefix("torch.")), reduction=name)
        return self.error(f"{text.removesuffix('.')}. {self.instead}" if self.instead else text)


_AS_BYTES = "Reinterpret the tensor, e.g. tensor.view(torch.uint8), if it is only moved, or convert it"

REFUSALS: tuple[Refusal, ...] = (
    # -- NCCL and RCCL ---------------------------------------------------------------------------------------------------
    Refusal(
        libraries=("nccl", "rccl"), source="T", operations=_REDUCING, types=_FP8_OTHER, error=RuntimeError,
        words="Unsupported Float8 type for NCCL reduction",
    ),
    Refusal(
        libraries=("nccl",), source="T", operations=_REDUCING, types=_FP8, before=(2, 24), error=RuntimeError,
        words="Unsupported Float8 type for NCCL reduction", instead="NCCL adds 8-bit floats since 2.24",
    ),
    Refusal(
        libraries=("rccl",), source="A", operations=_REDUCING, types=_FP8, error=RuntimeError,
        words="Unsupported Float8 type for NCCL reduction", instead="Reduce bfloat16",
    ),
    Refusal(
        libraries=("nccl", "rccl"), source="T", operations=_REDUCING | _COPYING, but=_PLAIN | _COMPLEX | _FP8 | _FP8_OTHER,
        error=TypeError, words="Input tensor data type is not supported for NCCL process group: {type}", instead=_AS_BYTES,
    ),
    Refusal(
        libraries=("nccl", "rccl"), source="T", operations=_BY_MESSAGES, but=_PLAIN | _COMPLEX | _FP8 | _FP8_OTHER,
        error=RuntimeError, words="Unconvertible NCCL type {type}", instead=_AS_BYTES,
    ),
    Refusal(
        libraries=("nccl", "rccl"), source="T", operations=_REDUCING, types=frozenset({torch.bool}),
        reductions=frozenset({ReduceOp.AVG}), error=TypeError, words="Cannot use ReduceOp.AVG with boolean inputs",
    ),
    Refusal(
        libraries=("nccl", "rccl"), source="T", operations=_REDUCING, reductions=_BITWISE, error=ValueError,
        words="Cannot use ReduceOp.{reduction} with NCCL",
        instead="Gather and combine the parts, or give a group of gloo tensors of the host",
    ),
    Refusal(
        libraries=("nccl",), source="N", operations=_REDUCING | _COPYING, types=_FP8, below=90, since=(2, 24), before=(2, 28),
        error=dist.DistBackendError,
        words="NCCL error in: ProcessGroupNCCL.cpp, invalid argument\nncclInvalidArgument: Invalid value for an argument.\n"
        "Last error:\nFP8 reduction support begins with sm90 capable devices.",
        instead=_AS_BYTES,
    ),
    Refusal(
        libraries=("nccl",), source="N", operations=_REDUCING, types=_FP8, below=90, since=(2, 28),
        error=dist.DistBackendError,
        words="NCCL error in: ProcessGroupNCCL.cpp, invalid argument\nncclInvalidArgument: Invalid value for an argument.\n"
        "Last error:\nFP8 reduction support begins with sm90 capable devices.",
        instead="Reduce bfloat16",
    ),
    # -- Gloo ------------------------------------------------------------------------------------------------------------
    Refusal(
        libraries=("gloo",), source="G", but=_PLAIN | _COMPLEX, operations=OPERATIONS - {"send", "recv"}, error=RuntimeError,
        words="Invalid scalar type", instead="Gloo knows int8, uint8, int32, int64, bool and floats of 16 to 64 bits",
    ),
    Refusal(
        libraries=("gloo",), source="G", operations=_REDUCING, types=_FLOATS, reductions=_BITWISE, error=RuntimeError,
        words="Cannot use ReduceOp.{reduction} with non-integral dtype",
    ),
    Refusal(
        libraries=("gloo",), source="G", operations=_REDUCING, but=_FLOATS | _COMPLEX, reductions=frozenset({ReduceOp.AVG}),
        error=RuntimeError, words="result type Float can't be cast to the desired output type {type}",
        instead="Sum, and divide with torch.div(total, members, rounding_mode='trunc')",
    ),
)  # fmt: skip
"""The table."""


def library_of(backend: str, gpus: Literal["cuda", "hip"]) -> Library:
    """The library that a backend's name stands for on GPUs of a kind."""
    if backend == "nccl":
        return "rccl" if gpus == "hip" else "nccl"
    return "gloo" if backend == "gloo" else ""


@lru_cache(maxsize=1024)
def refusal(
    library: Library, operation: str, dtype: torch.dtype, reduction: ReduceOp | None, arch: int | None, version: Version
) -> Refusal | None:
    """The row that a call meets, None if the library takes it.

    Args:
        operation: one of :data:`OPERATIONS`; of others nothing is refused.
        reduction: of an operation that reduces.
        arch: compute capability of the GPUs times ten (90), None if they have none.
        version: of NCCL, ``(2, 27)``.
    """
    return next((row for row in REFUSALS if row.fits(library, operation, dtype, reduction, arch, version)), None)


def as_the_library_computes(library: Library, dtype: torch.dtype, reduction: ReduceOp | None) -> Reduction | None:
    """The reduction that a library makes of one that a program asks for.

    NCCL multiplies floats before it averages them; it takes a sum of booleans, which are bytes to it, for a maximum.
    """
    if library not in ("nccl", "rccl") or reduction is None:
        return reduction
    if reduction is ReduceOp.AVG and (dtype.is_floating_point or dtype.is_complex):
        return PREMULTIPLIED_AVERAGE
    if reduction is ReduceOp.SUM and dtype is torch.bool:
        return ReduceOp.MAX
    return reduction
