"""Graphs that ``torch.compile`` makes of what a rank does on a simulated GPU (ADR 0111).

Inductor compiles a graph for ``cuda:0``, whichever GPU the rank drives: so what one rank has compiled fits the others, and is
found again in Inductor's cache by the next run. When a graph runs, ``cuda:0`` is the GPU that its inputs are on.

What Inductor cannot compile runs as it is written, with an estimate of what fusion would make of it; the run's notes say so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import torch

from kernbench.simulation.ranks.hosts import Host
from kernbench.torch_backend.compiled import unfused_graphs
from kernbench.torch_backend.gpu.device.devices import bound_devices, current_device
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.tensors.placement import block_of, is_described, wrapped_by
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch._inductor.output_code"

GRAPH_CALL = 20e-6
"""Host time of calling one compiled graph besides its launches, s: guards, the wrappers of AOTAutograd, checks of sizes and
strides. ESTIMATE: tens of microseconds are seen between a compiled function's call and its first launch."""

RELIES_ON = (
    Reliance(
        "torch._TorchCompileInductorWrapper.__call__", "what it makes of a graph is what `torch.compile` runs",
        parameters=("self", "model_", "inputs_"),
    ),
    Reliance(
        "torch._dynamo.backends.debugging.aot_eager", "graphs of host tensors run so",
        parameters=("gm", "fake_tensor_inputs"),
    ),
    Reliance("torch.utils._pytree.tree_leaves", "it finds the tensors in what a graph gives"),
    Reliance("torch._inductor.config.cpu_backend", "it says whether Inductor writes Triton kernels for the CPU"),
    Reliance(f"{MODULE}.CompiledFxGraph.__call__", "it runs what Inductor has compiled", parameters=("self", "inputs")),
)  # fmt: skip

Placement = tuple[int | None, ...]
"""The GPU of each input, None for those that are on the host or no tensors."""


def install_backend(patches: Patches) -> None:
    """Compile with Inductor what is on a simulated GPU.

    What a rank does on the CPU runs as ``aot_eager``'s graphs do, because no mode sees Inductor's C++; unless configured to
    write Triton kernels for it (ADR 0029).
    """
    wrapper: Any = torch._TorchCompileInductorWrapper
    stock = wrapper.__call__

    def call(self: Any, graph: Any, inputs: Any, **kwargs: object) -> Any:
        mine = current_device()
        inductor: Any = sys.modules.get("torch._inductor.config")
        if mine is None or (inductor is not None and inductor.cpu_backend == "triton"):
            return stock(self, graph, inputs, **kwargs)
        if not any(device.type == "cuda" for device in _devices_of(graph, inputs)):
            from torch._dynamo.backends.debugging import aot_eager

            return aot_eager(graph, inputs)
        return _compile(mine, graph, inputs, lambda: stock(self, graph, inputs, **kwargs))

    patches.set(wrapper, "__call__", call)


def _launching(host: Host, each: float) -> AbstractContextManager[None]:
    """Compiled code's launches cost ``each`` s; within a captured graph, nothing."""
    return host.launching(each if host.each is None else host.each)


def install_calls(patches: Patches, module: ModuleType) -> None:
    """Let what Inductor has compiled run on the GPU of its inputs, and cost the host a call."""
    stock = module.CompiledFxGraph.__call__

    def call(self: Any, inputs: Sequence[object]) -> Any:
        mine = current_device()
        if mine is None or "cuda" not in self.device_types:
            return stock(self, inputs)
        host, spec = mine.host, mine.simulation.topology.system.host
        host.prepare(spec.factor * GRAPH_CALL)
        outside, host.untimed = host.untimed, True  # what it logs and notes when it first runs
        try:
            with (
                mine.counted_from(_main_of(mine, _placement(mine, inputs))),
                _launching(host, spec.factor * spec.compiled),
            ):
                return stock(self, inputs)
        finally:
            host.untimed = outside

    patches.set(module.CompiledFxGraph, "__call__", call)


def _compile(mine: RankDevice, graph: Any, inputs: Sequence[object], compile_: Callable[[], Any]) -> Any:
    """What runs instead of a graph of operations on GPUs."""
    fakes = [fake for fake in inputs if isinstance(fake, torch.Tensor)]
    placement = tuple([_index_told(each) if isinstance(each, torch.Tensor) else None for each in inputs])
    main = _main_of(mine, placement)
    _count_from(main, graph)
    with mine.counted_from(main), _fakes_counted_from(main, (*fakes, *_fakes_in(graph))):
        outside, mine.doing.compiling = mine.doing.compiling, True
        try:
            compiled = compile_()
        except Exception as error:
            mine.simulation.op_costs.unmodelled.say(_why_written(graph, error))
            compiled = unfused_graphs.compile_(graph, inputs)
        finally:
            mine.doing.compiling = outside
    return _PlacedGraph(graph, compiled, _relative(placement, main))


