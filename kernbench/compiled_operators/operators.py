"""A library of operators by its schemas: each is one kernel to the simulation, whatever torch computes its values with, or a
program of others that launches them.

The schemas come from the library of the installed package (:mod:`~kernbench.compiled_operators.schemas`), or from a list. What
is written here are values, shapes of new results, and costs; each takes the arguments that it names, so that a release with
further ones needs no change. An operator without values has a shape all the same, and is refused where its values are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, overload

import torch.library

from kernbench.compiled_operators.schemas import namespaces_of, namespaces_used, schemas_in
from kernbench.cost.by_values import CostByValues
from kernbench.cost.registry import operator_cost, supply
from kernbench.errors import ConfigError
from kernbench.torch_backend.operations.defining import define
from kernbench.torch_backend.operations.library_operators import TABLE, LibraryOperator

Function = TypeVar("Function", bound=Callable[..., Any])


class Operators:
    """The operators of one compiled library.

    Args:
        namespaces: in which it defines them (``torch.ops.NAMESPACE.NAME``); of several, each operator is where the package's
            Python calls it, else in the first.
        schemas: what they are; those of the installed library where there is one, if none are given.
    """

    def __init__(self, *namespaces: str, schemas: Iterable[str] = ()) -> None:
        self.namespaces = namespaces
        self.schemas = {each.partition("(")[0].strip(): each for each in schemas}
        self.values: dict[str, Callable[..., Any]] = {}
        self.shapes: dict[str, Callable[..., Any]] = {}
        self.costs: dict[str, Any] = {}
        self.programs: dict[str, Callable[..., Any]] = {}
        self.gradients: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}

    @property
    def computed(self) -> set[str]:
        """Names of those that have values: of a program, those of what it launches."""
        return {*self.values, *self.programs}

    @property
    def priced(self) -> set[str]:
        """Names of those that have costs: of a program, those of what it launches."""
        return {*self.costs, *self.programs}

    @overload
    def value(self, what: Function) -> Function: ...
    @overload
    def value(self, what: str) -> Callable[[Function], Function]: ...
    def value(self, what: object) -> Any:
        """Have a function compute the operator that is called as it, or by the name given: it takes arguments by their names in
        the schema, writes those that the schema says are written, and returns the others' results."""
        return _kept(self.values, what)

    @overload
    def shape(self, what: Function) -> Function: ...
    @overload
    def shape(self, what: str) -> Callable[[Function], Function]: ...
    def shape(self, what: object) -> Any:
        """Have a function give new results of the right shapes, from tensors of the device ``meta``."""
        return _kept(self.shapes, what)

    @overload
    def program(self, what: Function) -> Function: ...
    @overload
    def program(self, what: str) -> Callable[[Function], Function]: ...
    def program(self, what: object) -> Any:
        """Have a function do what the operator does on the host: what it launches and allocates is recorded, and is all that
        takes time. It takes arguments by their names in the schema."""
        return _kept(self.programs, what)

    def cost(self, what: object) -> Any:
        """Have a function say what a call costs: it is given :class:`~kernbench.cost.by_values.CallOperands` and returns
        :class:`~kernbench.cost.StatedWork`, or seconds."""
        return _kept(self.costs, what)

    def gradient(self, name: str, keep: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Have a function give the gradients of the operator of that name: ``keep(ctx, inputs, output)``, then ``backward(ctx,
        *gradients)``, as of :func:`torch.library.register_autograd`. Without, the package's Python has the backward pass."""
        self.gradients[name] = keep, backward

    def define(self, package: str, library: Path | None = None, python: Iterable[Path] = ()) -> list[str]:
        """Define them with torch, those of them that are not defined.

        Args:
            package: whose they are, with its release, for messages.
            library: the compiled library that says the schemas, where no list does.
            python: the files of the package, which say what is in which namespace.

        Returns:
            Their names, with namespaces.

        Raises:
            ConfigError: there are no schemas, or a function does not fit its schema.
        """
        given = bool(self.schemas)
        schemas = self.schemas if given else {} if library is None else schemas_in(library)
        if not schemas:
            raise ConfigError(f"{package}: {library or 'the list of schemas'} has no schemas of operators")
        used = namespaces_used(python) if len(self.namespaces) > 1 else {}
        names = []
        for name, schema in schemas.items():
            for namespace in namespaces_of(name, used, self.namespaces):
                qualified = f"{namespace}::{name}"
                try:
                    if qualified not in TABLE:
                        self._define(qualified, schema, package)
                except RuntimeError:
                    if given:
                        raise
                    continue  # a string of the library that is no schema after all, or has a type that torch does not know
                names.append(qualified)
        return names

    def _define(self, qualified: str, schema: str, package: str) -> None:
        namespace, _, name = qualified.partition("::")
        program = self.programs.get(name)
        value = self.values.get(name) if program is None else program
        operator = LibraryOperator(qualified, package, value, self.shapes.get(name), launches=program is not None)
        library = torch.library.Library(namespace, "FRAGMENT")
        define(library, namespace, schema, operator)
        if name in self.gradients:
            keep, backward = self.gradients[name]
            torch.library.register_autograd(qualified, backward, setup_context=keep, lib=library)
        if name in self.costs:
            supply(operator_cost(qualified, CostByValues(self.costs[name]), f"the stand-in for {package}"))


def _kept(functions: dict[str, Any], what: Any) -> Any:
    if isinstance(what, str):

        def keep(function: object) -> Any:
            functions[what] = function
            return function

        return keep
    functions[what.__name__] = what
    return what
