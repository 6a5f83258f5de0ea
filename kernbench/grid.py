"""A grid of parameters: the product of named axes, less the points that a filter rejects.

Used wherever a description says "each of these with each of those": variants of kernels, simulations of a sweep.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kernbench.errors import ConfigError

Point: TypeAlias = dict[str, Any]
Filter: TypeAlias = "str | Callable[[Point], bool]"

_FUNCTIONS = {fn.__name__: fn for fn in (abs, all, any, bool, float, int, isinstance, len, max, min, str, sum)}


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
    filters = [_as_function(each) for each in where]
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [point for point in points if all(keep(point) for keep in filters)]


def label(point: Mapping[str, Any]) -> str:
    """``"dtype=fp16,world_size=8"``; text that is no word is quoted, so that ``1`` and ``"1"`` differ."""
    return ",".join(
        f"{name}={value if not isinstance(value, str) or value.isidentifier() else repr(value)}"
        for name, value in point.items()
    )


def _as_function(condition: Filter) -> Callable[[Point], bool]:
    if not isinstance(condition, str):
        return condition
    try:
        code = compile(condition, "<filter>", "eval")
    except SyntaxError as error:
        raise ConfigError(f"filter {condition!r} is not an expression: {error.msg}") from None

    def keep(point: Point) -> bool:
        try:
            return bool(eval(code, {"__builtins__": {}, **_FUNCTIONS}, point))
        except Exception as error:
            raise ConfigError(
                f"filter {condition!r} fails at {label(point)}: {type(error).__name__}: {error}; "
                f"it may use {', '.join(point)} and {', '.join(sorted(_FUNCTIONS))}"
            ) from None

    return keep
