"""What ``torch.distributed.Backend`` knows of backends: those that a rank registers are its own, as in a process of its own.

A backend is made by a function of the rank that has registered it; with one table for all, the rank that registers last would
have made the groups of all.
"""

from __future__ import annotations

from collections import ChainMap, UserList, defaultdict
from collections.abc import Callable, MutableMapping
from typing import Any

import torch.distributed as dist

from kernbench.torch_backend.gpu.device.devices import current_rank
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_LIST = "backend_list"
_TABLES = ("_plugins", "backend_type_map", "default_device_backend_map", "backend_capability")

RELIES_ON = (Reliance("torch.distributed.Backend", "what is known of backends", has=(_LIST, *_TABLES)),)


class _TableOfRanks(ChainMap[str, Any]):
    """A table of torch's, and before it what the current rank has put there. ``shared``: all ranks have; they are threads.

    What torch's modules register, which are executed with stock names, is in torch's.
    """

    def __init__(self, stock: MutableMapping[str, Any], shared: bool) -> None:
        self._own: defaultdict[int | None, dict[str, Any]] = defaultdict(dict)
        self._stock, self._shared = stock, shared

    @property
    def maps(self) -> list[MutableMapping[str, Any]]:  # type: ignore[override]
        return [self._own[None if self._shared else current_rank()], self._stock]

    def everywhere(self, key: str, value: object) -> None:
        """Let all ranks have ``value``."""
        self._stock = ChainMap({key: value}, self._stock)


class _BackendsOfRanks(UserList[str]):
    """The list of names, of the current rank."""

    def __init__(self, stock: list[str], shared: bool) -> None:
        self._own: defaultdict[int | None, list[str]] = defaultdict(stock.copy)
        self._shared = shared

    @property
    def data(self) -> list[str]:  # type: ignore[override]
        return self._own[None if self._shared else current_rank()]


def install(patches: Patches, *, shared: bool) -> Callable[[], None]:
    """Give each rank what it registers; all of them know ``kernbench``. Gives what forgets the names of those registered.

    Args:
        shared: whether ranks stand for threads of one process.
    """
    backends: Any = dist.Backend  # torch warns of one that is not in both
    patches.set(backends, _LIST, _BackendsOfRanks([*backends.backend_list, "kernbench"], shared))
    for name in _TABLES:
        table = _TableOfRanks(getattr(backends, name), shared)
        if name == "backend_capability":
            table.everywhere("kernbench", ["cpu", "cuda"])
        patches.set(backends, name, table)
    before = {*vars(backends)}

    def forget() -> None:
        for name in vars(backends).keys() - before:
            delattr(backends, name)

    return forget
