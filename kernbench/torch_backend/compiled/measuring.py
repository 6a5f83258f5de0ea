"""How long what Inductor would measure takes by the models: nothing that is measured appears in the timeline."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from kernbench.cost.work import Cost, ramp_of
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.triton_engine.duration import estimate
from kernbench.triton_engine.launching import sampled_launches


def modelled_ms(fn: Callable[[], object]) -> float:
    """Milliseconds of the operations and launches that ``fn`` makes, one after the other.

    Kernels are counted and change nothing; operations of torch are computed, on whatever ``fn`` gives them. While a graph is
    compiled that is the compiler's own: there is nothing to wait for, and no other rank may run meanwhile, for it would find
    that it compiles.
    """
    mine = bound_devices().mine()
    gpu = mine.simulation.topology.device
    seconds: list[float] = []

    start = ramp_of(gpu)  # which passes beside the stream, and is not in a cost (ADR 0038)

    def count(name: str, inputs: object, outputs: object, cost: Cost) -> None:
        seconds.append(start + cost.seconds)

    host = mine.host
    within = host.as_one if mine.doing.compiling else nullcontext
    with host.aside(), sampled_launches(gpu, within=within) as launches, mine.diverting(count):
        host.unrecorded = False
        fn()
    seconds += [estimate(each.counts, None, gpu, kernel=each.kernel, cold=True).seconds for each in launches]
    return 1e3 * sum(seconds)
