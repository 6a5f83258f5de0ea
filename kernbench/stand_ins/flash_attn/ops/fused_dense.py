"""The layers of ``flash_attn.ops.fused_dense``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Tensor = torch.Tensor

_ACTIVATIONS = {
    "gelu_approx": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "sqrelu": lambda x: F.relu(x).square(),
}  # fmt: skip


class FusedDense(nn.Linear):
    """A linear layer, with its input beside the result if that is wanted."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, return_residual: bool = False, device: object = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.return_residual = return_residual

    def forward(self, x: Tensor, process_group: object = None) -> Any:
        """``[..., in features]``. Raises NotImplementedError for a ``process_group``."""
        if process_group is not None:
            raise NotImplementedError("the stand-in for flash_attn.ops.fused_dense.FusedDense has no process_group")
        y = F.linear(x, self.weight, self.bias)
        return (y, x) if self.return_residual else y


class FusedMLP(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(
        self, in_features: int, hidden_features: int | None = None, out_features: int | None = None, bias1: bool = True,
        bias2: bool = True, activation: str = "gelu_approx", return_residual: bool = False, checkpoint_lvl: int = 0,
        heuristic: object = "auto", device: object = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        assert activation in _ACTIVATIONS, f"activation must be one of {', '.join(_ACTIVATIONS)}"
        hidden = hidden_features or 4 * in_features
        self.activation, self.return_residual = activation, return_residual
        self.fc1 = nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, out_features or in_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor, process_group: object = None) -> Any:
        """``[..., in features]``. Raises NotImplementedError for a ``process_group``."""
        if process_group is not None:
            raise NotImplementedError("the stand-in for flash_attn.ops.fused_dense.FusedMLP has no process_group")
        y = self.fc2(_ACTIVATIONS[self.activation](self.fc1(x)))
        return (y, x) if self.return_residual else y
