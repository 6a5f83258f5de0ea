"""How long what Inductor would measure takes by the models: nothing that is measured appears in the timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.cost.work import Cost, ramp_of
from kernbench.simulation.memory.tensor_queries import listed_tensors, made_tensors
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.hollow.shapes import mapped, on_meta
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.operations.operators import COLLECTIVE, SKIP, TRANSFER, VIEW, TorchOperator, operators
from kernbench.torch_backend.operations.pricing import Pricing
from kernbench.torch_backend.relies_on import Reliance
from kernbench.triton_engine.duration import estimate
from kernbench.triton_engine.launching import sampled_launches

RELIES_ON = (
    Reliance(
        "torch.utils._python_dispatch.TorchDispatchMode", "it sees the operations that are measured", subclassed=True
    ),
)


def modelled_ms(fn: Callable[[], object]) -> float:
    """Milliseconds of the operations and launches that ``fn`` makes, one after the other, with operands in memory: Inductor
    clears the cache before each.

    Kernels are counted and change nothing; operations of torch are computed, on whatever ``fn`` gives them. While a graph is
    compiled that is the compiler's own: there is nothing to wait for, no rank's recorder is on, operations are priced without
    being computed, and no other rank may run meanwhile, for it would find that it compiles.
    """
    mine = bound_devices().mine()
    gpu = mine.simulation.topology.device
    seconds: list[float] = []

    start = ramp_of(gpu)  # which passes beside the stream, and is not in a cost (ADR 0038)

    def count(name: str, inputs: object, outputs: object, cost: Cost) -> None:
        seconds.append(start + cost.seconds)

    host = mine.host
    compiling = mine.doing.compiling
    within = host.as_one if compiling else nullcontext
    choices = _Priced(mine, seconds, start) if compiling else nullcontext()
    with host.aside(), sampled_launches(gpu, within=within) as launches, mine.diverting(count), _cold(mine), choices:
        host.unrecorded = False
        fn()
    seconds += [estimate(each.counts, None, gpu, kernel=each.kernel, cold=True).seconds for each in launches]
    return 1e3 * sum(seconds)


@contextmanager
def _cold(device: RankDevice) -> Iterator[None]:
    before = device.host.cold
    device.find_cache_cold(True)
    try:
        yield
    finally:
        device.find_cache_cold(before)


class _Priced(TorchDispatchMode):
    """Prices operations of torch on the compiler's tensors as those of a GPU, by their shapes.

    They are computed only where that makes no difference to a choice: views, and what writes in place. What is given ``out``
    leaves it as it is, and another result is zeros: the CPU may have no kernel for a choice (``torch.bmm(out_dtype=)``), and
    would take long for a large product.
    """

    def __init__(self, device: RankDevice, seconds: list[float], start: float) -> None:
        super().__init__()
        self._device = device
        self._seconds = seconds
        self._start = start
        self._pricing = Pricing(device.simulation)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operator = operators[func]
        if self._device.host.unrecorded or operator.kind in (SKIP, COLLECTIVE, VIEW) or operator.host_reads:
            return func(*args, **kwargs)
        if operator.kind < VIEW:
            with self:
                return operator.body(args, kwargs, True, self._device.host.rank)
        call = OperatorCall(self._device, operator, args, kwargs)
        call.result = _shaped(operator, args, kwargs)
        if not operator.allocates:
            call.inputs, call.outputs = listed_tensors(args), made_tensors(call.result)
            self._seconds.append(self._start + self._pricing.of(call).seconds)
        return call.result


def _shaped(operator: TorchOperator, args: Any, kwargs: Any) -> Any:
    """A result with the shapes that an operation's has."""
    if kwargs.get("out") is not None:
        return kwargs["out"]
    if operator.mutates or operator.kind == TRANSFER or operator.allocates:
        return operator.func(*args, **kwargs)
    options = {name: on_meta(value) for name, value in kwargs.items()}
    return mapped(operator.func(*on_meta(args), **options), _zeros)


def _zeros(shaped: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(shaped.shape, shaped.stride(), dtype=shaped.dtype).zero_()
