"""``torchvision``'s libraries, which PyPI has for CUDA: its operators have shapes and no values, but for ``nms``."""

from __future__ import annotations

import torch

from kernbench.compiled_operators.operators import Operators

Tensor = torch.Tensor

operators, images = Operators("torchvision"), Operators("image")


@operators.value
def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Boxes ``[n, 4]`` (left, top, right, bottom) in the order of their scores, without those that overlap one before them by
    more than the threshold (intersection over union): their places."""
    order = scores.argsort(descending=True, stable=True)
    corners = dets.float()
    areas = (corners[:, 2:] - corners[:, :2]).prod(-1)
    kept: list[int] = []
    for at in order.tolist():
        low = torch.maximum(corners[kept, :2], corners[at, :2])
        high = torch.minimum(corners[kept, 2:], corners[at, 2:])
        common = (high - low).clamp(min=0).prod(-1)
        if not bool((common > iou_threshold * (areas[kept] + areas[at] - common)).any()):
            kept.append(at)
    return torch.tensor(kept, dtype=torch.int64)


@operators.value("_cuda_version")
def _no_version() -> int:
    return -1  # what a build without CUDA says, so that it is not compared with torch's
