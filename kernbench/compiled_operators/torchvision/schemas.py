"""The operators' schemas, as C++ registers them: releases keep them in parts, from which they cannot be read."""

from __future__ import annotations

import torch

from kernbench.compiled_operators.operators import Operators

_BINS = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SIZES = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_WINDOW = (
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask"
)
_CONVOLVED = "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias"

operators = Operators("torchvision", schemas=[
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {_BINS}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_BINS}, {_SIZES}, int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, int rois_zero_point, "
    f"{_BINS}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, Tensor rois, {_BINS}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_BINS}, {_SIZES}) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, {_BINS}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_BINS}, int sampling_ratio, {_SIZES})"
    " -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, {_BINS}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_BINS}, {_SIZES}) -> Tensor",
    f"deform_conv2d({_CONVOLVED}, {_WINDOW}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_CONVOLVED}, {_WINDOW}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "_cuda_version() -> int",
])  # fmt: skip

images = Operators("image", schemas=[
    "read_file(str filename) -> Tensor", "write_file(str filename, Tensor data) -> ()",
    "decode_png(Tensor data, int mode, bool apply_exif_orientation=False) -> Tensor",
    "encode_png(Tensor data, int compression_level) -> Tensor",
    "decode_jpeg(Tensor data, int mode, bool apply_exif_orientation=False) -> Tensor",
    "encode_jpeg(Tensor data, int quality) -> Tensor", "decode_gif(Tensor encoded_data) -> Tensor",
    "decode_webp(Tensor encoded_data, int mode) -> Tensor",
    "decode_image(Tensor data, int mode, bool apply_exif_orientation=False) -> Tensor",
    "decode_jpegs_cuda(Tensor[] encoded_images, int mode, Device device) -> Tensor[]",
    "encode_jpegs_cuda(Tensor[] decoded_images, int quality) -> Tensor[]",
    "_jpeg_version() -> int", "_is_compiled_against_turbo() -> bool",
])  # fmt: skip


@operators.value("_cuda_version")
def _no_version() -> int:
    return -1  # what a build without CUDA says, so that it is not compared with torch's


def computed_in(given: torch.Tensor) -> torch.dtype:
    """The format of intermediate results: double for doubles, else float32, which is rounded once."""
    return torch.float64 if given.dtype == torch.float64 else torch.float32
