"""Text with settings in it: ``"--tp={tp}"``, ``"{gpus // tp}"``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

from kernbench.errors import ConfigError
from kernbench.grid import TEXT, Point, expression, parsed
from kernbench.input_files import shortened
from kernbench.suggestions import did_you_mean

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


class Template:
    """Text in which ``{expression}`` stands for its value at a point.

    Braces that hold no expression over a name (``{}``, JSON's ``{"a": 1}``) stay as they are; ``{{`` and ``}}`` are braces.

    Args:
        text: with templates.
        names: that expressions may use.
        what: what messages call it.

    Attributes:
        used: names that it uses.

    Raises:
        ConfigError: it uses a name that there is not.
    """

    def __init__(self, text: str, names: Sequence[str], what: str) -> None:
        self.used: set[str] = set()
        self._parts: list[str | Callable[[Point], object]] = []
        end = 0
        for found in _PART.finditer(text):
            self._parts.append(text[end : found.start()])
            end = found.end()
            inside = found[1]
            if inside is None:
                self._parts.append(found[0][0])
            elif wanted := _names_in(inside):
                if unknown := sorted(wanted - set(names) - _FUNCTIONS):
                    raise ConfigError(
                        f"{what} {shortened(text, 200)!r}: there is no setting {shortened(unknown[0])!r}; there are "
                        f"{', '.join(names)}{did_you_mean(unknown[0], names)}. A brace that is no setting's is written "
                        "twice: {{"
                    )
                self.used |= wanted
                self._parts.append(expression(inside, names, what))
            else:
                self._parts.append(found[0])
        self._parts.append(text[end:])

    def at(self, point: Point) -> str:
        """The text at a point. Raises ConfigError if an expression fails there."""
        return "".join(part if isinstance(part, str) else str(part(point)) for part in self._parts)


_FUNCTIONS = {"abs", "float", "int", "len", "max", "min", "round", "str", "sum", *TEXT}


def _names_in(text: str) -> set[str]:
    """The names of an expression; none of text that is no expression."""
    try:
        tree = parsed(text)
    except ValueError:
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
