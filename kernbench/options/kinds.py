"""What an option or an argument of a mark may be. Classes of the simulator are known by name: none is imported for it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ValueKind:
    """What a value may be.

    Attributes:
        takes: in words, after "expected".
        read: the value that is meant by what was given. Raises ValueError or TypeError for anything else.
        written: what the text of a command line stands for.
        choices: all that there are, where they are words.
    """

    takes: str
    read: Callable[[Any], Any]
    written: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()


def whole(least: int) -> ValueKind:
    """An integer, numpy's too; not True, which Python has for one."""

    def read(value: object) -> int:
        number = _index(value)
        if number < least:
            raise ValueError
        return number

    return ValueKind(f"a whole number from {least} on", read, int)


def choice(*names: str) -> ValueKind:
    """One of these words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return value

    return ValueKind(", ".join(map(repr, names)), read, choices=names)


def instance(takes: str, *kinds: type | str) -> ValueKind:
    """A value of one of these classes, which may be given by name."""
    names = {kind for kind in kinds if isinstance(kind, str)}
    types = tuple(kind for kind in kinds if not isinstance(kind, str))

    def read(value: object) -> Any:
        if not isinstance(value, types) and names.isdisjoint(base.__name__ for base in type(value).__mro__):
            raise TypeError
        return value

    return ValueKind(takes, read)


def _index(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _seed(value: object) -> int:
    if abs(seed := _index(value)) >= 1 << 40:  # those of the ranks, a million times as large, are what torch takes
        raise ValueError
    return seed


def _number(value: Any) -> float:
    if not hasattr(type(value), "__float__") or isinstance(value, bool):
        raise TypeError
    return float(value)


def _seconds(value: Any) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError
    return float(value)


def _paces(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_index(rank): _number(factor) for rank, factor in value.items()}


def _sips(value: object) -> Any:
    if isinstance(value, Collection) and not isinstance(value, str):
        for each in value:
            _index(each)
    elif not isinstance(value, str):
        _index(value)
    return value


def _list(value: object) -> Any:
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        raise TypeError
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


FLAG = instance("True or False", bool)
TEXT = instance("a text", str)
NAME = ValueKind("a name", _name)
COUNT = whole(1)
COUNT_OR_ALL = ValueKind(f"{COUNT.takes}, or None for all", COUNT.read)
SEED = ValueKind("a whole number of at most 40 bits", _seed, int)
SECONDS = ValueKind("seconds", _seconds, float)
SHARE = ValueKind("a share, such as 0.02", _number, float)
PACES = ValueKind("a mapping of ranks to factors, such as {3: 1.2}", _paces)
DEVICES = ValueKind("'all', the index of a SIP, a list of them or a range", _sips)
LIST = ValueKind("a list of plugins: objects, modules, or references such as 'package.module:name'", _list)
MAPPING = instance("a mapping of names to values", Mapping)
LIMIT = instance("'device', 'off', or a size such as '80GB'", object)  # what sizes there are is known where memory is
RANKS = instance("'all', 'auto', or the ranks to run, as '0,8-11'", str)
RACES = instance("True, False, 'off', 'warn' or 'error'", bool, str)
SYSTEM = instance("a name, the path of a YAML file, or a handle (resolve_topology)", str, Path, "TopologyHandle")
COLLECTIVES = instance("the path of a ccl.yaml, or what load_ccl_config has read", str, Path, "CclConfig")
EFFECTS = instance("HostEffects", "HostEffects")
