"""YAML files read into documents: the one way in which kernbench reads YAML.

PyYAML's own loader forgets where a value stood and lets a repeated key win silently, its constructors raise whatever comes,
and aliases of aliases grow without end. Here the node tree is walked once, within bounds, so that every complaint names a line.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from kernbench.input_files import UnreadableError, read_text, shortened
from kernbench.topology.document import Document, Loc
from kernbench.topology.problems import Mark, Problem, describe

SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""With libyaml an order of magnitude faster, with the same nodes and marks; not every PyYAML is built with it."""


MOST_VALUES = 500_000
"""Values of a document, with what aliases repeat."""

MOST_DEPTH = 64
"""Levels of lists and mappings in a document."""

_LONGEST_NUMBER = 1000  # characters
_MOST_KEPT = 2**20  # characters of a text that is remembered, parsed
_MAPPING, _SEQUENCE, _MERGE, _NULL = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "merge", "null"))
_AS_TEXT = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "timestamp", "value", "merge"))
_SCALARS = {
    _NULL: "nothing",
    "tag:yaml.org,2002:bool": "true or false",
    "tag:yaml.org,2002:int": "a whole number",
    "tag:yaml.org,2002:float": "a number",
}


def read_document(path: Path, *, list_as: str = "", may_be_empty: bool = False) -> Document:
    """Read one YAML file. What is wrong with the text is in ``.problems``, never raised.

    Args:
        list_as: the key that a list at the top is taken for; without one it is a problem.
        may_be_empty: an empty file is a mapping without keys; otherwise it is a problem.
    """
    document = shared_document(path, list_as).copy()
    if may_be_empty and document.is_empty:
        document.problems.clear()
    return document


def shared_document(path: Path, list_as: str = "") -> Document:
    """As :func:`read_document`, for callers that change nothing in it: the same object as long as the text is the same."""
    try:
        text = read_text(path)
    except UnreadableError as error:
        mark = Mark(str(path), error.line, ())
        return Document(
            {}, {(): mark}, [Problem(mark, f"cannot be read ({error.reason})", "a readable YAML text file")]
        )
    parse = _parse if len(text) < _MOST_KEPT else _parse.__wrapped__
    return parse(str(path), text, list_as)


@functools.lru_cache(maxsize=64)
def _parse(file: str, text: str, list_as: str) -> Document:
    """What ``text`` of ``file`` says; a program that simulates the same system again does not parse it again."""
    top = Mark(file, 1, ())
    loader: Any = None
    try:
        loader = SAFE_LOADER(text)
        root = loader.get_single_node()
        if root is None:
            empty = Problem(top, "the file is empty", "a mapping of keys to values")
            return Document({}, {(): top}, [empty], is_empty=True)
        walker = _Walker(loader, file)
        if isinstance(root, yaml.MappingNode):
            return Document(walker.value(root, ()) or {}, walker.marks, walker.problems)
        if isinstance(root, yaml.SequenceNode) and list_as:
            data = {list_as: walker.value(root, (list_as,))}
            return Document(data, {(): top, **walker.marks}, walker.problems)
        found = "a list" if isinstance(root, yaml.SequenceNode) else describe(root.value)
        return Document({}, {(): top}, [Problem(top, found, "a mapping of keys to values")])
    except yaml.MarkedYAMLError as error:
        reason = " ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        return _broken(file, reason, (mark.line, mark.column) if mark else None)
    except ReaderError as error:
        before = text[: error.position]
        place = before.count("\n"), error.position - before.rfind("\n") - 1
        return _broken(file, f"the character {describe(text[error.position : error.position + 1])}", place)
    except RecursionError:
        return _broken(file, "lists and mappings are nested too deeply", None)
    except _TooManyError as error:
        found = f"more than {MOST_VALUES:,} values, what an alias repeats counted each time"
        return Document({}, {(): top}, [Problem(Mark(file, error.line, ()), found, "fewer")])
    finally:
        if loader is not None:
            loader.dispose()


def _broken(file: str, reason: str, place: tuple[int, int] | None) -> Document:
    """What cannot be parsed; ``place``: line and column, from 0."""
    mark = Mark(file, place[0] + 1 if place else 1, ())
    column = f" (column {place[1] + 1})" if place else ""
    found = f"broken YAML: {shortened(reason, 200)}{column}"
    return Document({}, {(): Mark(file, 1, ())}, [Problem(mark, found, "YAML syntax")])


