"""Which private names of other packages a module of kernbench uses, read off its code."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType


def private_names(module: ModuleType) -> set[str]:
    """Dotted names with a part that begins with an underscore: as attributes, imported, or given as text to ``patches.set``.

    A name that the code gives to something dotted (``c10d = torch.distributed.distributed_c10d``) stands for that. ``module``
    of a function ``install(patches, module)`` is what the constant ``MODULE`` names.
    """
    reader = _Reader({"module": module.MODULE} if hasattr(module, "MODULE") else {})
    reader.visit(ast.parse(inspect.getsource(module)))
    return {name for name in reader.found if _is_private(name)}


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


class _Reader(ast.NodeVisitor):
    def __init__(self, known: dict[str, str]) -> None:
        self.known = known
        self.found: set[str] = set()

    def dotted(self, node: ast.AST | None) -> str | None:
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        if isinstance(node, ast.Subscript) and self.dotted(node.value) == "sys.modules":
            return _text(node.slice)
        if isinstance(node, ast.Call) and self.dotted(node.func) == "sys.modules.get":
            return _text(node.args[0])
        return None

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            if not each.name.startswith("kernbench"):
                self.known[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module is None or node.module.startswith("kernbench"):
            return
        for each in node.names:
            self.known[each.asname or each.name] = f"{node.module}.{each.name}"
            self.found.add(f"{node.module}.{each.name}")

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if len(values) == len(names):
                for name, value in zip(names, values, strict=True):
                    self._name(name, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        self._name(node.target, node.value)

    def _name(self, target: ast.AST, value: ast.AST | None) -> None:
        if isinstance(target, ast.Name):
            dotted = self.dotted(value)
            if dotted is not None:
                self.known[target.id] = dotted
            else:
                self.known.pop(target.id, None)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = self.dotted(node)
        if dotted is None:
            self.generic_visit(node)
        else:
            self.found.add(dotted)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "set" and len(node.args) == 3:
            owner, name = self.dotted(node.args[0]), _text(node.args[1])
            if owner is not None and name is not None:
                self.found.add(f"{owner}.{name}")


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
