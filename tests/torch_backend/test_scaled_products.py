"""Products in eight bits that CUDA refuses, and those that it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

import kernbench

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def said(call: Callable[[], Any], system: str, data: bool) -> str:
    """What a call on a GPU raises, as text; empty if it does not."""
    found: list[str] = []

    def worker(rank: int) -> None:
        try:
            call()
            found.append("")
        except (RuntimeError, ValueError) as error:
            found.append(str(error))

    with kernbench.simulate(system, enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    return found[0]


def product(
    a: tuple[int, int] = (32, 64), b: tuple[int, int] = (48, 64), kinds: Any = (E4M3, E4M3), *, rows: bool = False,
    device: str = "cuda", scaled: bool = True,
) -> Callable[[], Any]:  # fmt: skip
    def call() -> Any:
        left, right = (torch.ones(*shape, device=device).to(kind) for shape, kind in zip((a, b), kinds, strict=True))
        other = right.t().contiguous() if rows else right.t()
        if not scaled:
            return left @ other
        one = torch.ones((), device=device)
        return torch._scaled_mm(left, other, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return call


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize(
    ("call", "system", "words"),
    [
        (product(), "dgx_h100", ""),
        (product(kinds=(E5M2, E4M3)), "dgx_h100", ""),
        (product(), "dgx_a100", "compute capability >= 9.0 or 8.9"),
        (product(device="cpu"), "dgx_a100", ""),
        (product(rows=True), "dgx_h100", "row-major and column-major"),
        (product(kinds=(E5M2, E5M2)), "dgx_h100", "two Float8_e5m2"),
        (product((32, 24), (48, 24)), "dgx_h100", "divisible by 16 but got mat1 shape: (32x24)"),
        (product(b=(20, 64)), "dgx_h100", "mat2 shape (64x20)"),
        (product(scaled=False), "dgx_h100", "\"addmm_cuda\" not implemented for 'Float8_e4m3fn'"),
    ],
)  # fmt: skip
def test_what_cuda_refuses_is_refused(call: Callable[[], Any], system: str, words: str, data: bool) -> None:
    found = said(call, system, data)
    assert bool(found) == bool(words), found
    assert words in found


M, K, N = 256, 640, 384
ALONG, SQUARE = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128


def scale_of(side: int, kind: ScalingType, *, by_rows: bool = False) -> torch.Tensor:
    """A scale for each block of an operand ``[side, K]``, in the layout that CUDA takes, or in the other one."""
    blocks, first = -(-K // 128), torch.arange
    rows, columns = (side, blocks) if kind is ALONG else (-(-blocks // 4) * 4, side // 128)
    made = (first(rows * columns, device="cuda") % 7 + 1.0).view(columns, rows).t()
    return made.contiguous() if by_rows else made


def of_each(scale: torch.Tensor, side: int, kind: ScalingType) -> torch.Tensor:
    """That of each element."""
    row, column = torch.arange(side, device="cuda")[:, None], torch.arange(K, device="cuda")[None] // 128
    return scale[row, column] if kind is ALONG else scale[column, row // 128]


KINDS = [(ALONG, ALONG), (ALONG, SQUARE), (SQUARE, ALONG)]


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize(("kind_a", "kind_b"), KINDS)
def test_products_with_scales_of_blocks(kind_a: ScalingType, kind_b: ScalingType, data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data) as ctx:
        a, b = torch.randn(M, K, device="cuda").to(E4M3), torch.randn(N, K, device="cuda").to(E4M3)
        scale_a, scale_b, bias = scale_of(M, kind_a), scale_of(N, kind_b), torch.ones(N, device="cuda").bfloat16()
        began = len(ctx.engine.op_log.operations)
        found = scaled_mm(a, b.t(), scale_a, kind_a, scale_b, kind_b, bias=bias, output_dtype=torch.bfloat16)
        (product,) = ctx.engine.op_log.operations[began:]
        assert (found.shape, found.dtype, found.is_cuda) == ((M, N), torch.bfloat16, True)
        assert product.name == "_scaled_mm_v2.default"
        if data:
            left, right = (
                x.float() * of_each(*scale) for x, scale in ((a, (scale_a, M, kind_a)), (b, (scale_b, N, kind_b)))
            )
            torch.testing.assert_close(found, (left @ right.t() + 1).bfloat16())


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize(
    ("system", "kinds", "by_rows", "words"),
    [
        ("dgx_b200", (ALONG, ALONG), False, "only supported in CUDA for SM90"),
        ("dgx_h100", (ALONG, SQUARE), True, "scale_a must have strides (1, 256)"),
        ("dgx_h100", (SQUARE, SQUARE), False, "Invalid scaling configuration"),
    ],
)
def test_scales_of_blocks_that_cuda_refuses(
    system: str, kinds: tuple[ScalingType, ScalingType], by_rows: bool, words: str, data: bool
) -> None:
    def call() -> Any:
        a, b = torch.ones(M, K, device="cuda").to(E4M3), torch.ones(N, K, device="cuda").to(E4M3)
        scale_a, scale_b = (scale_of(side, kind, by_rows=by_rows) for side, kind in zip((M, N), kinds, strict=True))
        return scaled_mm(a, b.t(), scale_a, kinds[0], scale_b, kinds[1], output_dtype=torch.bfloat16)

    assert words in said(call, system, data)


def fine_scale(blocks: torch.Tensor) -> torch.Tensor:
    """Scales ``[rows, blocks]`` where tensor cores look for them: that of a row and block at a place of its tile."""
    rows, columns = blocks.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 4) * 4)
    padded[:rows, :columns] = blocks
    flat = torch.empty(padded.numel())
    tiles = padded.shape[1] // 4
    for row in range(padded.shape[0]):
        for column in range(padded.shape[1]):
            tile = (row // 128) * tiles + column // 4
            flat[512 * tile + 16 * (row % 32) + 4 * (row % 128 // 32) + column % 4] = padded[row, column]
    return flat


def fine_operand(rows: int, length: int, per: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An operand of four (a scale for 16) or eight bits, its scales in tiles, and its values."""
    scale = 2.0 ** torch.randint(-2, 3, (rows, length // per)).float()
    if per == 32:
        narrow = torch.randn(rows, length).to(E4M3)
        values, kind = narrow.float(), torch.float8_e8m0fnu
    else:
        codes = torch.randint(0, 256, (rows, length // 2), dtype=torch.uint8)
        grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
        values = grid[torch.stack((codes % 16, codes // 16), -1).flatten(1).long()]
        narrow, kind = codes.view(torch.float4_e2m1fn_x2), E4M3
    return narrow.cuda(), fine_scale(scale).to(kind).cuda(), values * scale.repeat_interleave(per, 1)


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize("by_shapes", [True, False], ids=["_scaled_mm", "scaled_mm"])
@pytest.mark.parametrize("per", [16, 32])
def test_products_with_fine_scales(per: int, by_shapes: bool, data: bool) -> None:
    with kernbench.simulated_gpu("dgx_b200", enable_data=data) as ctx:
        (a, scale_a, left), (b, scale_b, right) = fine_operand(144, 320, per), fine_operand(48, 320, per)
        kind = ScalingType.BlockWise1x16 if per == 16 else ScalingType.BlockWise1x32
        tiled, dtype = SwizzleType.SWIZZLE_32_4_4, torch.bfloat16
        if by_shapes:
            found, of_all = torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=dtype), 1.0
        elif per == 32:
            found, of_all = scaled_mm(a, b.t(), scale_a, kind, scale_b, kind, tiled, tiled, output_dtype=dtype), 1.0
        else:  # and a scale of each operand as a whole
            two, of_all = torch.full((1,), 2.0, device="cuda"), 4.0
            kinds, tiles = [kind, ScalingType.TensorWise], [tiled, SwizzleType.NO_SWIZZLE]
            found = scaled_mm(a, b.t(), [scale_a, two], kinds, [scale_b, two], kinds, tiles, tiles, output_dtype=dtype)
        assert (found.shape, found.dtype, found.is_cuda) == ((144, 48), dtype, True)
        assert sum(ctx.simulation.hosts.of_rank[0].account.flops.values()) == 2 * 144 * 48 * 320
        if data:
            torch.testing.assert_close(found.cpu(), (of_all * left @ right.t()).to(dtype))


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_numbers_of_four_bits_are_made_and_moved(data: bool) -> None:
    with kernbench.simulated_gpu("dgx_b200", enable_data=data):
        a = torch.full((4, 4), 0x35, dtype=torch.uint8, device="cuda").view(torch.float4_e2m1fn_x2)
        made = torch.empty_like(a).copy_(a)
        assert (made.shape, made.clone().dtype) == ((4, 4), torch.float4_e2m1fn_x2)
        if data:
            assert made.t().contiguous().view(torch.uint8).tolist() == [[0x35] * 4] * 4


def test_fine_scales_need_a_gpu_that_has_them() -> None:
    def call() -> Any:
        (a, scale_a, _), (b, scale_b, _) = fine_operand(128, 64, 32), fine_operand(128, 64, 32)
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16)

    assert "need compute capability 10.0" in said(call, "dgx_h100", True)
