"""On which stream a gradient is computed: that of the operation that it is the gradient of, whatever is current by then.

Autograd numbers its nodes; a rank notes the number at which it went on to another stream.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from kernbench.simulation.ranks.hosts import Host
from kernbench.torch_backend.relies_on import Reliance


def _numbers(next_number: Any) -> bool:
    first = next_number()
    node = torch.ones(1, requires_grad=True).exp().grad_fn
    return node is not None and bool(node._sequence_nr() == first and next_number() == first + 1)


RELIES_ON = (
    Reliance("torch.autograd._get_sequence_nr", "the number of the node that is made next in this thread", holds=_numbers),
    Reliance("torch._C._current_autograd_node", "the node whose gradient is computed now; None: none is"),
    Reliance("torch._C._current_graph_task_id", "it is negative outside backward"),
)  # fmt: skip

sequence_number: Any = torch.autograd._get_sequence_nr

MOST = 4096
"""Changes of stream that are remembered."""

Changes = deque[tuple[int, int, str]]
"""When a rank went on to which stream: the number of the node that was next, the SIP and the stream's name; the latest ones."""


def gradient_of() -> int | None:
    """The number of the node whose gradient is computed now; None: none is, or one is added to a leaf's."""
    if torch._C._current_graph_task_id() < 0:
        return None
    node: Any = torch._C._current_autograd_node()
    number = None if node is None else int(node._sequence_nr())
    return None if number is None or number >= 1 << 63 else number


def stream_at(changes: Changes, number: int, host: Host) -> str | None:
    """The stream that was current, when a node was made, on the SIP that ``host`` drives; None: not known any more."""
    found = None if len(changes) == MOST else host.default_stream(host.sip)
    for first, sip, name in changes:
        if first > number:
            break
        if sip == host.sip:
            found = name
    return found
