"""A YAML file with its positions: plain data, and for every key path the file and line that it came from.

PyYAML's own loader forgets where a value stood and lets a repeated key win silently. Here the node tree is walked
once, so that every later complaint can name a line, repeated keys are problems, and a description may build on another
one (``extends``) while each value still remembers its own file.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from kernbench.topology.problems import Mark, Problem, describe

SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""With libyaml an order of magnitude faster, with the same nodes and marks; not every PyYAML is built with it."""

Loc: TypeAlias = tuple[str | int, ...]

_MAPPING, _SEQUENCE, _MERGE = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "merge"))


@dataclass
class Document:
    """Parsed data with the origin of every value.

    ``marks`` maps a key path to where it stands; ``problems`` holds what was wrong with the text itself.
    """

    data: dict[str, Any]
    marks: dict[Loc, Mark]
    problems: list[Problem] = field(default_factory=list)

    def mark(self, loc: Loc) -> Mark:
        """Where ``loc`` stands, or else the nearest enclosing value, with the rest of the key path."""
        for depth in range(len(loc), -1, -1):
            if (found := self.marks.get(loc[:depth])) is not None:
                return found.child(loc[depth:])
        raise KeyError(loc)

    def get(self, loc: Loc) -> Any:
        """The value at ``loc``, or None."""
        value: Any = self.data
        for key in loc:
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
        return value

    def below(self, loc: Loc) -> Document:
        """The mapping at ``loc`` as a document of its own, marks included."""
        depth = len(loc)
        marks = {path[depth:]: mark for path, mark in self.marks.items() if path[:depth] == loc}
        return Document(self.get(loc), marks)

    def graft(self, loc: Loc, other: Document) -> None:
        """Put ``other`` in the place of the value at ``loc``; its values keep their own file and line."""
        self._forget(loc)
        parent = self.get(loc[:-1])
        parent[loc[-1]] = other.data
        self.marks.update({loc + path: mark for path, mark in other.marks.items()})
        self.problems.extend(other.problems)

    def over(self, base: Document) -> Document:
        """This document laid over ``base``: mappings merge key by key, anything else replaces."""
        merged = Document(deepcopy(base.data), dict(base.marks), [*base.problems, *self.problems])
        merged._merge((), self)
        return merged

    def copy(self) -> Document:
        """One that can be changed without changing this."""
        return Document(deepcopy(self.data), dict(self.marks), list(self.problems))

    def _merge(self, loc: Loc, other: Document) -> None:
        mine, theirs = self.get(loc), other.get(loc)
        for key, value in theirs.items():
            path = (*loc, key)
            if isinstance(value, dict) and isinstance(mine.get(key), dict):
                self._merge(path, other)
                self.marks[path] = other.marks[path]
            else:
                self._forget(path)
                mine[key] = deepcopy(value)
                self.marks.update({at: mark for at, mark in other.marks.items() if at[: len(path)] == path})

    def _forget(self, loc: Loc) -> None:
        for path in [path for path in self.marks if path[: len(loc)] == loc]:
            del self.marks[path]


def read_document(path: Path) -> Document:
    """Read one YAML file. What is wrong with the text is in ``.problems``, never raised."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        top = Mark(str(path), 1, ())
        return Document({}, {(): top}, [Problem(top, f"cannot be read ({error})", "a readable YAML text file")])
    return _parse(str(path), text).copy()


@functools.lru_cache(maxsize=64)
def _parse(file: str, text: str) -> Document:
    """What ``text`` of ``file`` says; a program that simulates the same system again does not parse it again."""
    top = Mark(file, 1, ())
    loader = SAFE_LOADER(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return Document({}, {(): top}, [Problem(top, "the file is empty", "a mapping of keys to values")])
        if not isinstance(root, yaml.MappingNode):
            found = describe(loader.construct_document(root))
            return Document({}, {(): top}, [Problem(top, found, "a mapping of keys to values")])
        walker = _Walker(loader, file)
        return Document(walker.value(root, ()), walker.marks, walker.problems)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        reason = " ".join(part for part in (error.context, error.problem) if part)
        return Document({}, {(): top}, [Problem(Mark(file, line, ()), f"broken YAML: {reason}", "YAML syntax")])
    except yaml.YAMLError as error:
        return Document({}, {(): top}, [Problem(top, f"broken YAML: {error}", "YAML syntax")])
    finally:
        loader.dispose()


class _Walker:
    """Turns a YAML node tree into plain data, collecting marks and problems."""

    def __init__(self, loader: Any, file: str) -> None:
        self.loader = loader
        self.file = file
        self.marks: dict[Loc, Mark] = {}
        self.problems: list[Problem] = []
        self._open: list[yaml.Node] = []

    def value(self, node: yaml.Node, loc: Loc) -> Any:
        self.marks.setdefault(loc, Mark(self.file, node.start_mark.line + 1, loc))
        if isinstance(node, yaml.ScalarNode):
            return self.loader.construct_object(node)
        if node.tag not in (_MAPPING, _SEQUENCE):
            self.problems.append(Problem(self.marks[loc], f"tag {node.tag}", "plain data"))
            return None
        if any(node is outer for outer in self._open):
            self.problems.append(Problem(self.marks[loc], "an alias that contains itself", "a finite value"))
            return None
        self._open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*loc, index)) for index, item in enumerate(node.value)]
            return {key: self.value(item, (*loc, key)) for key, item in self._pairs(node, loc)}
        finally:
            self._open.pop()

    def _pairs(self, node: yaml.Node, loc: Loc) -> Iterator[tuple[str, yaml.Node]]:
        """Keys and values of a mapping: repeated keys reported, merge keys (``<<``) resolved, keys' lines noted."""
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            line = key_node.start_mark.line + 1
            key = self.loader.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                self.problems.append(Problem(Mark(self.file, line, loc), f"key {describe(key)}", "a key that is text"))
            elif key in seen:
                found = f"repeated key; it stands in line {seen[key]} already"
                self.problems.append(Problem(Mark(self.file, line, (*loc, key)), found, "each key once"))
            else:
                seen[key] = line
        self.loader.flatten_mapping(node)
        for key_node, value_node in node.value:
            key = self.loader.construct_object(key_node, deep=True)
            if isinstance(key, str):
                at = (*loc, key)
                self.marks[at] = Mark(self.file, key_node.start_mark.line + 1, at)
                yield key, value_node
