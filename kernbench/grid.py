"""A grid of parameters: the product of named axes, less the points that a filter rejects.

Used wherever a description says "each of these with each of those": variants of kernels, simulations of a sweep.
"""

from __future__ import annotations

import ast
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from kernbench.errors import ConfigError
from kernbench.input_files import shortened

Point: TypeAlias = dict[str, Any]
Filter: TypeAlias = "str | Callable[[Point], bool]"


def cdiv(a: Any, b: object) -> Any:
    """``a / b``, rounded up."""
    return -(-a // b)


_FUNCTIONS = {fn.__name__: fn for fn in (abs, all, any, bool, cdiv, float, int, isinstance, len, max, min, str, sum)}

MOST_POINTS = 1_000_000
"""Points of a grid."""

_LONGEST = 2000  # characters of an expression
_MOST_LOOPS = 1
_MOST_BITS = 4096  # of a whole number
_MOST_ITEMS = 1000  # of text or a list

TEXT = frozenset({"endswith", "lower", "startswith", "upper"})
"""Methods of text that an expression may call."""

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.Constant, ast.Name,
    ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.GeneratorExp, ast.ListComp, ast.comprehension,
    ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def expand(axes: Mapping[str, Sequence[object]], where: Iterable[Filter] = ()) -> list[Point]:
    """Every combination of the axes' values that passes all filters, the last axis running fastest.

    Args:
        axes: name to values. No axis gives one point without parameters.
        where: expressions over the axes' names (``"world_size <= 4 or push"``), or functions of the point.

    Raises:
        ConfigError: an axis has no value, or a filter cannot be evaluated; the message names it.
    """
    for name, values in axes.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            raise ConfigError(f"axis {shortened(name)!r} is {shortened(repr(values))}; expected a list of values")
        if not values:
            raise ConfigError(f"axis {shortened(name)!r} has no values")
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_POINTS:
        raise ConfigError(f"the grid has {count:.3g} points; expected at most {MOST_POINTS:,}: give axes fewer values")
    filters = [_as_function(each, axes) for each in where]
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [point for point in points if all(keep(point) for keep in filters)]


def label(point: Mapping[str, object]) -> str:
    """``"dtype=fp16,world_size=8"``; text that is no word is quoted, so that ``1`` and ``"1"`` differ."""
    return ",".join(
        f"{name}={value if not isinstance(value, str) or value.isidentifier() else repr(value)}"
        for name, value in point.items()
    )


def expression(text: str, names: Iterable[str], what: str = "expression") -> Callable[[Point], object]:
    """A function of a point that evaluates an expression over its names: arithmetic, comparisons, tests, a few functions.

    What could do more (attributes but those of text in ``TEXT``, imports, names that are not the point's) is refused.

    Args:
        text: ``"tp * pp <= gpus"``.
        names: of a point.
        what: what messages call it.

    Raises:
        ConfigError: it is none, or uses what is not there; so does the function, if it fails at a point.
    """
    known = [*names]
    may = f"it may use {shortened(', '.join(known), 400)} and {', '.join(sorted(_FUNCTIONS))}"
    shown = repr(shortened(text, 200))
    try:
        tree = parsed(text)
    except ValueError as error:
        raise ConfigError(f"{what} {shown} is not an expression: {error}") from None
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in {*known, *_FUNCTIONS, *bound}:
            raise ConfigError(f"{what} {shown}: there is no {shortened(node.id)!r}; {may}")
        if isinstance(node, ast.Attribute) and node.attr in TEXT:
            continue
        if not isinstance(node, _ALLOWED):
            raise ConfigError(f"{what} {shown}: {type(node).__name__} has no place in it; {may}")
    if sum(isinstance(node, ast.comprehension) for node in ast.walk(tree)) > _MOST_LOOPS:
        raise ConfigError(f"{what} {shown}: more than one loop has no place in it; {may}")
    with _quiet():
        code = compile(ast.fix_missing_locations(_Bounded().visit(tree)), f"<{what}>", "eval")

    def evaluate(point: Point) -> object:
        try:
            return eval(code, {"__builtins__": {}, **_FUNCTIONS, **_BOUNDED, **point})
        except Exception as error:
            reason = shortened(f"{type(error).__name__}: {error}", 200)
            raise ConfigError(f"{what} {shown} fails at {shortened(label(point), 400)}: {reason}; {may}") from None

    return evaluate


def parsed(text: str) -> ast.Expression:
    """The syntax tree of an expression. Raises ValueError, with the reason, if it is none."""
    if len(text) > _LONGEST:
        raise ValueError(f"it has more than {_LONGEST} characters")
    try:
        with _quiet():
            return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ValueError(shortened(getattr(error, "msg", error), 200)) from None
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deeply") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Python thinks of the expression (``1 is 1``)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _power(base: object, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _MOST_BITS:
        raise ValueError("the number is too large")
    return base**exponent


def _shifted(value: object, places: Any) -> Any:
    if isinstance(places, int) and places > _MOST_BITS:
        raise ValueError("the number is too large")
    return value << places


def _times(left: object, right: Any) -> Any:
    for several, count in ((left, right), (right, left)):
        if isinstance(several, (str, list, tuple)) and isinstance(count, int) and len(several) * count > _MOST_ITEMS:
            raise ValueError("text or a list becomes too long")
    return left * right


def _modulo(left: object, right: Any) -> Any:
    if isinstance(left, str):
        raise ValueError("text has no remainder")
    return left % right


_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Pow: _power, ast.LShift: _shifted, ast.Mult: _times, ast.Mod: _modulo,
}  # fmt: skip
_BOUNDED = {function.__name__: function for function in _OPERATIONS.values()}


class _Bounded(ast.NodeTransformer):
    """Has operations whose result may be of any size done by functions that refuse large ones."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        function = _OPERATIONS.get(type(node.op))
        if function is None:
            return node
        return ast.Call(ast.Name(function.__name__, ast.Load()), [node.left, node.right], [])


def _as_function(condition: Filter, names: Iterable[str]) -> Callable[[Point], object]:
    return expression(condition, names, "filter") if isinstance(condition, str) else condition
