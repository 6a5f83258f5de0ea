"""Operators that a compiled library would define, each of them one kernel to the simulation: what torch calls for them.

Their values, where there are any, are computed with torch's operations, of which nothing is recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.library

from kernbench.errors import ConfigError, KernbenchError
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.ops.aten.add_.Tensor", "its schema says names, defaults and aliases of its arguments", has=("_schema",),
             holds=lambda overload: overload._schema.returns[0].alias_info.before_set
             == overload._schema.arguments[0].alias_info.before_set),
)  # fmt: skip

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
    """

    def __init__(
        self, name: str, package: str, value: Callable[..., Any] | None, shape: Callable[..., Any] | None
    ) -> None:
        self.name = name
        self.package = package
        self.value = value
        self.shape = shape
        self.library: torch.library.Library | None = None
        self._arguments: list[tuple[str, Any]] = []
        self._returned: list[str | None] = []

    def read(self, schema: Any) -> None:
        """Take from the schema what it says. Raises ConfigError if a function wants an argument that it has not."""
        self._arguments = [(each.name, each.default_value) for each in schema.arguments]
        names = {each.alias_info: each.name for each in schema.arguments if each.alias_info is not None}
        self._returned = [
            next((name for alias, name in names.items() if alias.before_set == each.alias_info.before_set), None)
            if each.alias_info is not None else None for each in schema.returns
        ]  # fmt: skip
        for what, function in (("values", self.value), ("shape", self.shape)):
            missing = [name for name in _wanted(function) if name not in dict(self._arguments)]
            if missing:
                raise ConfigError(
                    f"the {what} of {self.name} want {', '.join(missing)}, and this release of {self.package} defines "
                    f"{schema}: the stand-in is for another release"
                )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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


def define(library: torch.library.Library, namespace: str, schema: str, operator: LibraryOperator) -> None:
    """Define an operator with torch, and in :data:`TABLE`. Raises ConfigError if its functions do not fit the schema."""
    name = schema.partition("(")[0].strip()
    library.define(schema)
    library.impl(name, operator, "CompositeExplicitAutograd")
    packet, _, which = name.partition(".")
    operator.read(getattr(getattr(getattr(torch.ops, namespace), packet), which or "default")._schema)
    operator.library = library
    TABLE[operator.name] = operator
