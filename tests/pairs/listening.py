"""A plugin that listens to all that happens in a run, and changes nothing."""

from __future__ import annotations

import inspect
from typing import Any

from kernbench.plugins import specs

SEEN: dict[str, int] = {}
"""How often each thing happened."""


def _counting(name: str) -> Any:
    def listener(event: Any) -> None:
        SEEN[name] = SEEN.get(name, 0) + 1

    listener.__name__ = name
    return listener


_OBSERVED = [
    name
    for name, hook in vars(specs).items()
    if name.startswith("kernbench_") and "event" in inspect.signature(hook).parameters
]
globals().update({name: _counting(name) for name in _OBSERVED})
