"""A grid of parameters: the product of named axes, less the points that a filter rejects.

Used wherever a description says "each of these with each of those": variants of kernels, simulations of a sweep.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kernbench.errors import ConfigError

Point: TypeAlias = dict[str, Any]
Filter: TypeAlias = "str | Callable[[Point], bool]"

_FUNCTIONS = {fn.__name__: fn for fn in (abs, all, any, bool, float, int, isinstance, len, max, min, str, sum)}

TEXT = frozenset({"endswith", "lower", "startswith", "upper"})
"""Methods of text that an expression may call."""

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.Constant, ast.Name,
    ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.GeneratorExp, ast.ListComp, ast.comprehension,
    ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def expand(axes: Mapping[str, Sequence[Any]], where: Iterable[Filter] = ()) -> list[Point]:
    """Every combination of the axes' values that passes all filters, the last axis running fastest.

    Args:
        axes: name to values. No axis gives one point without parameters.
        where: expressions over the axes' names (``"world_size <= 4 or push"``), or functions of the point.

    Raises:
        ConfigError: an axis has no value, or a filter cannot be evaluated; the message names it.
    """
    for name, values in axes.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            raise ConfigError(f"axis {name!r} is {values!r}; expected a list of values")
        if not values:
            raise ConfigError(f"axis {name!r} has no values")
    filters = [_as_function(each, axes) for each in where]
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [point for point in points if all(keep(point) for keep in filters)]


def label(point: Mapping[str, Any]) -> str:
    """``"dtype=fp16,world_size=8"``; text that is no word is quoted, so that ``1`` and ``"1"`` differ."""
    return ",".join(
        f"{name}={value if not isinstance(value, str) or value.isidentifier() else repr(value)}"
        for name, value in point.items()
    )


def expression(text: str, names: Iterable[str], what: str = "expression") -> Callable[[Point], Any]:
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
    may = f"it may use {', '.join(known)} and {', '.join(sorted(_FUNCTIONS))}"
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{what} {text!r} is not an expression: {getattr(error, 'msg', error)}") from None
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in {*known, *_FUNCTIONS, *bound}:
            raise ConfigError(f"{what} {text!r}: there is no {node.id!r}; {may}")
        if isinstance(node, ast.Attribute) and node.attr in TEXT:
            continue
        if not isinstance(node, _ALLOWED):
            raise ConfigError(f"{what} {text!r}: {type(node).__name__} has no place in it; {may}")
    code = compile(tree, f"<{what}>", "eval")

    def evaluate(point: Point) -> Any:
        try:
            return eval(code, {"__builtins__": {}, **_FUNCTIONS, **point})
        except Exception as error:
            raise ConfigError(
                f"{what} {text!r} fails at {label(point)}: {type(error).__name__}: {error}; {may}"
            ) from None

    return evaluate


def _as_function(condition: Filter, names: Iterable[str]) -> Callable[[Point], Any]:
    return expression(condition, names, "filter") if isinstance(condition, str) else condition
