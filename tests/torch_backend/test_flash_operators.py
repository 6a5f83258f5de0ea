"""Attention operators that programs call by themselves: values and gradients by definition, times by the live lengths."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.backends import cuda
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

import kernbench

ATEN = torch.ops.aten
Tensor = torch.Tensor


@pytest.fixture
def gpu() -> Iterator[Any]:
    with kernbench.simulated_gpu("dgx_h100") as ctx:
        yield ctx


def _operands(heads: int, groups: int, queries: int, keys: int, width: int = 16) -> tuple[Tensor, ...]:
    """``[2, heads, tokens, width]`` each, double on the host: by these the expected values are computed."""
    torch.manual_seed(0)
    shapes = (heads, queries), (groups, keys), (groups, keys)
    return tuple(
        torch.randn(2, many, tokens, width, dtype=torch.float64, requires_grad=True) for many, tokens in shapes
    )


def _expected(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    repeats = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ value


def _on_gpu(parts: tuple[Tensor, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [each.detach().to("cuda", dtype).requires_grad_() for each in parts]


def _close(found: list[Tensor], wanted: tuple[Tensor, ...] | list[Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("groups", "keys"), [(4, 24), (2, 40), (1, 8)])
def test_flash_is_causal_from_the_lower_right(gpu: Any, groups: int, keys: int) -> None:
    parts = _operands(4, groups, 24, keys)
    mask = torch.ones(24, keys, dtype=torch.bool).tril(keys - 24)
    wanted = _expected(*parts, mask)
    wanted.sum().backward()
    mine = _on_gpu(parts)
    out, sums, *_ = ATEN._scaled_dot_product_flash_attention(*mine, 0.0, True)
    out.sum().backward()
    _close([out.detach(), *(each.grad for each in mine)], [wanted.detach(), *(each.grad for each in parts)])
    assert (sums.shape, out.device.type) == ((2, 4, 24), "cuda")


@pytest.mark.parametrize("window", [None, 3])
def test_packed_sequences_are_computed_each_by_itself(gpu: Any, window: int | None) -> None:
    parts = _operands(4, 2, 12, 12)
    ends = torch.tensor([0, 5, 5, 12], device="cuda", dtype=torch.int32)
    packed = [each.detach()[0].transpose(0, 1).to("cuda", torch.float32).requires_grad_() for each in parts]
    out, sums, *_ = ATEN._flash_attention_forward(
        *packed, ends, ends, 7, 7, 0.0, True, False, window_size_left=window, window_size_right=0
    )
    out.square().sum().backward()
    sequence = torch.tensor([0] * 5 + [1] * 7)
    at = torch.arange(12)
    mask = (sequence[:, None] == sequence) & (at[:, None] >= at)
    if window is not None:
        mask &= at[:, None] - at <= window
    wanted = _expected(*(each[:1] for each in parts), mask)
    wanted.square().sum().backward()
    _close([out.detach()], [wanted.detach()[0].transpose(0, 1)])
    _close([each.grad for each in packed], [each.grad[0].transpose(0, 1) for each in parts])
    assert sums.shape == (4, 12)


def test_keys_in_pages_and_parts_of_them_are_used(gpu: Any) -> None:
    torch.manual_seed(0)
    cache = torch.randn(4, 8, 2, 16, device="cuda")
    pages = torch.tensor([[3, 1], [0, 2]], device="cuda", dtype=torch.int32)
    used = torch.tensor([11, 5], device="cuda", dtype=torch.int32)
    query = torch.randn(2, 2, 16, device="cuda")
    ends = torch.tensor([0, 1, 2], device="cuda", dtype=torch.int32)
    out = ATEN._flash_attention_forward(
        query, cache, cache, ends, None, 1, 16, 0.0, False, False, seqused_k=used, block_table=pages
    )[0]
    for at, (live, of_one) in enumerate(zip((11, 5), pages.tolist(), strict=True)):
        keys = torch.cat([cache[page] for page in of_one])[:live].transpose(0, 1)
        wanted = F.scaled_dot_product_attention(query[at, :, None], keys, keys)[:, 0]
        torch.testing.assert_close(out[at], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("mask_type", "first"), [(0, None), (1, 0), (2, 4)])
def test_the_memory_efficient_operator_takes_both_kinds_of_masks_and_a_bias(
    gpu: Any, mask_type: int, first: Any
) -> None:
    parts = _operands(2, 2, 6, 10)
    mask = torch.ones(6, 10, dtype=torch.bool) if first is None else torch.ones(6, 10, dtype=torch.bool).tril(first)
    wanted = _expected(*parts, mask)
    wanted.sum().backward()
    mine = [each.detach().transpose(1, 2).to("cuda", torch.float32).requires_grad_() for each in parts]
    bias = torch.zeros(2, 2, 6, 10, device="cuda", requires_grad=True)
    out, sums, *_ = ATEN._efficient_attention_forward(*mine, bias, None, None, None, None, 0.0, mask_type, True)
    out.sum().backward()
    _close([out.detach()], [wanted.detach().transpose(1, 2)])
    _close([each.grad for each in mine], [each.grad.transpose(1, 2) for each in parts])
    assert sums.shape == (2, 2, 32)
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad.sum(-1), torch.zeros(2, 2, 6, device="cuda"), atol=1e-5, rtol=0)


def test_dropout_drops_in_the_gradient_what_it_has_dropped(gpu: Any) -> None:
    query = torch.zeros(1, 1, 64, 8, device="cuda")
    value = torch.eye(64, device="cuda")[None, None, :, :8].requires_grad_()
    out = ATEN._scaled_dot_product_flash_attention(query, query, value, 0.5, False)[0]
    out.sum().backward()
    assert set(torch.unique(out * 64).tolist()) == {0.0, 2.0}
    assert value.grad is not None
    torch.testing.assert_close(value.grad.sum(), (out.sum() * 0 + value.grad[..., 0].sum() * 8))
    torch.testing.assert_close(value.grad[0, 0, :8, 0], out.detach().sum((0, 1, 2)))


def test_varlen_attn_and_causal_biases_of_torch_run(gpu: Any) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    query = torch.randn(12, 2, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([0, 5, 12], device="cuda", dtype=torch.int32)
    out = varlen.varlen_attn(query, query, query, ends, ends, 7, 7)
    out.sum().backward()
    first = query.detach()[:5].transpose(0, 1)[None]
    wanted = F.scaled_dot_product_attention(first, first, first)
    torch.testing.assert_close(out.detach()[:5].transpose(0, 1)[None], wanted, atol=1e-2, rtol=1e-2)
    assert query.grad is not None
    parts = [torch.randn(1, 2, tokens, 16, device="cuda", dtype=torch.bfloat16) for tokens in (6, 10, 10)]
    found = F.scaled_dot_product_attention(*parts, attn_mask=causal_lower_right(6, 10))
    mask = torch.ones(6, 10, dtype=torch.bool, device="cuda").tril(4)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*parts, attn_mask=mask), atol=1e-2, rtol=1e-2)


def test_a_program_may_ask_which_kernel_there_is(gpu: Any) -> None:
    def asked(
        query: Tensor, key: Tensor, *, mask: Any = None, causal: bool = False, grouped: bool = False
    ) -> tuple[bool, ...]:
        params = cuda.SDPAParams(query, key, key, mask, 0.0, causal, grouped)
        asks = cuda.can_use_flash_attention, cuda.can_use_efficient_attention, cuda.can_use_cudnn_attention
        return tuple(ask(params) for ask in asks)

    narrow, wide = (torch.ones(1, 4, 8, 64, device="cuda", dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    assert asked(narrow, narrow) == (True, True, True)
    assert asked(wide, wide) == (False, True, False)
    assert asked(narrow, narrow, mask=torch.ones(8, 8, device="cuda")) == (False, True, True)
    assert asked(narrow, narrow[:, :2], grouped=True) == (True, False, True)
    assert asked(narrow, narrow[:, :, :4], causal=True) == (False, True, True)
    assert asked(narrow.cpu(), narrow.cpu()) == (False, False, False)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        assert asked(narrow, narrow) == (False, True, False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        params = cuda.SDPAParams(wide, wide, wide, None, 0.0, False, False)
        assert not cuda.can_use_flash_attention(params, debug=True)
    assert "Expected query, key and value to all be of dtype" in str(told[-1].message)
    assert cuda.is_flash_attention_available()


def test_lengths_of_sequences_that_are_not_packed_are_those_of_their_tensors(gpu: Any) -> None:
    query, key = (torch.ones(2, length, 4, 8, device="cuda", dtype=torch.bfloat16) for length in (5, 7))
    given = query, key, key, None, None, None, -1, -1, 0.0, 0, True
    _, sums, *_, longest_q, longest_k = torch.ops.aten._efficient_attention_forward(*given)
    assert (tuple(sums.shape), longest_q, longest_k) == ((2, 4, 32), 5, 7)
    with pytest.raises(RuntimeError, match="invalid dtype for bias"):
        torch.ops.aten._efficient_attention_forward(*given[:3], torch.ones(2, 4, 5, 7, device="cuda"), *given[4:])


@pytest.mark.long  # seconds
def test_what_packed_attention_takes_is_by_its_live_lengths(gpu: Any) -> None:
    def seconds(*lengths: int) -> float:
        tokens = sum(lengths)
        query = torch.empty(tokens, 16, 128, device="cuda", dtype=torch.bfloat16)
        ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device="cuda", dtype=torch.int32)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        ATEN._flash_attention_forward(query, query, query, ends, ends, max(lengths), max(lengths), 0.0, True, False)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    assert seconds(2048) > 1.3 * seconds(*[128] * 16)


def test_without_data_they_have_shapes() -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=False):
        query = torch.empty(4096, 8, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        ends = torch.arange(0, 4097, 512, device="cuda", dtype=torch.int32)
        out, sums, *_ = ATEN._flash_attention_forward(query, query, query, ends, ends, 512, 512, 0.0, True, False)
        out.sum().backward()
        assert query.grad is not None
        assert (out.shape, sums.shape, query.grad.shape) == (query.shape, (8, 4096), query.shape)


class _Own(torch.Tensor):
    """A subclass without a constructor of its own."""


def test_a_subclass_is_made_by_torchs_own_constructor(gpu: Any) -> None:
    made = _Own([1.0, 2.0])
    assert (type(made), type(made + 1), type(_Own(2, 3)), made.tolist()) == (_Own, _Own, _Own, [1.0, 2.0])
    assert type(made.cuda() * 2) is _Own
    assert type(torch.Tensor([1.0])) is torch.Tensor


@pytest.mark.parametrize("compiled", ["aot_eager", "inductor"])
def test_a_causal_mask_in_a_compiled_function(gpu: Any, compiled: str) -> None:
    """Dynamo asks the mask's class, as it does of torch's own function."""
    query, key, value = (each.detach().float().cuda() for each in _operands(2, 2, 6, 10))

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    mask = causal_lower_right(6, 10)
    found = torch.compile(attend, backend=compiled)(query, key, value, mask)
    seen = torch.ones(6, 10, dtype=torch.bool).tril(4)
    expected = _expected(*(each.double().cpu() for each in (query, key, value)), seen)
    torch.testing.assert_close(found.double().cpu(), expected, atol=1e-5, rtol=1e-5)
