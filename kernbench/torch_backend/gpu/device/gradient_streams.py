"""On which stream a gradient is computed: that of the operation that it is the gradient of, whatever is current by then.

Autograd numbers its nodes; a rank notes the number at which it went on to another stream.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import torch

from kernbench.simulation.ranks.hosts import Host
from kernbench.torch_backend.modes import plain_torch
from kernbench.torch_backend.relies_on import Reliance


def _numbers(next_number: Any) -> bool:
    first = next_number()
    node = torch.ones(1, requires_grad=True).exp().grad_fn
    return node is not None and bool(node._sequence_nr() == first and next_number() == first + 1)


def _keeps(edge_of: Any) -> bool:
    leaf = torch.ones(1, requires_grad=True)
    made = leaf.exp()
    edge_of(leaf).node.metadata[LEAF] = 1
    node: Any = made.grad_fn
    return bool(node.next_functions[0][0].metadata == {LEAF: 1})


RELIES_ON = (
    Reliance("torch.autograd._get_sequence_nr", "the number of the node that is made next in this thread", holds=_numbers),
    Reliance("torch.autograd.graph.get_gradient_edge", "of a leaf it gives the node that adds to its gradient", holds=_keeps),
    Reliance("torch._C._current_autograd_node", "the node whose gradient is computed now; None: none is"),
    Reliance("torch._C._current_graph_task_id", "it is negative outside backward"),
)  # fmt: skip

sequence_number: Any = torch.autograd._get_sequence_nr

MOST = 4096
"""Changes of stream that are remembered."""

LEAF = "kernbench: streams of a leaf"
"""In the metadata of a leaf's node: the streams that were current when it was made, by SIP, but for default ones."""

_FIRST = itemgetter(0)


def node_number(node: Any) -> int | None:
    """Autograd's number of a node; None: it has none, as what adds to the gradient of a leaf."""
    number = int(node._sequence_nr())
    return None if number >= 1 << 63 else number


def gradient_of() -> int | None:
    """The number of the node whose gradient is computed now; None: none is, or one is added to a leaf's."""
    if torch._C._current_graph_task_id() < 0:
        return None
    node: Any = torch._C._current_autograd_node()
    return None if node is None else node_number(node)


def note_kept_leaf(changes: StreamChanges, leaf: torch.Tensor) -> None:
    """C++ keeps the node of a leaf from now on, whose gradients are added on the streams that are current now."""
    with plain_torch():  # torch takes a view of it to find its node
        node: Any = torch.autograd.graph.get_gradient_edge(leaf).node
    node.metadata[LEAF] = changes.now()


class StreamChanges:
    """When a rank went on to which streams, by the numbers of the nodes that were next: the latest :data:`MOST` changes between
    which nodes were made.

    Args:
        host: the rank's.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._since: deque[tuple[int, int, str]] = deque(maxlen=MOST)

    def __bool__(self) -> bool:
        """Whether any is known: nodes may have been made on other streams than the default ones."""
        return bool(self._since)

    @property
    def sips(self) -> set[int]:
        """On which SIPs it changed."""
        return {sip for _, sip, _ in self._since}

    def now(self) -> Mapping[int, str]:
        """The streams that are current, by SIP, where it has changed."""
        return {sip: self._host.stream_on(sip) for sip in self.sips}

    def go_on(self, sip: int, name: str) -> None:
        """The rank enqueues on another stream of a SIP from now on. Gradients of what it computes there will be on it, too."""
        host = self._host
        if name == host.stream_on(sip):
            return
        if sip == host.sip:
            host.stream = name
        else:
            host.streams_elsewhere[sip] = name
        number, since = sequence_number(), self._since
        while since and since[-1][:2] == (number, sip):  # no node was made there
            since.pop()
        if self.at(number, sip) != name:
            since.append((number, sip, name))

    def at(self, number: int, sip: int) -> str | None:
        """The stream that was current on a SIP when a node was made; None: not known any more."""
        since = self._since
        for at in range(bisect_right(since, number, key=_FIRST) - 1, -1, -1):
            if since[at][1] == sip:
                return since[at][2]
        return None if len(since) == MOST else self._host.default_stream(sip)
