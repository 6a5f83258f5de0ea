"""The attention kernels against torch's own, in double precision."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernbench import tp
from kernbench.tp import PartitionError, decode_attention, flash_attention, merge_partial_softmax
from tests.tp.ranks import fixed, simulated


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """``[b, h, s, d]`` by torch; the last query sees all keys when causal."""
    group = q.size(1) // k.size(1)
    mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril(k.size(2) - q.size(2)) if causal else None
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.bfloat16, 3e-2)], ids=str)
@pytest.mark.parametrize(
    ("heads", "key_heads", "len_q", "len_k", "head_dim", "causal"),
    [
        (4, 4, 64, 64, 32, True),
        (4, 2, 70, 70, 24, True),
        (3, 3, 33, 50, 40, False),
        (2, 1, 10, 33, 64, True),
        (2, 2, 130, 130, 16, True),
    ],
)
def test_forward_and_every_gradient(heads, key_heads, len_q, len_k, head_dim, causal, dtype, tolerance):
    q = fixed(2, heads, len_q, head_dim, dtype=dtype).requires_grad_()
    k = fixed(2, key_heads, len_k, head_dim, seed=1, dtype=dtype).requires_grad_()
    v = fixed(2, key_heads, len_k, head_dim, seed=2, dtype=dtype).requires_grad_()
    grad = fixed(2, heads, len_q, head_dim, seed=3, dtype=dtype)
    out = flash_attention(q, k, v, causal=causal)
    exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    expected = reference(*exact, causal)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    found = torch.autograd.grad(out, (q, k, v), grad)
    for mine, theirs in zip(found, torch.autograd.grad(expected, exact, grad.double()), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance)


def test_transposed_inputs_and_output_layout():
    """``[s, b, h, d]`` memory, as the layers have it, in and out."""
    q, k, v = (fixed(40, 2, 4, 16, seed=seed).permute(1, 2, 0, 3) for seed in range(3))
    out = flash_attention(q, k, v, causal=True)
    torch.testing.assert_close(out, reference(q, k, v, True), rtol=5e-6, atol=5e-6)
    assert out.permute(2, 0, 1, 3).is_contiguous()


@pytest.mark.parametrize(
    ("q", "k"),
    [((1, 3, 4, 8), (1, 2, 4, 8)), ((1, 2, 4, 8), (1, 2, 4, 16)), ((1, 2, 4, 300), (1, 2, 4, 300))],
)
def test_shapes_that_do_not_fit(q, k):
    with pytest.raises(PartitionError, match=r"flash_attention.*found q"):
        flash_attention(torch.ones(q), torch.ones(k), torch.ones(k))


# -- decoding --------------------------------------------------------------------------------------------------------


def cache(batch: int, length: int, key_heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    return fixed(batch, length, key_heads, head_dim, seed=1), fixed(batch, length, key_heads, head_dim, seed=2)


def decode_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    rows = [
        reference(q[i, None, :, None], k[i, None, :n].transpose(1, 2), v[i, None, :n].transpose(1, 2), False)
        for i, n in enumerate(lengths)
    ]
    return torch.cat(rows).squeeze(2)


@pytest.mark.parametrize(
    ("heads", "key_heads", "length", "head_dim"), [(8, 2, 300, 64), (4, 4, 70, 40), (16, 1, 1000, 128)]
)
def test_decode(heads, key_heads, length, head_dim):
    q, (k, v) = fixed(2, heads, head_dim), cache(2, length, key_heads, head_dim)
    lengths = [length, length // 3]
    found = decode_attention(q, k, v, torch.tensor(lengths, dtype=torch.int32))
    torch.testing.assert_close(found, decode_reference(q, k, v, lengths), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_decode_over_ranks_that_share_the_positions(world):
    """Ranks hold every ``world``-th position; one sequence is so short that some ranks have none of it."""
    q, (k, v) = fixed(2, 8, 32), cache(2, 120, 2, 32)
    lengths = [120, 2]

    def body() -> torch.Tensor:
        rank = tp.get_tensor_model_parallel_rank()
        mine = torch.tensor([len(range(rank, n, world)) for n in lengths], dtype=torch.int32)
        group = tp.get_tensor_model_parallel_group()
        return decode_attention(q, k[:, rank::world], v[:, rank::world], mine, group=group)

    for found in simulated(world, body):
        torch.testing.assert_close(found, decode_reference(q, k, v, lengths), rtol=2e-6, atol=2e-6)


def test_merge_is_the_softmax_over_all_parts():
    partial, lse = fixed(3, 5, 24), fixed(3, 5, seed=1, scale=10.0)
    lse[1, 2:] = float("-inf")  # parts without keys
    out, merged = merge_partial_softmax(partial, lse, torch.float32)
    weights = torch.softmax(lse.double() * torch.log(torch.tensor(2.0)).double(), 1)
    torch.testing.assert_close(out.double(), (weights.unsqueeze(2) * partial.double()).sum(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        merged.double(), torch.logsumexp(lse.double() * 0.6931471805599453, 1) / 0.6931471805599453
    )
