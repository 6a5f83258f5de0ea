"""Devices as ``torch.cuda``'s functions take them."""

from __future__ import annotations

import torch
from torch.types import Device


def number_of(device: Device | torch.cuda.device) -> int | None:
    """Number of a device, None if it has none. ``torch.cuda.device`` and ``device_of`` are contexts, taken for their GPU.

    What is no device at all has none either: torch takes the current GPU then. Raises ValueError, as torch does, for a device
    that is no GPU.
    """
    if device is None or isinstance(device, int):
        return device
    if isinstance(device, torch.cuda.device):
        return int(device.idx)
    named = torch.device(device) if isinstance(device, str) else device
    if not isinstance(named, torch.device):
        return None
    if named.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {named}")
    return named.index
