"""What the modules of this room rely on in torch and Python beyond what those document: data that a test walks.

A module that uses somebody's private names, or counts on how something is done, says so in ``RELIES_ON``: a tuple of
:class:`Reliance`. ``python -m kernbench.torch_backend.relies_on`` looks each of them up in the torch that is installed and
prints the list. Supporting another version of torch begins with what it says is broken.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any


@dataclass(frozen=True)
class Reliance:
    """Something of torch or Python that must be there, and what must be true of it.

    Attributes:
        name: dotted, from a module on.
        why: what rests on it, in a sentence.
        has: attributes that are used or replaced.
        parameters: what its signature has, in this order.
        looked_up_by: dotted names of functions, classes or modules of Python whose code looks it up by name at each use, so
            that what replaces it is found.
        subclassed: Python classes derive from it.
        holds: says of what ``name`` is whether it behaves as expected.
    """

    name: str
    why: str
    has: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    looked_up_by: tuple[str, ...] = ()
    subclassed: bool = False
    holds: Callable[[Any], bool] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All dotted names that it speaks of."""
        return (self.name, *(f"{self.name}.{attribute}" for attribute in self.has))

    def broken(self) -> list[str]:
        """What is not so in what is installed; empty if all is well."""
        try:
            target = find(self.name)
        except (ImportError, AttributeError) as error:
            return [f"does not exist: {error}"]
        wrong = [f"has no {attribute}" for attribute in self.has if not hasattr(target, attribute)]
        if self.parameters:
            taken = iter(found := _parameters_of(target))
            if not all(parameter in taken for parameter in self.parameters):
                wrong.append(f"takes ({', '.join(found)}), expected ({', '.join(self.parameters)}) among them")
        last = self.name.rpartition(".")[2]
        wrong += [f"is not looked up by {user}" for user in self.looked_up_by if last not in _names_in(find(user))]
        if self.subclassed and not target.__flags__ & _PY_TPFLAGS_BASETYPE:
            wrong.append("cannot be derived from")
        if self.holds is not None and (why_not := _fails(self.holds, target)) is not None:
            wrong.append(f"does not behave as expected{why_not}")
        return wrong


_PY_TPFLAGS_BASETYPE = 1 << 10  # Include/object.h


def find(name: str) -> Any:
    """What a dotted name stands for. Raises ImportError or AttributeError if there is no such thing."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            target: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            if length == 1:
                raise
            continue
        for part in parts[length:]:
            target = getattr(target, part)
        return target
    raise AttributeError(name)


def _parameters_of(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:  # of C++
        return []


def _fails(holds: Callable[[Any], bool], target: Any) -> str | None:
    """None if it holds; else what it raised, if it did."""
    try:
        return None if holds(target) else ""
    except Exception as error:
        return f": {type(error).__name__}: {error}"


def _names_in(user: Any) -> set[str]:
    """Names that the code of a function, a class or a module looks up."""
    if isinstance(user, type | ModuleType):
        home = user.__name__ if isinstance(user, ModuleType) else user.__module__
        own = [value for value in vars(user).values() if getattr(value, "__module__", home) == home]
        return set().union(*(_names_in(value) for value in own if not isinstance(value, ModuleType)))
    user = getattr(user, "__func__", user)
    code = getattr(inspect.unwrap(user) if callable(user) else user, "__code__", None)
    return set() if code is None else {name for each in _codes(code) for name in each.co_names}


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def modules() -> list[ModuleType]:
    """Every module of this room."""
    import kernbench.torch_backend as room

    found = pkgutil.walk_packages(room.__path__, room.__name__ + ".")
    return [importlib.import_module(each.name) for each in found if each.name != __name__]


def reliances() -> dict[str, tuple[Reliance, ...]]:
    """By module, without the name of the room."""
    room = __name__.rpartition(".")[0] + "."
    return {
        module.__name__.removeprefix(room): module.RELIES_ON for module in modules() if hasattr(module, "RELIES_ON")
    }


def main() -> int:
    """Print the list; 1 if something is broken, else 0."""
    import torch

    broken = total = 0
    print(f"torch {torch.__version__}, Python {sys.version.partition(' ')[0]}")
    for module, of_module in reliances().items():
        print(f"\n{module}")
        for reliance in of_module:
            wrong = reliance.broken()
            broken, total = broken + bool(wrong), total + 1
            print(f"  {'BROKEN' if wrong else 'ok    '} {reliance.name}: {reliance.why}")
            for what in wrong:
                print(f"         {what}")
    print(f"\n{broken} of {total} are broken")
    return 1 if broken else 0


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m kernbench.torch_backend.relies_on", description=main.__doc__).parse_args()
    sys.exit(main())
