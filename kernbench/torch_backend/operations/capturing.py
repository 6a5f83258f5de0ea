"""Operations of a CUDA graph that is being captured: their values are computed again, in the same memory, by each replay."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import listed_tensors, made_tensors
from kernbench.simulation.ranks.hosts import Host
from kernbench.torch_backend.gpu.device.generators import as_it_is
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.operations.calls import OperatorCall


def capture(call: OperatorCall) -> None:
    """Have the values of an operation on a GPU computed again when the graph that is being captured is replayed."""
    device, operator, args, kwargs = call.device, call.operator, call.args, call.kwargs or {}
    tensors = [*listed_tensors((*args, *kwargs.values())), *made_tensors(call.result)]
    if device.doing.moving or any(block_of(each) is not None for each in tensors):
        host = device.host
        assert host.capture is not None
        if operator.draws and kwargs.get("generator") is not None:
            kwargs = {**kwargs, "generator": as_it_is(kwargs["generator"])}
        alias = host.capture.memory.alias
        args, kwargs = alias(tuple(args)), {name: alias(value) for name, value in kwargs.items()}
        again = functools.partial(operator.func, *args, **kwargs)
        host.capture.add(
            computes_again(host, device.generators.as_now(again) if operator.draws else again, call.result)
        )


def computes_again(host: Host, compute: Callable[[], Any], result: Any) -> Callable[[], None]:
    """A step of a graph that computes what ``compute`` gives into the memory of ``result``, which it gave before."""
    graph = host.capture
    assert graph is not None
    kept = graph.memory.expect(_tensors(result))

    def step() -> None:
        with host.as_one(), torch.no_grad():
            for new, old in zip(_tensors(compute()), kept, strict=True):
                if new.data_ptr() != old.data_ptr():
                    old.copy_(new)

    return step


def _tensors(result: Any) -> list[torch.Tensor]:
    flat = result if isinstance(result, list | tuple) else (result,)
    return [each.detach() for each in flat if isinstance(each, torch.Tensor)]