class _TooManyError(Exception):
    """A document has more values than are read. ``line``: of the first that is too many."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Walker:
    """Turns a YAML node tree into plain data, collecting marks and problems."""

    def __init__(self, loader: Any, file: str) -> None:
        self.loader = loader
        self.file = file
        self.marks: dict[Loc, Mark] = {}
        self.problems: list[Problem] = []
        self._open: list[yaml.Node] = []
        self._count = 0

    def value(self, node: yaml.Node, loc: Loc) -> Any:
        """The plain data of a node, with its marks; None where there is a problem."""
        self._seen(node)
        self.marks.setdefault(loc, self._mark(node, loc))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, loc)
        if not self._enter(node, loc):
            return None
        try:
            if not isinstance(node, yaml.MappingNode):
                return [self.value(item, (*loc, index)) for index, item in enumerate(node.value)]
            self._report_keys(node, loc)
            return {key: self.value(item, (*loc, key)) for key, item in self._pairs(node, loc).items()}
        finally:
            self._open.pop()

    def _mark(self, node: yaml.Node, loc: Loc) -> Mark:
        return Mark(self.file, node.start_mark.line + 1, loc)

    def _report(self, node: yaml.Node, loc: Loc, found: str, expected: str) -> None:
        self.problems.append(Problem(self.marks.get(loc) or self._mark(node, loc), found, expected))

    def _seen(self, node: yaml.Node) -> None:
        self._count += 1
        if self._count > MOST_VALUES:
            raise _TooManyError(node.start_mark.line + 1)

    def _enter(self, node: yaml.Node, loc: Loc) -> bool:
        """Whether a list or mapping can be walked; if so it is open."""
        if node.tag not in (_MAPPING, _SEQUENCE):
            found, expected = f"tag {shortened(node.tag)}", "plain data"
        elif any(node is outer for outer in self._open):
            found, expected = "an alias that contains itself", "a finite value"
        elif len(self._open) >= MOST_DEPTH:
            found, expected = "lists and mappings nested too deeply", f"at most {MOST_DEPTH} levels"
        else:
            self._open.append(node)
            return True
        self._report(node, loc, found, expected)
        return False

    def _scalar(self, node: yaml.ScalarNode, loc: Loc) -> Any:
        """Text, a number, true, false or nothing. A date is the text that it is written as."""
        if node.tag in _AS_TEXT:
            return node.value
        expected = _SCALARS.get(node.tag)
        if expected is None:
            self._report(node, loc, f"tag {shortened(node.tag)}", "plain data")
            return None
        try:
            value = self.loader.construct_object(node) if len(node.value) <= _LONGEST_NUMBER else None
        except Exception:  # of PyYAML's constructors: ValueError, KeyError, IndexError, ... by the kind of value
            value = None
        if isinstance(value, int) and value.bit_length() > 64:
            value, expected = None, f"{expected} of at most 64 bits"
        if isinstance(value, float) and (math.isnan(value) or (math.isinf(value) and "inf" not in node.value.lower())):
            value, expected = None, f"{expected}, finite"
        if value is None and node.tag != _NULL:
            self._report(node, loc, describe(node.value), expected)
        return value

    def _report_keys(self, node: yaml.MappingNode, loc: Loc) -> None:
        """Note repeated keys, and those that are no text."""
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            line = key_node.start_mark.line + 1
            if (key := _key_of(key_node)) is None:
                found = f"key {key_node.value}" if isinstance(key_node, yaml.ScalarNode) else "a key of several values"
                mark = Mark(self.file, line, loc)
                self.problems.append(Problem(mark, shortened(found), "a key that is text"))
            elif key in seen:
                found = f"repeated key; it stands in line {seen[key]} already"
                self.problems.append(Problem(Mark(self.file, line, (*loc, key)), found, "each key once"))
            else:
                seen[key] = line

    def _pairs(self, node: yaml.MappingNode, loc: Loc) -> dict[str, yaml.Node]:
        """Keys and values of a mapping, those of its merge keys (``<<``) first; the keys' lines are noted."""
        found: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                several = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for other in reversed(several):
                    found |= self._inherited(other, loc)
        for key_node, value_node in node.value:
            key = _key_of(key_node)
            if key is not None and key_node.tag != _MERGE:
                found[key], at = value_node, (*loc, key)
                self.marks[at] = self._mark(key_node, at)
        return found

    def _inherited(self, node: yaml.Node, loc: Loc) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            self._report(node, loc, "a merge key of something else", "a mapping behind <<")
            return {}
        for _ in node.value:
            self._seen(node)
        if not self._enter(node, loc):
            return {}
        try:
            return self._pairs(node, loc)
        finally:
            self._open.pop()


def _key_of(node: yaml.Node) -> str | None:
    """The text of a key; None: it is none."""
    return node.value if isinstance(node, yaml.ScalarNode) and node.tag in _AS_TEXT else None
