"""Matrix products of tiles, as a kernel of one's own has them (``tl.dot``): the instructions they become, and what those take.

On Hopper four warps multiply 64 rows or more by ``wgmma``, which takes operands from shared memory. Those of 8 and 32 bits it
takes only if they lie there along K: others are put there element by element. What fewer rows or warps multiply, they do by
``mma``, the instruction of Ampere. Products of full fp32 precision are multiply-adds of the vector units (ADR 0251).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd

from kernbench.cost.gemm import efficiency, kernels_of
from kernbench.topology.device import DeviceSpec

_WIDTH = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_NAMES = {"f64": "fp64", "f32": "tf32", "f16": "fp16", "bf16": "bf16", "i8": "int8"}
_OLDER = 0.62  # of Hopper's matrix rate by mma: arXiv 2402.13499, table of mma and wgmma
_EXACT_SHARE = 0.55  # of what shared memory could feed [H]
_LINE = 128  # bytes of a line of the cache, and of a row of an operand in shared memory
_ROWS_APART = 8  # rows of an operand that lie in different banks
_VECTOR = 16  # bytes that a thread loads at a time
_ACCUMULATORS = 200  # registers of a thread that sums may take beside all else
_STEP = 32  # bytes of K that one instruction takes
AWAITED = 95e-9
"""From a product's last operands to its sums, seconds, where other instructions wait for them [H]: one H100, Triton 3.6."""


def format_of(elem: str) -> str:
    """The matrix format of a type of Triton's intermediate language."""
    return _NAMES.get(elem, "fp8" if elem.startswith("f8") else "fp32")


@dataclass(frozen=True)
class TileProduct:
    """A product ``[rows, depth] @ [depth, columns]`` of one program.

    Attributes:
        index: number of the instruction.
        elem: type of the left operand.
        threads: of the program.
        precision: that is asked for of fp32: ``tf32``, ``tf32x3``, ``ieee``.
        loads: instructions whose result the operands are; -1: they are computed, or were loaded before the loop.
        turned: whether the operands are the transpose of what was loaded.
        awaited: other instructions of the same trip need the sums, or change them.
    """

    index: int
    elem: str
    rows: int
    columns: int
    depth: int
    threads: int
    precision: str
    loads: tuple[int, int]
    turned: tuple[bool, bool]
    awaited: bool

    @property
    def flops(self) -> int:
        """A multiply-add counts as two."""
        return 2 * self.rows * self.columns * self.depth

    def along(self, contiguous: dict[int, int]) -> tuple[bool, bool]:
        """Whether K runs along rows of memory, of both operands; of what is not known: as the engine takes it best.

        ``contiguous``: by load, which of a tile's last two dimensions does.
        """
        found = []
        for side, load in enumerate(self.loads):
            last = contiguous.get(load)
            if last is None:
                found.append(side == 0 or width_of(self) != 2)
            else:
                found.append((last == 1) != (self.turned[side] != bool(side)))
        return found[0], found[1]


def width_of(product: TileProduct) -> int:
    """Bytes of an element of its operands."""
    return _WIDTH[format_of(product.elem)]


def exact(product: TileProduct) -> bool:
    """Whether it is computed by the vector units, in full precision."""
    return product.elem == "f32" and product.precision == "ieee"


def product_seconds(product: TileProduct, device: DeviceSpec, share: float, along: tuple[bool, bool]) -> float:
    """How long one PE takes for one product with all that it holds, beyond loading its operands.

    Args:
        product: the product.
        device: where it runs.
        share: of the matrix rate, what the tile keeps (:func:`kernbench.cost.gemm.tile_share`).
        along: whether K runs along rows of memory.
    """
    kernels, name = kernels_of(device), format_of(product.elem)
    if exact(product) and device.target.backend == "cuda":
        elements = max(product.rows * product.columns / product.threads, 1)
        fed = _EXACT_SHARE / (
            1 + 8 / elements**0.5
        )  # 128 lanes, of which each multiply-add takes words that 32 banks give
        return product.flops * device.pes / (device.vector_rate("fp32") * fed)
    like = "fp8" if name == "int8" and kernels.own_reuse else name  # the library's own kernels of int8 are what is slow
    sustained = efficiency(device, kernels, like)
    seconds = product.flops * device.pes / (device.matrix_rate(name) * sustained * share)
    if product.elem == "f32" and product.precision == "tf32x3":
        seconds *= 3
    if not kernels.own_reuse:
        return seconds
    warps = product.threads // device.target.warp_size
    groups = warps % 4 == 0 and product.rows % 64 == 0 and product.columns % 8 == 0
    if not groups:
        seconds *= share / _OLDER if share > _OLDER else 1
    clocks = 0.0
    width = width_of(product)
    if groups and width != 2 and name != "fp64":
        for lies, across, load in zip(along, (product.rows, product.columns), product.loads, strict=True):
            if not lies and load >= 0:
                clocks += _stores(across, product.depth, width, device.target.warp_size)
    if (
        product.rows * product.columns / product.threads > _ACCUMULATORS
    ):  # sums go to memory and back around each instruction
        steps = ceil(product.depth * width / _STEP)
        seconds += 8 * product.rows * product.columns * steps / device.pe.tcm.bandwidth
    return seconds + clocks / device.clock


def _stores(across: int, depth: int, width: int, warp: int) -> float:
    """Clocks of putting an operand that runs ``across`` K into shared memory along K, element by element.

    Lanes have neighbours across; their rows in shared memory are a line apart, eight of them in different banks, and lanes
    whose rows are in the same banks take turns.
    """
    have = _VECTOR // width
    lanes = min(warp, max(across // have, 1))
    return across * depth / warp * max(1.0, lanes / (_ROWS_APART / gcd(have, _ROWS_APART)))


def lines(product: TileProduct, along: tuple[bool, bool]) -> tuple[float, float]:
    """Bytes that a product loads, and as how many they count: rows shorter than a line take half of what is left of it."""
    loaded = counted = 0.0
    width = width_of(product)
    for lies, across, load in zip(along, (product.rows, product.columns), product.loads, strict=True):
        if load >= 0:
            row = min((product.depth if lies else across) * width, _LINE)
            nbytes = across * product.depth * width
            loaded, counted = loaded + nbytes, counted + nbytes * (row + _LINE) / (2 * row)
    return loaded, counted
