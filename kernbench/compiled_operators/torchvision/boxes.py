"""Boxes: which to keep of those that overlap, and how much turned ones do.

Costs: the operations of each pair of boxes, and one bit of each. UNVERIFIED against measured kernels.
"""

from __future__ import annotations

import torch

from kernbench.compiled_operators.torchvision.schemas import computed_in, operators
from kernbench.cost.by_values import CallOperands
from kernbench.cost.work import StatedWork

Tensor = torch.Tensor

_NEAR = 1e-9
"""Of a box's size, up to which two edges are one."""


@operators.value
def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Boxes ``[n, 4]`` (left, top, right, bottom) in the order of their scores, without those that overlap one before them by
    more than the threshold (intersection over union): their places."""
    if dets.dim() != 2 or dets.shape[1] != 4:
        raise RuntimeError(f"boxes should be [n, 4], they are {list(dets.shape)}")
    if scores.dim() != 1 or len(scores) != len(dets):
        raise RuntimeError(f"scores should be [{len(dets)}], one for each box, they are {list(scores.shape)}")
    order = scores.argsort(descending=True, stable=True)
    corners = dets.to(computed_in(dets))
    areas = (corners[:, 2:] - corners[:, :2]).prod(-1)
    kept: list[int] = []
    for at in order.tolist():
        low = torch.maximum(corners[kept, :2], corners[at, :2])
        high = torch.minimum(corners[kept, 2:], corners[at, 2:])
        common = (high - low).clamp(min=0).prod(-1)
        if not bool((common > iou_threshold * (areas[kept] + areas[at] - common)).any()):
            kept.append(at)
    return torch.tensor(kept, dtype=torch.int64)


@operators.cost("nms")
def _cost_of_nms(operands: CallOperands) -> StatedWork:
    boxes, scores = operands["dets"], operands["scores"]
    count = boxes.shape[0]
    marks = count * -(-count // 64) * 8  # a bit for each pair, written, and read in order
    return StatedWork(2 * (boxes.nbytes + scores.nbytes + marks), 16 * count * (count - 1) // 2)


@operators.value
def box_iou_rotated(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """Intersection over union ``[n, m]`` of boxes ``[n, 5]``, ``[m, 5]``: centre, width, height, and an angle in degrees
    against the clock where y points down. By Green's theorem: half the sum of the cross products of each box's edges, as
    far as they are in the other one."""
    one, two = (_vertices(each.double()) for each in (boxes1, boxes2))
    middle = (boxes1.double()[:, None, None, :2] + boxes2.double()[None, :, None, :2]) / 2
    one, two = one[:, None] - middle, two[None, :] - middle
    common = (_enclosed(one, two, shared=True) + _enclosed(two, one, shared=False)).abs()
    first, second = (each.double()[:, 2] * each.double()[:, 3] for each in (boxes1, boxes2))
    share = common / (first[:, None] + second - common)
    return share.where((first[:, None] > 0) & (second > 0), 0).float()


@operators.shape("box_iou_rotated")
def _of_rotated(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    return boxes1.new_empty(len(boxes1), len(boxes2), dtype=torch.float32)


@operators.cost("box_iou_rotated")
def _cost_of_rotated(operands: CallOperands) -> StatedWork:
    (found,) = operands.results
    return StatedWork(sum(each.nbytes for each in operands.tensors) + found.nbytes, 500 * found.elements)


def _vertices(boxes: Tensor) -> Tensor:
    """``[n, 4, 2]``, one after the other round the box."""
    centre, half = boxes[:, None, :2], boxes[:, None, 2:4] / 2 * boxes.new_tensor([[1, 1], [1, -1], [-1, -1], [-1, 1]])
    turn = boxes[:, 4].deg2rad()
    cos, sin = turn.cos()[:, None], turn.sin()[:, None]
    along, across = half.unbind(-1)
    return centre + torch.stack((cos * along + sin * across, cos * across - sin * along), -1)


def _enclosed(ring: Tensor, other: Tensor, *, shared: bool) -> Tensor:
    """Half the sum of the cross products of the edges of ``ring`` ``[n, m, 4, 2]`` within ``other``; ``shared``: also along an
    edge of both, where both are on the same side of it."""
    begin, step = ring, ring.roll(-1, 2) - ring
    side = other.roll(-1, 2) - other
    # how far outside of each of the other's edges: at the beginning, and how that grows along the edge
    at = _cross(begin[..., :, None, :] - other[..., None, :, :], side[..., None, :, :])
    grows = _cross(step[..., :, None, :], side[..., None, :, :])
    inwards = -_cross(
        other[..., 1:2, None, :] - other[..., :1, None, :], other[..., 2:3, None, :] - other[..., :1, None, :]
    ).sign()
    at, grows = at * -inwards, grows * -inwards
    length = side.norm(dim=-1)[..., None, :] * (side.norm(dim=-1)[..., None, :] + step.norm(dim=-1)[..., :, None])
    along = grows.abs() <= _NEAR * length
    on = along & (at.abs() <= _NEAR * length)
    same = (step[..., :, None, :] * side[..., None, :, :]).sum(-1) > 0
    outside = torch.where(on, ~(same & shared), along & (at > 0))
    crossing = -at / grows.where(~along, 1)
    enters = crossing.where(~along & (grows < 0), 0).amax(-1).clamp(min=0)
    leaves = crossing.where(~along & (grows > 0), 1).amin(-1).clamp(max=1)
    inside = ~outside.any(-1) & (leaves > enters)
    first, last = (begin + each[..., None] * step for each in (enters, leaves))
    return (_cross(first, last) * inside).sum(-1) / 2


def _cross(one: Tensor, two: Tensor) -> Tensor:
    return one[..., 0] * two[..., 1] - one[..., 1] * two[..., 0]
