"""What a program puts in the place of attributes of classes and modules that ranks share is there for the rank that did.

Programs replace methods of torch's classes, functions of its modules and ``print``, each process for itself: a method that
calls the one before would be wrapped once by every rank, and all would go on with the functions and groups of the last. So the
files that ranks execute are looked through for such statements (``torch.optim.AdamW.step = step``, ``builtins.print = ...``,
``setattr(nn.Linear, ...)``); one that has some is compiled with a call around the owner, by which its attribute becomes each
rank's own before it is set. Files without any are loaded as they are (ADR 0262).

An owner is known by what a file calls it: a name that it imports, ``cls``, or ``target`` (pytest's ``monkeypatch``). Another
name for it is not followed.
"""

from __future__ import annotations

import ast
import functools
import marshal
import os
import re
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.rank_state.plain_files import PlainFiles

_SET = re.compile(rb"^[ \t]*(?:del[ \t]+)?([A-Za-z_]\w*)(?:\.\w+)+[ \t]*(?:[-+*/|&@]?=(?!=)|$)", re.MULTILINE)
_CALLED = re.compile(rb"\b(?:set|del)attr\(\s*([A-Za-z_]\w*)")
_IMPORTS = re.compile(rb"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_WORD = re.compile(rb"[A-Za-z_]\w*")

_OWNERS_OF_STATE = sys.stdlib_module_names - {"builtins"}
"""Python's own modules: what a process has of these is kept per rank where it is known (:mod:`.process_state`)."""

_ALWAYS = frozenset({"cls", "target"})
"""What functions call an owner that they are given."""

_ALWAYS_WRITTEN = frozenset(name.encode() for name in _ALWAYS)

_PART, _SETATTR, _DELATTR = "__kernbench_part__", "__kernbench_setattr__", "__kernbench_delattr__"


def _no_rank(owner: Any, name: str) -> None:
    """No ranks run: what is set is set."""


noted: Callable[[Any, str], None] = _no_rank
"""Called with a class or a module and the name of an attribute that is about to be set or deleted."""


def part(owner: Any, name: str) -> Any:
    """``owner``, of which ``name`` is about to be set: of a class or a module it becomes each rank's own."""
    if isinstance(owner, type | ModuleType):
        noted(owner, name)
    return owner


def set_attribute(owner: object, name: str, value: Any) -> None:
    """``setattr``, likewise."""
    setattr(part(owner, name), name, value)


def delete_attribute(owner: Any, name: str) -> None:
    """``delattr``, likewise."""
    delattr(part(owner, name), name)


_NAMES = {_PART: part.__name__, _SETATTR: set_attribute.__name__, _DELATTR: delete_attribute.__name__}


def install(
    patches: Patches, modules: ModuleGlobals, is_own: Callable[[str], bool], current_rank: Callable[[], int | None]
) -> None:
    """Notice what ranks replace. ``is_own``: whether each rank executes a module of that name itself."""

    def note(owner: Any, name: str) -> None:
        module = owner.__module__ if isinstance(owner, type) else owner.__name__
        if current_rank() is None or str(module).partition(".")[0] in _OWNERS_OF_STATE:
            return
        if isinstance(owner, type):
            if not (is_own(str(module)) and _is_there(owner)):
                modules.part(owner, name)
        elif type(owner) is ModuleType and not is_own(str(module)):
            modules.part(owner, name)

    patches.set(sys.modules[__name__], "noted", note)


def _is_there(cls: type) -> bool:
    """Whether it is a class of the rank that runs: the subclasses of torch's are those of all ranks."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        if name == "<locals>":
            return True
        found = getattr(found, name, None)
    return found is cls or found is None


def may_replace(source: bytes) -> bool:
    """Whether a file may have such a statement: one that sets an attribute of something that it imports, or of ``cls``."""
    owners = {*_SET.findall(source), *_CALLED.findall(source)} - {b"self"}
    if not owners:
        return False
    return not owners.isdisjoint(_ALWAYS_WRITTEN) or any(
        owners.intersection(_WORD.findall(names)) for names in _IMPORTS.findall(source)
    )


def with_parts(tree: ast.Module) -> ast.Module:
    """The tree of a module, with the calls."""
    _parted(tree)
    return tree


def _parted(tree: ast.Module) -> bool:
    """Put the calls into a module's tree; whether there are any."""
    calls = _PartingCalls(_imported(tree))
    calls.visit(tree)
    if calls.found:
        import_names(tree, __name__, _NAMES)
    return calls.found


def import_names(tree: ast.Module, module: str, names: dict[str, str]) -> None:
    """Put an import (what the code calls, by what ``module`` calls it) behind what must be first: docstring, ``__future__``."""
    first = 0 if ast.get_docstring(tree, clean=False) is None else 1
    while first < len(tree.body) and getattr(tree.body[first], "module", None) == "__future__":
        first += 1
    if first < len(tree.body):
        aliases = [ast.alias(theirs, ours) for ours, theirs in names.items()]
        node = ast.copy_location(ast.ImportFrom(module, aliases, 0), tree.body[first])
        tree.body.insert(first, ast.fix_missing_locations(node))


def _imported(tree: ast.Module) -> set[str]:
    """Names that mean what the file imports, but for parts of its own package and Python's modules."""
    names = {*_ALWAYS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                each.asname or each.name.partition(".")[0]
                for each in node.names
                if each.name.partition(".")[0] not in _OWNERS_OF_STATE
            }
        elif (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").partition(".")[0] not in _OWNERS_OF_STATE
        ):
            names |= {each.asname or each.name for each in node.names}
    return names


class _PartingCalls(ast.NodeTransformer):
    """Puts the calls around the owners.

    Attributes:
        found: whether there are any.
    """

    def __init__(self, owners: set[str]) -> None:
        self._owners = owners
        self.found = False

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """``owner.name`` where it is set or deleted."""
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) and self._is_owner(node.value):
            self.found = True
            name = ast.copy_location(ast.Constant(node.attr), node.value)
            call = ast.Call(_name(_PART, node.value), [node.value, name], [])
            node.value = ast.copy_location(call, node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``setattr(owner, name, value)``, ``delattr(owner, name)``."""
        self.generic_visit(node)
        match node.func, node.args:
            case ast.Name(id="setattr" | "delattr" as called), [owner, *_] if self._is_owner(owner):
                self.found = True
                node.func = _name(_SETATTR if called == "setattr" else _DELATTR, node.func)
        return node

    def _is_owner(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._owners


def _name(name: str, place: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Name(name, ast.Load()), place)


def compiled(source: bytes | str, path: str) -> CodeType:
    """The code of a module. Raises SyntaxError, as ``compile`` does."""
    code: CodeType = compile(with_parts(ast.parse(source, path)), path, "exec", dont_inherit=True)
    return code


_plain = PlainFiles(__file__)


@functools.lru_cache(maxsize=4096)
def _found(path: str, changed: int, size: int) -> bytes | None:
    """The code of the file at ``path``, marshalled; None if it has no such statement."""
    line = _plain.line(path, changed, size)
    if _plain.has(line):
        return None
    with open(path, "rb") as file:
        source = file.read()
    if may_replace(source) and _parted(tree := ast.parse(source, path)):
        return marshal.dumps(compile(tree, path, "exec", dont_inherit=True))
    _plain.add(line)
    return None


class PartingLoader(SourceFileLoader):
    """Loads a module so. Ranks have code of their own, for ``torch.compile`` keeps what it has compiled with it."""

    def get_code(self, fullname: str) -> CodeType | None:
        """What Python has compiled, unless the file has such a statement."""
        path = self.get_filename(fullname)
        try:
            stat = os.stat(path)
            code = _found(path, stat.st_mtime_ns, stat.st_size)
        except (OSError, SyntaxError, ValueError, RecursionError):
            code = None
        if code is None:
            return super().get_code(fullname)
        own: CodeType = marshal.loads(code)
        return own
