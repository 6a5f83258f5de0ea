"""CUDA graphs of simulated GPUs: ``torch.cuda.CUDAGraph``, ``torch.cuda.graph`` and what goes with them (ADR 0112).

What a rank enqueues during a capture is kept (:mod:`.graph_capture`), with what it takes to compute the
values again in the same memory; ``make_graphed_callables`` is torch's own, on top of that.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.output_files import write_file
from kernbench.simulation.ranks.accelerator_errors import cuda_error
from kernbench.simulation.ranks.graph_capture import INVALIDATED, GraphCapture
from kernbench.simulation.values.capture_rollback import undo
from kernbench.torch_backend.gpu.device import streams
from kernbench.torch_backend.gpu.device.devices import bound_devices, current_device
from kernbench.torch_backend.gpu.device.generators import home_of
from kernbench.torch_backend.gpu.device.gradient_streams import sequence_number
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.memory.captured_memory import RecordedMemory
from kernbench.torch_backend.gpu.memory.memory_names import empty_cache
from kernbench.torch_backend.gpu.memory.memory_pools import is_kept, new_number

_DEFAULT_STREAM = (
    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the "
    "default stream.)"
)
_OWNS_ONE = "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."

_MODES = ("global", "thread_local", "relaxed")
"""What of other threads CUDA refuses during a capture; here no thread is refused anything."""


def graph_pool_handle() -> tuple[int, int]:
    """``torch.cuda.graph_pool_handle``: a token, for graphs that are to share a pool of memory."""
    return 0, new_number()


def is_current_stream_capturing() -> bool:
    """``torch.cuda.is_current_stream_capturing``."""
    mine = current_device()
    return mine is not None and mine.host.capture is not None


_EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."
)


class CUDAGraph:
    """A graph of a simulated GPU's operations."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph: GraphCapture | None = None
        self._done = False
        self._registered: list[torch.Generator] = []
        self._before = 0
        self._pool = graph_pool_handle()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **options: object) -> None:
        """Keep what the rank enqueues from here on, instead of enqueueing it.

        Raises RuntimeError on the default stream, and of a mode that there is not, as torch does.
        """
        if capture_error_mode not in _MODES:
            raise RuntimeError(
                f"Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got {capture_error_mode}"
            )
        host = bound_devices().mine().host
        if streams.current_stream() == streams.default_stream():
            raise RuntimeError(_DEFAULT_STREAM)
        if host.capture is not None or self._graph is not None:
            raise RuntimeError(_OWNS_ONE)
        self._pool = pool or self._pool
        mine = bound_devices().mine()
        generators = [mine.generators.home(torch.cuda.current_device()), *map(home_of, self._registered)]
        first = mine.memory.mine
        others = [each for each in mine.simulation.memories.of(host) if each is not first]
        memory = RecordedMemory([first, *others], max(self._pool), dict.fromkeys(generators))
        order = None if host.order is None else host.order.capture()
        self._graph = host.capture = GraphCapture(host.stream, memory, order, sequence_number())
        for generator in generators:
            host.capture.may_draw(generator)
        self._before, host.memory_pool = host.memory_pool, max(self._pool)

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let the graph draw from a generator beside the GPU's own: a replay goes on from the state that it has then."""
        self._registered.append(generator)

    def capture_end(self) -> None:
        """The graph is whole. Raises RuntimeError if something was done in between that CUDA does not permit."""
        mine = bound_devices().mine()
        host = mine.host
        if host.capture is not None:
            for op in host.capture.posted:  # its values have to come before what they have changed is put back
                mine.simulation.wait_on_stream(op)
            undo(host)
        graph, host.capture = host.capture, None
        host.memory_pool = self._before
        if host.order is not None:
            host.order.capturing = None
        if graph is not None and host.stream != graph.stream:
            self.reset()
            raise RuntimeError("Capture must end on the same stream it began on.")
        if graph is None or graph.broken:
            self.reset()
            raise cuda_error(INVALIDATED)
        if graph.is_empty and not graph.posted:
            warnings.warn(_EMPTY, stacklevel=3)
        try:
            graph.require_joined()
        except torch.AcceleratorError:
            self.reset()
            raise
        self._done = True

    def instantiate(self) -> None:
        """Nothing is left to do."""

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        if self._graph is None or not self._done:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        mine = bound_devices().mine()
        if mine.host.capture is not None:
            mine.host.capture.forbid()
        spec = mine.simulation.topology.system.host
        self._graph.replay(mine.host, spec.factor * (spec.graph + spec.node * self._graph.nodes))

    def reset(self) -> None:
        """Forget the graph, and the memory that it keeps."""
        graph, self._graph, self._done = self._graph, None, False
        if graph is not None and graph.forget() and not is_kept(graph.memory.pool.number):
            for memory in graph.memory.memories:
                memory.allocator.unkeep(graph.memory.pool.number)

    def __del__(self) -> None:
        self.reset()  # steps lead to the graph that has them

    def pool(self) -> tuple[int, int]:
        """The token of its memory."""
        return self._pool

    def raw_cuda_graph(self) -> int:
        """There is no graph of CUDA's. Raises :class:`KernbenchError`."""
        raise KernbenchError("a simulated GPU has no cudaGraph_t: a graph is a list of steps (ADR 0112)")

    raw_cuda_graph_exec = raw_cuda_graph

    def enable_debug_mode(self) -> None:
        """Without effect."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the number of steps: there are no nodes of CUDA's."""
        steps = 0 if self._graph is None else len(self._graph.steps)
        write_file(debug_path, f"// a graph of {steps} steps (simulated)\n")


