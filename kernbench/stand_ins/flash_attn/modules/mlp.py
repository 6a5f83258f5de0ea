"""The layers of ``flash_attn.modules.mlp``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Tensor = torch.Tensor
Activation = Callable[[Tensor], Tensor]


class Mlp(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(
        self, in_features: int, hidden_features: int | None = None, out_features: int | None = None,
        activation: Activation = F.gelu, bias1: bool = True, bias2: bool = True, return_residual: bool = False,
        device: object = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        hidden, out = hidden_features or 4 * in_features, out_features or in_features
        self.return_residual, self.activation = return_residual, activation
        self.fc1 = nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, out, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        """``[..., in features]``."""
        y = self.fc2(self.activation(self.fc1(x)))
        return (y, x) if self.return_residual else y


class GatedMlp(nn.Module):
    """The same, with one half of the hidden features times the activation of the other."""

    def __init__(
        self, in_features: int, hidden_features: int | None = None, out_features: int | None = None,
        activation: Activation = torch.sigmoid, bias1: bool = True, bias2: bool = True, multiple_of: int = 128,
        return_residual: bool = False, device: object = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        hidden = hidden_features or int(8 * in_features / 3)
        hidden = -(-hidden // multiple_of) * multiple_of
        self.return_residual, self.activation = return_residual, activation
        self.fc1 = nn.Linear(in_features, 2 * hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, out_features or in_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        """``[..., in features]``."""
        y, gate = self.fc1(x).chunk(2, dim=-1)
        out = self.fc2(y * self.activation(gate))
        return (out, x) if self.return_residual else out
