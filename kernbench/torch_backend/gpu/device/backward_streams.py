"""A backward pass on several streams: each node is on the stream of its forward pass, as autograd's engine has it.

A stream waits for another where a gradient goes from one node to the next, and the caller's stream for all at the end. The sum
of two gradients of one tensor is on the stream of the node that takes it. What adds to a leaf's gradient is on the stream where
its node was made: where the leaf was used first in the forward pass, unless something has kept the node, as DDP does. In
compiled autograd all is on the caller's stream.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import graph

from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.device.gradient_streams import LEAF, node_number
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.device.stream_waits import let_stream_wait
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance(
        "torch.autograd._engine_run_backward", "torch's backward functions call the engine by this name",
        parameters=("t_outputs",),
    ),
    Reliance(
        "torch.autograd.graph.Node", "has hooks before and after it, and knows the nodes that follow it",
        has=("register_prehook", "register_hook", "next_functions", "metadata"),
    ),
    Reliance(
        "torch.autograd.Variable._execution_engine", "calls what is queued at the end of the pass, in order",
        has=("queue_callback",),
    ),
    Reliance("torch._C._current_graph_task_id", "another one for each pass"),
    Reliance("torch._C._current_autograd_node", "the node that the engine has come to, also in hooks of its tensors"),
)  # fmt: skip

_COMPILED = "torch._dynamo.compiled_autograd"

Streams = tuple[str, ...]
"""Names of the streams that are current, by SIP."""


class _Pass:
    """A backward pass of a rank.

    Args:
        mine: the rank's device.
        sips: those on which it has used other streams than the default one.
        streams: of each node, on these SIPs.
    """

    def __init__(self, mine: RankDevice, sips: Sequence[int], streams: dict[graph.Node, Streams]) -> None:
        self._mine, self._host = mine, mine.host
        self._sips = sips
        self._streams = streams
        self._caller = self._current()
        self._task = -1
        self._given: set[graph.Node] = set()
        self._summed: dict[graph.Node, Streams] = {}
        self._used = set[Streams]()

    @contextmanager
    def hooked(self, roots: Iterable[graph.Node]) -> Iterator[None]:
        """For the length of a block, nodes are on their streams."""
        for root in roots:
            self._hand(self._caller, root)
        handles = []
        for node in self._streams:
            handles += [
                node.register_prehook(functools.partial(self._before, node)),
                node.register_hook(functools.partial(self._after, node)),
            ]
        doing = self._mine.doing
        outer, doing.backward = doing.backward, self
        try:
            yield
        finally:
            doing.backward = outer
            for handle in handles:
                handle.remove()
            self._go_on(self._caller)

    def arrive(self) -> None:
        """See :class:`.BackwardPass`."""
        node = torch._C._current_autograd_node()
        if node in self._streams:
            self._before(node, None)

    def _current(self) -> Streams:
        return tuple(self._host.stream_on(sip) for sip in self._sips)

    def _go_on(self, streams: Streams) -> None:
        for sip, name in zip(self._sips, streams, strict=True):
            self._mine.stream_changes.go_on(sip, name)

    def _is_mine(self) -> bool:
        """Whether the engine runs this pass now, and none within it."""
        task = torch._C._current_graph_task_id()
        if self._task < 0:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        return task == self._task

    def _hand(self, here: Streams, node: graph.Node) -> None:
        """A node, which may be wanted for its gradient alone, is given that from other streams, or from its own."""
        there = self._streams[node]
        for from_stream, to_stream in zip(here, there, strict=True):
            if from_stream != to_stream:
                let_stream_wait(self._host, to_stream, from_stream)
        self._given.add(node)
        self._used.add(there)

    def _before(self, node: graph.Node, _gradients: object) -> None:
        if not self._is_mine():
            return
        self._go_on(self._streams[node])
        for name, other in zip(self._streams[node], self._summed.pop(node, ()), strict=False):
            if other != name:
                let_stream_wait(self._host, name, other)

    def _after(self, node: graph.Node, _given: object, _taken: object) -> None:
        """What it gives is handed on; the engine adds it to what others have given there."""
        if not self._is_mine():
            return
        here, summed = self._streams[node], []
        for following, _ in node.next_functions:
            if following is None:
                continue
            if following in self._given:
                summed.append(following)
            self._hand(here, following)
        for following in summed:
            self._go_on(self._streams[following])
        self._summed.update(dict.fromkeys(summed, self._current()))

    def _end(self) -> None:
        for at, name in enumerate(self._caller):
            for other in sorted({streams[at] for streams in self._used} - {name}):
                let_stream_wait(self._host, name, other)
        self._go_on(self._caller)


def _roots(outputs: Iterable[Any]) -> list[graph.Node]:
    nodes = (each.node if isinstance(each, graph.GradientEdge) else each.grad_fn for each in outputs)
    return [node for node in nodes if node is not None]


def _nodes(roots: Iterable[graph.Node]) -> tuple[dict[graph.Node, int], dict[graph.Node, int]]:
    """What can be reached from some nodes, with their numbers; and leaves' nodes, with those of the first that use them."""
    numbers: dict[graph.Node, int] = {}
    leaves: dict[graph.Node, int] = {}
    to_visit = [*roots]
    while to_visit:
        node = to_visit.pop()
        number = node_number(node)
        if node in numbers or number is None:
            continue
        numbers[node] = number
        for following, _ in node.next_functions:
            if following is None:
                continue
            if node_number(following) is None:
                leaves[following] = min(number, leaves.get(following, number))
            else:
                to_visit.append(following)
    return numbers, leaves


