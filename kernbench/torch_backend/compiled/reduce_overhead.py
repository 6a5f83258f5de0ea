"""``mode="reduce-overhead"``: Inductor's graphs as CUDA graphs (ADR 0112)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch._inductor.compile_fx"

RELIES_ON = (
    Reliance(
        f"{MODULE}.cudagraphify", "`mode='reduce-overhead'` runs a graph as it says",
        parameters=("model", "static_input_idxs"),
        looked_up_by=(
            "torch._inductor.output_code.cudagraph_post_compile",
            "torch._inductor.output_code.cudagraph_partition_post_compile",
        ),
    ),
)  # fmt: skip

_BEFORE_REPLAY = 2  # calls, as torch's: one to warm up, one to capture


def install(patches: Patches, module: ModuleType) -> None:
    """Let what ``mode="reduce-overhead"`` makes of a graph cost what a CUDA graph does: warmed up, captured, then replayed."""

    def cudagraphify(
        model: Callable[..., object], static_input_idxs: Sequence[int] = (), **options: object
    ) -> Callable[[list[Any]], Any]:
        static, calls = frozenset(static_input_idxs), weakref.WeakKeyDictionary[RankDevice, int]()

        def run(inputs: list[Any]) -> Any:
            mine = bound_devices().mine()
            calls[mine] = calls.get(mine, 0) + 1
            if calls[mine] <= _BEFORE_REPLAY or mine.host.capture is not None:
                return model(inputs)
            moved = [each for at, each in enumerate(inputs) if at not in static and isinstance(each, torch.Tensor)]
            if moved:  # into the memory that the graph reads
                shapes = tuple([(each.shape, each.dtype) for each in moved])
                mine.enqueue("copy of inputs", mine.simulation.op_costs.of("aten::_foreach_copy_", shapes, shapes))
            with mine.host.launching_graph(mine.simulation.topology.device.launch.overhead):
                return model(inputs)

        return run

    patches.set(module, "cudagraphify", cudagraphify)
