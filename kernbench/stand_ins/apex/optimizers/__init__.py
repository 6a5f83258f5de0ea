"""Optimizers whose step is one kernel for many parameters: Adam and SGD."""

from __future__ import annotations

from .fused_adam import FusedAdam
from .fused_sgd import FusedSGD

__all__ = ["FusedAdam", "FusedSGD"]
