"""Tensors that tests of stand-ins draw, and how they are held against what numpy computes in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def drawn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers, the same for the same ``seed``."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def numbers(x: torch.Tensor) -> Any:
    """A tensor as an array of doubles."""
    return x.detach().double().numpy()


def close(found: torch.Tensor, wanted: Any) -> None:
    """Assert that ``found`` is ``wanted``, to its format's rounding."""
    tolerance = 1e-5 if found.dtype is torch.float32 else 2e-2
    np.testing.assert_allclose(numbers(found), wanted, rtol=tolerance, atol=tolerance)