_capture_streams: weakref.WeakKeyDictionary[RankDevice, Any] = weakref.WeakKeyDictionary()


def _capture_stream() -> Any:
    """The stream on which a program's captures are, unless it says which: one for all, as torch's, so they share memory."""
    mine = bound_devices().mine()
    found = _capture_streams.get(mine)
    if found is None:
        found = _capture_streams[mine] = streams.Stream()
    return found


class CaptureContext:
    """``torch.cuda.graph``: the operations of the block become a graph."""

    def __init__(
        self, cuda_graph: CUDAGraph, pool: object = None, stream: object = None, capture_error_mode: str = "global",
        **options: object,
    ) -> None:  # fmt: skip
        self._mode = capture_error_mode
        self._stream = streams.StreamContext(_capture_stream() if stream is None else stream)
        self._graph, self._pool = cuda_graph, pool

    def __enter__(self) -> None:
        bound_devices().mine().synchronize()
        empty_cache()
        self._stream.__enter__()
        self._graph.capture_begin(self._pool, self._mode)

    def __exit__(self, *exc: Any) -> None:
        try:
            self._graph.capture_end()
        finally:
            self._stream.__exit__(*exc)


class AcceleratorGraph(CUDAGraph):
    """``torch.accelerator.Graph``: a graph that is captured in a ``with`` block, on the current stream."""

    def __init__(
        self, keep_graph: bool = False, *, pool: tuple[int, int] | None = None, capture_error_mode: str = "default"
    ) -> None:
        super().__init__(keep_graph)
        self.graph_pool = pool
        self.capture_error_mode = capture_error_mode

    def capture_begin(self, pool: object = None, capture_error_mode: str = "default", **options: object) -> None:
        """Keep what the rank enqueues from here on."""
        super().capture_begin(self.graph_pool)

    def __enter__(self) -> None:
        bound_devices().mine().synchronize()
        empty_cache()
        self.capture_begin()

    def __exit__(self, *exc: Any) -> None:
        self.capture_end()


CUDA_GRAPHS: dict[str, Any] = {
    "CUDAGraph": CUDAGraph,
    "graph": CaptureContext,
    "graph_pool_handle": graph_pool_handle,
    "is_current_stream_capturing": is_current_stream_capturing,
}
"""Attributes of ``torch.cuda`` and of ``torch.cuda.graphs``."""

ACCELERATOR_GRAPHS: dict[str, Any] = {"Graph": AcceleratorGraph}
"""Attributes of ``torch.accelerator`` and of ``torch.accelerator.graphs``."""
