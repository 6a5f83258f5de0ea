"""Modules of torch, forward and backward: with data and without they give the same, and take as long and as much memory."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import kernbench
from kernbench.simulation.active_simulation import current_simulation
from tests.torch_samples import modules

pytestmark = pytest.mark.long

OTHERWISE = {
    "nn.CTCLoss": "without data no lengths of targets are known: the memory is that of the longest",
    "nn.FractionalMaxPool3d": "torch's own samples, whose random numbers are of another format than the input",
    "nn.Transformer": "of nested sequences, whose lengths are not known",
}
"""Modules whose memory, or errors, are others."""


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(getattr(value, "data", None), Tensor):
        yield value.data


def _samples() -> Iterator[tuple[str, Any, Any]]:
    for info in modules():
        made = info.module_inputs_func(info, device="cuda", dtype=torch.float32, requires_grad=True, training=True)
        for number, sample in enumerate(made):
            yield f"{info.name} {number}", info.module_cls, sample


def _what_takes(cls: Any, sample: Any) -> Any:
    host = current_simulation().hosts.current()
    made, forward = sample.constructor_input, sample.forward_input
    module = cls(*made.args, **made.kwargs).to("cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began, before = host.clock, torch.cuda.memory_allocated()
    results = [*_tensors(module(*forward.args, **forward.kwargs))]
    differentiable = [each for each in results if each.requires_grad]
    if differentiable:
        sum(each.float().sum() for each in differentiable).backward()
    torch.cuda.synchronize()
    gradients = [None if each.grad is None else (each.grad.shape, each.grad.layout) for each in module.parameters()]
    shapes = [(tuple(each.shape), each.dtype, each.layout) for each in results]
    return (shapes, gradients), host.clock - began, torch.cuda.max_memory_allocated() - before


def _all(data: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def worker(rank: int) -> None:
        torch.manual_seed(0)
        gc.disable()  # memory of one is not given back while another is looked at
        for name, cls, sample in _samples():
            try:
                found[name] = _what_takes(cls, sample)
            except RuntimeError as error:
                found[name] = str(error)

    with warnings.catch_warnings(), kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        warnings.simplefilter("ignore")
        try:
            ctx.multiprocessing.spawn(worker, nprocs=1)
        finally:
            gc.enable()
    return found


def test_modules_give_and_take_the_same() -> None:
    with_data, without = _all(True), _all(False)
    assert with_data.keys() == without.keys()
    assert len(with_data) > 1500
    different = {}
    for name, first in with_data.items():
        second = without[name]
        if name.split()[0] in OTHERWISE or first == second:
            continue
        if isinstance(first, str) or isinstance(second, str) or first[0] != second[0]:
            different[name] = first, second
        elif abs(first[1] - second[1]) > 5e-6 or abs(first[2] - second[2]) > 2048:
            different[name] = first[1:], second[1:]
    assert different == {}
