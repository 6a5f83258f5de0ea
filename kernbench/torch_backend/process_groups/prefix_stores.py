"""What a ``PrefixStore`` does not ask a store of Python for: queues, and the list of keys.

C++ calls a store's other methods by name; of these it says that there are none. A prefix store made in Python is known with its
prefix and the store behind it, and these methods put the prefix before the key themselves, as C++ does for a store of C++.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_NAMES = ("queue_push", "queue_pop", "queue_len", "list_keys")

RELIES_ON = (
    Reliance(
        "torch.distributed.PrefixStore", "queues and keys of a store of Python are reached without C++", has=_NAMES
    ),
)

_made: weakref.WeakKeyDictionary[Any, tuple[str, weakref.ref[Any]]] = weakref.WeakKeyDictionary()
"""Prefix and store of each that Python has made. A store of a simulation refers to what is made of it, hence weakly."""


def _behind(store: object) -> tuple[str, Any]:
    """Prefix and store of a ``PrefixStore``; none that Python has made or that is still there: an empty prefix, and None."""
    prefix, behind = _made.get(store, ("", None))
    return prefix, None if behind is None else behind()


def _notes(stock: Callable[..., None]) -> Callable[..., None]:
    """The constructor, which notes what it is given."""

    @functools.wraps(stock)
    def make(self: object, prefix: str, store: object) -> None:
        stock(self, prefix, store)
        _made[self] = prefix, weakref.ref(store)

    return make


def _passes(stock: Callable[..., object], name: str) -> Callable[..., Any]:
    """A method by a key, which the store behind is called with."""

    @functools.wraps(stock)
    def call(self: object, key: str, *args: object, **kwargs: object) -> Any:
        prefix, store = _behind(self)
        if store is None:
            return stock(self, key, *args, **kwargs)
        return getattr(store, name)(f"{prefix}/{key}", *args, **kwargs)

    return call


def _lists(stock: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """The keys that have the prefix, without it."""

    @functools.wraps(stock)
    def list_keys(self: object) -> list[str]:
        prefix, store = _behind(self)
        if store is None:
            return stock(self)
        begin = f"{prefix}/"
        return [key.removeprefix(begin) for key in store.list_keys() if key.startswith(begin)]

    return list_keys


def install(patches: Patches) -> None:
    """Give ``PrefixStore`` these methods."""
    owner: Any = dist.PrefixStore
    patches.add(owner, "__init__", _notes(owner.__init__))
    for name in ("queue_push", "queue_pop", "queue_len"):
        patches.add(owner, name, _passes(getattr(owner, name), name))
    patches.add(owner, "list_keys", _lists(owner.list_keys))
