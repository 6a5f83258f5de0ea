"""Finding the autotuners that are alive in this process.

By their looks, not by their class: Triton moves its classes between versions, and others wrap them. The finder is apart
from what is made of its findings, so that a test replaces the finder and is not touched by what else a process has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FoundAutotuner:
    """An autotuner and where it is.

    Attributes:
        module: full name of the module that holds it.
        name: its name there.
        tuner: the object.
    """

    module: str
    name: str
    tuner: Any


def find_autotuners() -> list[FoundAutotuner]:
    """Every autotuner that a loaded module holds in a global name, each once, in its own module if that has it.

    Safe while other threads import: it walks over copies.
    """
    found: dict[int, FoundAutotuner] = {}
    for module_name, module in list(sys.modules.items()):
        namespace = getattr(module, "__dict__", None)
        if not isinstance(namespace, dict):
            continue
        for name, value in list(namespace.items()):
            for tuner in _layers(value):
                if not is_autotuner(tuner):
                    continue
                known = found.get(id(tuner))
                if known is None or (known.module != home_of(tuner) == module_name):
                    found[id(tuner)] = FoundAutotuner(module_name, name, tuner)
    return sorted(found.values(), key=lambda each: (each.module, each.name))


def is_autotuner(value: object) -> bool:
    """Whether it has a ``cache`` of choices, the ``configs`` to choose from, and a function beneath."""
    attributes = _attributes(value)
    return (
        isinstance(attributes.get("cache"), dict)
        and isinstance(attributes.get("configs"), list)
        and ("base_fn" in attributes or "fn" in attributes)
    )


def home_of(tuner: object) -> str:
    """The module in which the function beneath was written."""
    return str(getattr(base_function(tuner), "__module__", ""))


def base_function(tuner: object) -> Any:
    """The Python function beneath an autotuner, heuristics and the jitted function."""
    value = getattr(tuner, "base_fn", None) or tuner
    for _ in range(8):
        inner = getattr(value, "fn", None)
        if inner is None:
            break
        value = inner
    return value


def _layers(value: object) -> Iterator[Any]:
    """The value and what it wraps: an autotuner may be under heuristics."""
    for _ in range(8):
        yield value
        value = _attributes(value).get("fn")
        if value is None:
            return


def _attributes(value: object) -> dict[str, Any]:
    """The instance's own attributes, without running any code of its class: some modules' globals warn when touched."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}
