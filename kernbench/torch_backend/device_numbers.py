"""Devices as ``torch.cuda``'s functions take them."""

from __future__ import annotations

import torch
from torch.types import Device


def number_of(device: Device | torch.cuda.device) -> int | None:
    """Number of a device, None if it has none. ``torch.cuda.device`` and ``device_of`` are contexts, taken for their GPU."""
    if device is None or isinstance(device, int):
        return device
    if isinstance(device, torch.cuda.device):
        return int(device.idx)
    return torch.device(device).index
