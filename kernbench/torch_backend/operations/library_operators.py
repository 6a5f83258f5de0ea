"""Operators that a compiled library would define: what torch calls for them. Each is one kernel to the simulation, or a program
that launches others.

Values of a kernel, where there are any, are computed with torch's operations, of which nothing is recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.library

from kernbench.errors import ConfigError, KernbenchError
from kernbench.simulation.active_simulation import current_simulation

HOW_TO = 'docs/plugins.md, "How to add an operator"'
"""Where it says how values and shapes are given."""


class NoValuesError(KernbenchError):
    """An operator of a stand-in has no values, and they were wanted."""


class LibraryOperator:
    """One operator, as torch calls it.

    Attributes:
        name: with its namespace.
        package: that it belongs to, for people.
        value: computes what it gives, or writes; None: it has no values.
        library: of torch, in which it is defined: it lasts as long as this.
        shape: gives new results of the right shapes; None: its schema says all, or ``value`` is shown tensors without values.
        launches: whether ``value`` is a program, of which each operation is recorded, and nothing else.
    """

    def __init__(
        self,
        name: str,
        package: str,
        value: Callable[..., Any] | None,
        shape: Callable[..., Any] | None,
        *,
        launches: bool = False,
    ) -> None:
        self.name = name
        self.package = package
        self.value = value
        self.shape = shape
        self.launches = launches
        self.library: torch.library.Library | None = None
        self._arguments: list[tuple[str, Any]] = []
        self._returned: list[str | None] = []

    def take(self, arguments: list[tuple[str, Any]], returned: list[str | None], schema: str) -> None:
        """Take what its schema says. Raises ConfigError if a function wants an argument that it has not.

        Args:
            arguments: names and defaults.
            returned: for each result the argument that it is, None if it is a new one.
            schema: for messages.
        """
        self._arguments, self._returned = arguments, returned
        for what, function in (("values", self.value), ("shape", self.shape)):
            missing = [name for name in _wanted(function) if name not in dict(arguments)]
            if missing:
                raise ConfigError(
                    f"the {what} of {self.name} want {', '.join(missing)}, and this release of {self.package} defines "
                    f"{schema}: the stand-in is for another release"
                )

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Compute it; of tensors without values: give the shapes."""
        given = {
            name: args[at] if at < len(args) else kwargs.get(name, default)
            for at, (name, default) in enumerate(self._arguments)
        }
        if any(each.is_meta for each in _tensors(given.values())):
            return self._described(given)
        if self.value is None:
            raise NoValuesError(
                f"{self.name} of {self.package} has no values in its stand-in: run without data (--no-data, "
                f"enable_data=False), or give it some ({HOW_TO})"
            )
        if self.launches:
            return _called(self.value, given)
        simulation = current_simulation()  # what it looks at is on the GPU, where it computes: the host reads nothing
        with nullcontext() if simulation is None else simulation.hosts.current().as_one():
            return _called(self.value, given)

    def _described(self, given: Mapping[str, Any]) -> Any:
        if self.shape is not None:
            return _called(self.shape, given)
        if all(name is not None for name in self._returned):
            results = [given[name] for name in self._returned if name is not None]
            return tuple(results) if len(results) > 1 else results[0] if results else None
        if self.value is None:
            raise NoValuesError(
                f"{self.name} of {self.package} makes new tensors, and its stand-in does not know their shapes: "
                f"give it a shape ({HOW_TO})"
            )
        return _called(self.value, given)


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def _wanted(function: Callable[..., Any] | None) -> list[str]:
    return [] if function is None else list(inspect.signature(function).parameters)


def _called(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    return function(**{name: given[name] for name in _wanted(function)})


TABLE: dict[str, LibraryOperator] = {}
"""All that are defined in this process, by name with namespace (and overload, where it has one)."""
