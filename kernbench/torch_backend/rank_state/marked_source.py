"""A program's own files, compiled so that what they make of assumed numbers has their marks.

``"%.4f" % loss``, ``math.exp(loss)`` and ``100.0 * correct`` take the bare value of a number, whatever its class, and
``float(loss)`` must give one: there is nothing in Python that a number could do about it. So in a run without data the
program's files (not those of installed packages) are compiled with other calls in the place of these expressions, as pytest
does with ``assert``. For every value they do what the expressions do; lines and columns stay what they are, and no ``.pyc``
file is written. Dynamo, which traces a program's functions, finds Python's own functions there.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import statistics
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from torch.compiler import is_compiling

from kernbench.simulation.ranks.locations import is_installed, is_pythons, is_users
from kernbench.torch_backend.hollow.assumed_numbers import (
    as_float,
    as_int,
    bare,
    formatted,
    holds_marked,
    marked,
    of_one_element,
    written,
)
from kernbench.torch_backend.rank_state.replaced_attributes import PartingLoader, import_names, with_parts

_OF_MATH = """exp exp2 expm1 log log2 log10 log1p sqrt cbrt pow sin cos tan tanh sinh cosh asin acos atan atan2 fabs fmod
    hypot fsum prod sumprod dist copysign erf erfc degrees radians ldexp gamma lgamma"""
_OF_STATISTICS = "mean fmean geometric_mean harmonic_mean stdev pstdev variance pvariance"

_COMPUTE: dict[str, tuple[ModuleType, frozenset[str]]] = {
    "math": (math, frozenset(_OF_MATH.split())),
    "statistics": (statistics, frozenset(_OF_STATISTICS.split())),
}
"""Functions of Python's library that compute with numbers, and take bare values."""


@functools.cache
def _computes(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A function of :data:`_COMPUTE` that gives assumed numbers of such."""

    takes_numbers = stock.__module__ == "math"  # a tensor of one is made a number there, whose mark C would not see

    @functools.wraps(stock)
    def computes(*args: object, **kwargs: object) -> Any:
        if takes_numbers:
            args = tuple([each.item() if of_one_element(each) else each for each in args])
        if holds_marked((args, kwargs)):
            return marked(stock(*bare(args), **bare(kwargs)))
        return stock(*args, **kwargs)

    return computes


_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Pow: "pow",
}  # fmt: skip
"""Those that a float with a point on the left side works out alone, with a whole number on the right."""

_PYTHONS = {getattr(module, name) for module, names in _COMPUTE.values() for name in names if hasattr(module, name)}
_PYTHONS |= {getattr(operator, name) for name in _OPERATORS.values()}


def _marking(function: Any) -> Any:
    """What is called in the place of what a name means, which a program may have given another meaning."""
    if function is float:
        return as_float
    if function is int:
        return as_int
    if function is operator.mod:
        return formatted
    return _computes(function) if function in _PYTHONS else function


_NAMES = {
    "__kernbench_traced__": is_compiling.__name__,
    "__kernbench_marking__": _marking.__name__,
    "__kernbench_operator__": operator.__name__,
    "__kernbench_written__": written.__name__,
}
"""What the code calls, by what this module calls it. The code imports them itself, for it may be ``runpy`` that executes it."""


def compiled(source: bytes | str, path: str) -> CodeType:
    """The code of a module. Raises SyntaxError, as ``compile`` does."""
    tree = ast.parse(source, path)
    calls = _Calls()
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            calls.modules.update({name.asname or name.name: name.name for name in each.names})
        elif isinstance(each, ast.ImportFrom) and each.module in _COMPUTE and not each.level:
            functions = _COMPUTE[each.module][1]
            calls.functions |= {name.asname or name.name for name in each.names if name.name in functions}
    tree = calls.visit(tree)
    import_names(tree, __name__, _NAMES)
    tree = with_parts(tree)
    code: CodeType = compile(tree, path, "exec", dont_inherit=True)
    return code


class _Calls(ast.NodeTransformer):
    """Puts calls in the place of the expressions.

    Attributes:
        modules: what the file calls the modules that it imports.
        functions: names in it that may mean functions that lose marks.
    """

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        self.functions = {"float", "int"}

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """``text % values``, where one can see that the left side is a text, or that the right side is values of one; and what
        a float that is written there does with a number."""
        self.generic_visit(node)
        name = None
        if isinstance(node.op, ast.Mod):
            name = "mod" if _is_text(node.left) or isinstance(node.right, ast.Tuple | ast.Dict) else None
        elif isinstance(node.left, ast.Constant) and isinstance(node.left.value, float):
            name = None if isinstance(node.right, ast.Constant) else _OPERATORS.get(type(node.op))
        if name is None:
            return node
        function = ast.Attribute(_name("__kernbench_operator__", node), name, ast.Load())
        return _call(ast.copy_location(function, node), node, [node.left, node.right])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``float(value)``, ``math.exp(value)``."""
        self.generic_visit(node)
        match node.func:
            case ast.Name(id=name) if name in self.functions and node.args:
                return _call(node.func, node, node.args, node.keywords)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if self.modules.get(owner) in _COMPUTE:
                if name in _COMPUTE[self.modules[owner]][1]:
                    return _call(node.func, node, node.args, node.keywords)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """``tensor[index] = value``."""
        self.generic_visit(node)
        if len(node.targets) == 1:
            node.value = _written(node.targets[0], node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """``tensor[index] += value``."""
        self.generic_visit(node)
        node.value = _written(node.target, node.value)
        return node


def _written(target: ast.expr, value: ast.expr) -> ast.expr:
    """``value if __kernbench_traced__() else __kernbench_written__(tensor, value)``, of a target that is ``tensor[...]``."""
    match target, value:
        case _, ast.Constant():
            return value
        case ast.Subscript(value=ast.Name(id=tensor)), _:
            written = ast.Call(_name("__kernbench_written__", value), [_name(tensor, value), value], [])
            traced = ast.Call(_name("__kernbench_traced__", value), [], [])
            chosen = ast.IfExp(*(ast.copy_location(each, value) for each in (traced, value, written)))
            return ast.copy_location(chosen, value)
    return value


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _name(name: str, place: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Name(name, ast.Load()), place)


def _call(function: ast.expr, place: ast.expr, args: list[ast.expr], keywords: Any = ()) -> ast.expr:
    """``(function if __kernbench_traced__() else __kernbench_marking__(function))(*args, **keywords)``."""

    def called(what: ast.expr, *values: ast.expr) -> ast.expr:
        return ast.copy_location(ast.Call(what, list(values), []), place)

    marks = called(_name("__kernbench_marking__", place), function)
    chosen = ast.IfExp(called(_name("__kernbench_traced__", place)), function, marks)
    return ast.copy_location(ast.Call(ast.copy_location(chosen, place), args, list(keywords)), place)


class MarkedLoader(SourceFileLoader):
    """Loads a module so."""

    def get_code(self, fullname: str) -> CodeType:
        """Compiled each time: the files beside it are those of a Python that compiles otherwise."""
        path = self.get_filename(fullname)
        return compiled(self.get_data(path), path)


def with_marks(spec: ModuleSpec) -> ModuleSpec:
    """``spec``, whose loader is a :class:`MarkedLoader` if it is a source file of the program's own."""
    origin = spec.origin or ""
    if (
        type(spec.loader) in (SourceFileLoader, PartingLoader)
        and isinstance(spec.loader, SourceFileLoader)
        and is_users(origin)
        and not is_installed(origin)
        and not is_pythons(origin)
    ):
        spec.loader = MarkedLoader(spec.loader.name, spec.loader.path)
    return spec