class _PlacedGraph:
    """A compiled graph, for inputs that are where they were when it was compiled.

    Dynamo's guards are C++ and take tensors of simulated GPUs for the host's; so this looks.
    """

    def __init__(self, graph: Any, compiled: Callable[..., object], placement: Placement) -> None:
        self._graph = graph
        self._compiled = compiled
        self._placement = placement

    def __call__(self, *inputs: object) -> Any:
        mine = bound_devices().mine()
        found = _placement(mine, inputs)
        main = _main_of(mine, found)
        if _relative(found, main) == self._placement:
            return self._compiled(*inputs)
        with mine.counted_from(main):
            if any(isinstance(each, torch.Tensor) and is_described(type(each)) for each in inputs):
                return self._described(main, inputs)
            mine.simulation.op_costs.unmodelled.say(
                f"{_name(self._graph)} was compiled for other devices than it is called with now: it runs as it is written"
            )
            return self._graph(*inputs)

    def _described(self, main: int, inputs: Sequence[Any]) -> Any:
        """What the graph would give: DDP asks, when it compiles the graphs of its buckets one after the other."""
        with _fakes_counted_from(main, [each for each in inputs if isinstance(each, torch.Tensor)]):
            outputs = self._compiled(*inputs)
        for each in torch.utils._pytree.tree_leaves(outputs):
            if isinstance(on := getattr(each, "simulated_device", None), torch.device):
                each.simulated_device = _recounted(on, main)
        return outputs


def _name(graph: Any) -> str:
    """A graph as a note names it: by where its first operation is written."""
    for node in graph.graph.nodes:
        frames = (node.meta.get("stack_trace") or "").strip().splitlines()
        places = [line.strip() for line in frames if line.strip().startswith("File ")]
        if places:
            path, line = places[-1].split(",")[:2]
            return f"the compiled graph at {path.split(chr(34))[1]}:{line.removeprefix(' line ')}"
    return "a compiled graph"


def _why_written(graph: Any, error: Exception) -> str:
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return (
        f"{_name(graph)} runs as it is written, its fusion is estimated: Inductor could not compile it "
        f"({type(error).__name__}: {first.strip()})"
    )


# -- where things are --------------------------------------------------------------------------------------------------


def _index_told(tensor: torch.Tensor) -> int | None:
    device = tensor.device
    return (device.index or 0) if device.type == "cuda" else None


def _placement(mine: RankDevice, inputs: Iterable[Any]) -> Placement:
    """The GPU of each input."""
    blocks = [block_of(each) if isinstance(each, torch.Tensor) else None for each in inputs]
    return tuple([None if block is None else mine.index_of(block.memory.sip) for block in blocks])


def _main_of(mine: RankDevice, placement: Placement) -> int:
    """The GPU that a graph is for: the first of its inputs', else the rank's current one."""
    return next((index for index in placement if index is not None), mine.index)


def _relative(placement: Placement, main: int) -> Placement:
    """As :meth:`RankDevice.counted_from` counts."""
    return tuple([None if index is None else {0: main, main: 0}.get(index, index) for index in placement])


def _devices_of(graph: Any, inputs: Sequence[object]) -> Iterator[torch.device]:
    """The devices of a graph's inputs, and those that it names."""
    for each in inputs:
        if isinstance(each, torch.Tensor):
            yield each.device
    for node in _nodes(graph):
        for value in (*node.args, *node.kwargs.values()):
            if isinstance(value, torch.device):
                yield value
            elif value == "cuda" or (isinstance(value, str) and value.startswith("cuda:")):
                yield torch.device(value)


def _graphs_in(graph: Any) -> list[torch.fx.GraphModule]:
    return [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]


def _nodes(graph: Any) -> Iterator[Any]:
    for part in _graphs_in(graph):
        yield from part.graph.nodes


def _count_from(main: int, graph: Any) -> None:
    """Let a graph name GPUs as they are counted from ``main``."""
    if main == 0:
        return

    def counted(value: Any) -> Any:
        return _recounted(torch.device(value) if isinstance(value, str) and value.startswith("cuda:") else value, main)

    for part in _graphs_in(graph):
        for node in part.graph.nodes:
            args, kwargs = _with_devices(node)
            node.args = torch.fx.node.map_aggregate(args, counted)
            node.kwargs = torch.fx.node.map_aggregate(kwargs, counted)
        part.recompile()


def _with_devices(node: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a node of a graph, with devices for numbers that stand for these."""

    def named(value: Any) -> Any:
        return torch.device("cuda", value) if type(value) is int else value

    args, kwargs = node.args, node.kwargs
    if node.op == "call_method" and (node.target == "to" or (node.target == "cuda" and args[1:2] != (0,))):
        # `FunctionalTensor.cuda` takes 0 for no number: the current GPU, which it stays
        args = (*args[:1], *map(named, args[1:2]), *args[2:])
    return args, {**kwargs, "device": named(kwargs["device"])} if "device" in kwargs else kwargs


def _recounted(value: Any, main: int) -> Any:
    """A device as :meth:`RankDevice.counted_from` counts."""
    if isinstance(value, torch.device) and value.type == "cuda" and value.index in (0, main):
        return torch.device("cuda", main - value.index)
    return value


@contextmanager
def _fakes_counted_from(main: int, fakes: Iterable[object]) -> Iterator[None]:
    """For the length of a block, fake tensors are on GPUs that are counted from ``main``."""
    changed: dict[int, tuple[Any, torch.device]] = {}

    def recount(fake: Any) -> None:
        on = getattr(fake, "simulated_device", None)
        if on is not None and id(fake) not in changed:
            changed[id(fake)] = fake, on
            fake.simulated_device = _recounted(on, main)
        for part in wrapped_by(fake):
            recount(part)

    for fake in fakes if main else ():
        recount(fake)
    try:
        yield
    finally:
        for fake, on in changed.values():
            fake.simulated_device = on


def _fakes_in(graph: Any) -> Iterator[Any]:
    """The fake tensors that Dynamo has noted with a graph."""
    for node in _nodes(graph):
        for value in torch.utils._pytree.tree_leaves(node.meta.get("example_value")):
            if isinstance(value, torch.Tensor):
                yield value
