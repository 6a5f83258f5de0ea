"""What the modules of a package import, define and reach for: read from their source, nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Access:
    """A private name that a module takes from an object that is not its own ``self``, or from another module."""

    module: str
    line: int
    name: str


class Package:
    """The source of a package: its modules by dotted name. A room is the first part below the package."""

    def __init__(self, root: Path) -> None:
        self.name = root.name
        paths = {self._name_of(path, root): path for path in sorted(root.rglob("*.py"))}
        self.nodes = {module: list(ast.walk(ast.parse(path.read_text()))) for module, path in paths.items()}
        self.packages = {module for module, path in paths.items() if path.name == "__init__.py"}

    def without(self, part: str) -> Package:
        """The package less what is in ``part``, a package within it."""
        rest = copy(self)
        for name in ("rooms", "imports", "classes", "private_attributes"):
            vars(rest).pop(name, None)
        away = f"{self.name}.{part}"
        rest.nodes = {
            module: nodes
            for module, nodes in self.nodes.items()
            if module != away and not module.startswith(f"{away}.")
        }
        return rest

    @staticmethod
    def _name_of(path: Path, root: Path) -> str:
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def room(self, module: str) -> str:
        """The room of a module; of the package itself, its name."""
        return module.split(".")[1] if "." in module else module

    @cached_property
    def rooms(self) -> set[str]:
        """All rooms."""
        return {self.room(module) for module in self.nodes}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Module to the modules that it imports: those for types alone, and those inside functions, counted."""
        return {module: set(self._imported(module)) for module in self.nodes}

    def _imported(self, module: str) -> Iterator[str]:
        for node in self.nodes[module]:
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = self._source(module, node)
                full = [f"{source}.{alias.name}" for alias in node.names]
                found = [name if name in self.nodes else source for name in full]
            else:
                continue
            yield from (name for name in found if name in self.nodes and name != module)

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        """What ``from ... import`` in a module names, relative ones from the package that the module is in."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        above = parts[: len(parts) + (module in self.packages) - node.level]
        return ".".join([*above, *([node.module] if node.module else [])])

    @cached_property
    def classes(self) -> dict[str, list[str]]:
        """Class name to where it is defined, inside functions too."""
        found: dict[str, list[str]] = {}
        for module, nodes in self.nodes.items():
            for node in nodes:
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(f"{module}:{node.lineno}")
        return found

    @cached_property
    def private_attributes(self) -> dict[str, set[str]]:
        """Private name (one underscore) to the modules whose classes define it, as an attribute or a method."""
        found: dict[str, set[str]] = {}
        for module, nodes in self.nodes.items():
            for name in filter(_private, _attributes(nodes)):
                found.setdefault(name, set()).add(module)
        return found

    def foreign_accesses(self) -> Iterator[Access]:
        """Private names of other modules, and of their classes. One that a class of the module has too is taken for its own."""
        for module, nodes in self.nodes.items():
            for node in nodes:
                if isinstance(node, ast.Attribute) and not _own(node.value):
                    names = [] if module in self.private_attributes.get(node.attr, {module}) else [node.attr]
                elif isinstance(node, ast.ImportFrom) and self._source(module, node) in self.nodes:
                    names = [alias.name for alias in node.names]
                else:
                    continue
                yield from (Access(module, node.lineno, name) for name in names if _private(name))


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _attributes(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _own(node.value):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    yield each.name
                for target in each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]:
                    if isinstance(target, ast.Name):
                        yield target.id