def _streams_of_leaves(mine: RankDevice, leaves: dict[graph.Node, int]) -> dict[graph.Node, Mapping[int, str]]:
    """The streams on which nodes of leaves were made, by SIP, as far as they are not the default ones."""
    changes, sips = mine.stream_changes, mine.stream_changes.sips
    found: dict[graph.Node, Mapping[int, str]] = {}
    for node, first in leaves.items():
        metadata: Any = node.metadata
        if LEAF not in metadata:
            names = {sip: changes.at(first, sip) for sip in sips}
            metadata[LEAF] = {sip: name for sip, name in names.items() if name}
        found[node] = metadata[LEAF]
    return found


def _compiled() -> bool:
    module: Any = sys.modules.get(_COMPILED)
    return module is not None and bool(module.compiled_autograd_enabled)


def _pass(mine: RankDevice, roots: list[graph.Node]) -> _Pass | None:
    """The pass that begins at some nodes; None: all of them are on the caller's stream."""
    changes = mine.stream_changes
    if not changes or _compiled():
        return None
    sips = sorted(changes.sips)
    current = tuple(mine.host.stream_on(sip) for sip in sips)
    streams: dict[graph.Node, Streams] = {}
    numbers, leaves = _nodes(roots)
    for node, number in numbers.items():
        names = [changes.at(number, sip) for sip in sips]
        streams[node] = tuple(name or here for name, here in zip(names, current, strict=True))
    for node, known in _streams_of_leaves(mine, leaves).items():
        streams[node] = tuple(known.get(sip) or mine.host.default_stream(sip) for sip in sips)
    if all(each == current for each in streams.values()):
        return None
    return _Pass(mine, sips, streams)


def _on_streams_of_forward(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def run(t_outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        mine = current_device()
        if mine is None or not mine.stream_changes:
            return stock(t_outputs, *args, **kwargs)
        roots = _roots(t_outputs)
        found = _pass(mine, roots)
        if found is None:
            return stock(t_outputs, *args, **kwargs)
        with found.hooked(roots):
            return stock(t_outputs, *args, **kwargs)

    return run


def install(patches: Patches) -> None:
    """Have passes run so."""
    patches.set(torch.autograd, "_engine_run_backward", _on_streams_of_forward(torch.autograd._engine_run_backward))
