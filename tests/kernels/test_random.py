"""Random numbers: the language's generator is Philox 4x32-10, checked against an implementation from its paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernbench.benches.kernels.dropout import dropout, random_streams

ROUND_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF


def philox(counter: int, seed: int) -> list[int]:
    """Four 32-bit words for one counter (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11)."""
    c = [counter & MASK, 0, 0, 0]
    k = [seed & MASK, seed >> 32]
    for _ in range(10):
        high0, low0 = divmod(ROUND_MULTIPLIERS[0] * c[0], 1 << 32)
        high1, low1 = divmod(ROUND_MULTIPLIERS[1] * c[2], 1 << 32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + WEYL[0]) & MASK, (k[1] + WEYL[1]) & MASK]
    return c


def uniform(word: int) -> np.float32:
    """A word as the language maps it into [0, 1): the absolute value of the signed word, scaled."""
    signed = word - (1 << 32) if word >> 31 else word
    return np.float32(-signed - 1 if signed < 0 else signed) * np.float32(4.6566127342e-10)


def words(n: int, seed: int) -> np.ndarray:
    return np.array([philox(i, seed) for i in range(n)], dtype=np.uint32)


@pytest.mark.parametrize("seed", [0, 11, 2**31 - 1, 2**40 + 17])
def test_integers_and_uniforms_are_exact(seed):
    n = 200
    floats, _, integers, four = random_streams(n, seed)
    expected = words(n, seed)
    np.testing.assert_array_equal(four.numpy().view(np.uint32), expected.T)
    np.testing.assert_array_equal(integers.numpy().view(np.uint32), expected[:, 0])
    np.testing.assert_array_equal(floats.numpy(), [uniform(int(w)) for w in expected[:, 0]])


def test_normals_follow_box_muller():
    n, seed = 200, 5
    _, normal, _, _ = random_streams(n, seed)
    expected = words(n, seed)
    u1 = np.array([max(1e-7, uniform(int(w))) for w in expected[:, 0]], dtype=np.float64)
    u2 = np.array([uniform(int(w)) for w in expected[:, 1]], dtype=np.float64)
    np.testing.assert_allclose(normal.numpy(), np.sqrt(-2 * np.log(u1)) * np.cos(2 * np.pi * u2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9])
def test_dropout_mask_and_scale(p):
    x = torch.randn(1000)
    out = dropout(x, p, seed=123)
    keep = torch.tensor([bool(uniform(int(w)) > np.float32(p)) for w in words(1000, 123)[:, 0]])
    torch.testing.assert_close(out, torch.where(keep, x / (1 - p), 0.0))
