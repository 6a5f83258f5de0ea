"""What kernbench relies on in torch and Python beyond what those document: data that a test walks.

A module that uses another package's private names, or counts on how something is done, says so in ``RELIES_ON``: a tuple of
:class:`Reliance`. ``python -m kernbench.torch_backend.relies_on`` looks each of them up in the torch that is installed and
prints the list. Supporting another version of torch begins with what it says is broken.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from kernbench.version import TESTED, installed, is_beyond_tested, numbers


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
        since: the release of torch that brought it: an earlier one is not asked.
        needs: a package that kernbench does not require and ``name`` is imported with: without it, it is not asked.
    """

    name: str
    why: str
    has: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    looked_up_by: tuple[str, ...] = ()
    subclassed: bool = False
    holds: Callable[[Any], bool] | None = None
    since: str = ""
    needs: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All dotted names that it speaks of."""
        return (self.name, *(f"{self.name}.{attribute}" for attribute in self.has))

    def unasked(self) -> str:
        """Why it is not looked up in what is installed; empty if it is."""
        if self.needs and importlib.util.find_spec(self.needs) is None:
            return f"{self.needs} is not installed"
        if self.since and numbers(installed("torch")) < numbers(self.since):
            return f"torch has it since {self.since}"
        return ""

    def broken(self) -> list[str]:
        """What is not so in what is installed; empty if all is well."""
        if self.unasked():
            return []
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


_ELSEWHERE = ("kernbench.testing.distributed_cases",)
"""Modules of rooms above this one that use torch's private names: of torch's own test cases, which no run needs."""


@contextmanager
def _imports_log_nothing() -> Iterator[None]:
    """Parts of torch that a run does not import say at their import, without a GPU, that a build for CUDA finds no CUDA."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


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


def _fails(holds: Callable[[Any], bool], target: object) -> str | None:
    """None if it holds; else what it raised, if it did."""
    try:
        return None if holds(target) else ""
    except Exception as error:
        return f": {type(error).__name__}: {error}"


def _names_in(user: object) -> set[str]:
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


def fit(replaced: Mapping[str, Any]) -> Callable[[ModuleType], bool]:
    """Says of a module of Python whether what it calls by these names, of functions of C++, takes what it gives them.

    It raises TypeError with the line that does not fit. Calls with ``*`` or ``**`` are left out.
    """

    def calls_fit(module: ModuleType) -> bool:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            match node:
                case ast.Call(func=ast.Attribute(attr=name)) if name in replaced:
                    named = [keyword.arg for keyword in node.keywords]
                    if None in named or any(isinstance(given, ast.Starred) for given in node.args):
                        continue
                    try:
                        inspect.signature(replaced[name]).bind(*node.args, **dict.fromkeys(map(str, named)))
                    except TypeError as error:
                        raise TypeError(f"line {node.lineno} calls {name}: {error}") from None
        return True

    return calls_fit


def modules() -> list[ModuleType]:
    """Every module of this room, and those of others that use torch's private names."""
    import kernbench.torch_backend as room

    found = [each.name for each in pkgutil.walk_packages(room.__path__, room.__name__ + ".")]
    return [importlib.import_module(name) for name in (*found, *_ELSEWHERE) if name != __name__]


def reliances() -> dict[str, tuple[Reliance, ...]]:
    """By module, without the name of the room."""
    room = __name__.rpartition(".")[0] + "."
    return {
        module.__name__.removeprefix(room): module.RELIES_ON for module in modules() if hasattr(module, "RELIES_ON")
    }


def broken_names() -> tuple[list[str], int]:
    """What of the list is not so in the torch that is installed, by name, and the length of the list."""
    with _imports_log_nothing():
        every = [each for of_module in reliances().values() for each in of_module]
        return [each.name for each in every if each.broken()], len(every)


def warning() -> str:
    """A line about a torch that is newer than the tested ones, if something of the list is broken there; else empty."""
    version, newest = installed("torch"), TESTED["torch"][-1]
    if not is_beyond_tested("torch", version):
        return ""
    broken, total = broken_names()
    if not broken:
        return ""
    return (
        f"torch {version} is newer than the newest that is tested ({newest}), and differs in {len(broken)} of {total} things "
        f"that are relied on: results may be wrong (python -m kernbench.torch_backend.relies_on lists them; "
        f"pip install 'torch=={newest}' has none of them)"
    )


def main() -> int:
    """Print the list; 1 if something is broken, else 0."""
    broken = total = 0
    print(f"torch {installed('torch')}, Python {sys.version.partition(' ')[0]}")
    with _imports_log_nothing():
        looked_up = [
            (module, [(each, each.broken()) for each in of_module]) for module, of_module in reliances().items()
        ]
    for module, of_module in looked_up:
        print(f"\n{module}")
        for reliance, wrong in of_module:
            broken, total = broken + bool(wrong), total + 1
            unasked = reliance.unasked()
            print(f"  {'BROKEN' if wrong else '-     ' if unasked else 'ok    '} {reliance.name}: {reliance.why}")
            if unasked:
                print(f"         not looked up: {unasked}")
            for what in wrong:
                print(f"         {what}")
    print(f"\n{broken} of {total} are broken")
    return 1 if broken else 0


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m kernbench.torch_backend.relies_on", description=main.__doc__).parse_args()
    sys.exit(main())
