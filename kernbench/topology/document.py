"""A description with its positions: plain data, and for every key path the file and line that it came from.

A description may build on another one (``extends``), and each value still remembers its own file.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kernbench.topology.problems import Mark, Problem

Loc: TypeAlias = tuple[str | int, ...]


@dataclass
class Document:
    """Parsed data with the origin of every value.

    ``marks`` maps a key path to where it stands; ``problems`` holds what was wrong with the text itself, ``is_empty``
    whether there was none.
    """

    data: dict[str, Any]
    marks: dict[Loc, Mark]
    problems: list[Problem] = field(default_factory=list)
    is_empty: bool = False

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
        data, replaced = deepcopy(base.data), set[Loc]()
        _lay_over(data, self.data, (), replaced)
        kept = {
            at: mark
            for at, mark in base.marks.items()
            if not any(at[:depth] in replaced for depth in range(1, len(at) + 1))
        }
        own = {at: mark for at, mark in self.marks.items() if at}
        return Document(data, kept | own, [*base.problems, *self.problems])

    def copy(self) -> Document:
        """One that can be changed without changing this."""
        return Document(deepcopy(self.data), dict(self.marks), list(self.problems), self.is_empty)

    def _forget(self, loc: Loc) -> None:
        for path in [path for path in self.marks if path[: len(loc)] == loc]:
            del self.marks[path]


def _lay_over(mine: dict[str, Any], theirs: dict[str, Any], loc: Loc, replaced: set[Loc]) -> None:
    for key, value in theirs.items():
        path, own = (*loc, key), mine.get(key)
        if isinstance(value, dict) and isinstance(own, dict):
            _lay_over(own, value, path, replaced)
        else:
            mine[key] = deepcopy(value)
            replaced.add(path)
