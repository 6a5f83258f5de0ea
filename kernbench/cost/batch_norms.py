"""How long a norm over a batch takes, by its layout, its format and whether it is trained.

Statistics are those of a channel. With channels first, torch's kernel (Normalization.cuh) and cuDNN's have a block of threads
for each channel, which passes over all of it, so that few channels leave most of a GPU idle; with channels last all PEs read
rows of channels. cuDNN computes in 32 bits and in fp16; torch does in bf16, of matrices, and for gradients of norms that are
not trained. What has no other source was measured on an H100 [H] (ADR 0253).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from kernbench.cost.estimate import Estimate
from kernbench.cost.memory_bound import OPS, OpKind, start_of, traffic_time
from kernbench.cost.operands import Operand
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES

_CLOCK = 1.83e9
_RATES = {("torch", False): 1.22e9, ("torch", True): 0.57e9, ("cudnn", False): 1.8e9, ("cudnn", True): 0.67e9}
"""Elements per second of the block of a channel at that clock, by whose kernel and whether it is a gradient, which reads its
operands twice [H]."""
_SHARED = 0.3  # a block keeps n^-0.3 of its rate beside n - 1 others on its PE [H]
_RESIDENT = 4  # blocks of 512 threads on a PE
_PLANE = 0.63e-9  # seconds of a channel of an image that is written by a warp of its own, on an H100's PEs [H]

# Passes with channels last, or where bytes limit: what is read and written, in units of the input, and the share of a copy's
# bandwidth [H]. Statistics take as long in 32 bits as in 16.
_TRANSFORM = {"torch": (2, 0.62), "cudnn": (2, 0.85)}
_STATISTICS = (1, 0.22)
_CUDNN_FIRST = {False: (3, 0.86), True: (5, 0.80)}
_CUDNN_LAST = {False: (2, 0.67), True: (3, 0.63)}
_CUDNN_16 = 0.6  # of that, of elements of 16 bits
_TORCH_LAST_GRADIENT = ((2, 0.75), (3, 0.78))
_BROADCAST = (3, 0.25)  # the gradient of a norm that is not trained: the weights of channels are broadcast


def batch_norm_time(
    spec: DeviceSpec, of: Operand, *, gradient: bool = False, evaluated: bool = False, channels_last: bool = False
) -> Estimate:
    """How long a batch norm of ``of`` (``[images, channels, ...]``) takes, or its gradient.

    Args:
        evaluated: running statistics are applied, none are taken.
        channels_last: the channels of a pixel are beside each other.
    """
    last = channels_last or len(of.shape) < 3
    width = of.values * ITEM_BYTES[of.format]
    cudnn = of.format in ("fp32", "fp16") and len(of.shape) > 2 and not (gradient and evaluated)
    whose = "cudnn" if cudnn else "torch"
    narrow = _CUDNN_16 if cudnn and width < 4 else 1.0
    passes: list[tuple[float, float]] = []
    computing = 0.0
    if not gradient:
        if evaluated or not cudnn:
            passes.append(_TRANSFORM[whose])
            computing += 0.0 if last else prod(of.shape[:2]) * _PLANE * 132 * _CLOCK / (spec.pes * spec.clock)
        if not evaluated and cudnn:
            passes, computing = [(_CUDNN_LAST if last else _CUDNN_FIRST)[False]], 0.0
        elif not evaluated and last:
            passes.insert(0, (_STATISTICS[0] * 2 / width, _STATISTICS[1]))
    elif last:
        passes += (
            [_CUDNN_LAST[True]]
            if cudnn
            else [_TORCH_LAST_GRADIENT[0], _BROADCAST]
            if evaluated
            else _TORCH_LAST_GRADIENT
        )
    else:
        passes.append(_CUDNN_FIRST[True])
    times = [traffic_time(spec, _at(share * narrow), of.shape, count * of.nbytes) for count, share in passes]
    start = start_of(spec, False)
    moving = sum(each.seconds for each in times) - start * len(times)
    if not cudnn:  # running statistics, and what blocks add up in, beside each other with channels last
        start *= len(times) + (2 if evaluated or not last else 4)
    if not last and (gradient or not evaluated):
        by_channel = _by_channel(spec, of, _RATES[whose, gradient])
        if cudnn or gradient:
            computing = max(computing, by_channel)
        else:  # statistics first, then the result
            seconds = start + by_channel + max(moving, computing)
            return _like(times[0], seconds)
    return _like(times[0], start + max(moving, computing))


def _at(share: float) -> OpKind:
    """A copy at a share of its bandwidth; a cache helps those that are not held up by their own sums."""
    copy = OPS["copy"]
    return replace(copy, pace=share * (copy.pace if share > 0.5 else 1.0), ceiling=share)


def _by_channel(spec: DeviceSpec, of: Operand, rate: float) -> float:
    """Seconds of one block for each channel."""
    channels = of.shape[1]
    beside = min(_RESIDENT, max(1, channels // spec.pes))
    each = prod(of.shape) / max(channels, 1) / (rate * beside**-_SHARED * spec.clock / _CLOCK)
    return ceil(channels / (_RESIDENT * spec.pes)) * each


def _like(found: Estimate, seconds: float) -> Estimate:
    factor = seconds / found.seconds
    return replace(found, seconds=seconds, low=found.low * factor, high=found.high * factor)
