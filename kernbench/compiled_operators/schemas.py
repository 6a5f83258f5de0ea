"""Schemas of operators, read out of a compiled library: torch's C++ keeps the strings that operators are defined by.

A schema is ``name(Type argument, ...) -> results``. C++ writes each as a string that ends with a zero, so that it stands in
the library's constants as it was written. Which namespace it is defined in, the string does not say: that is where the
package's own Python calls it.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_ARROW = b"->"
_LONGEST = 1 << 14
"""Bytes that a schema has at most."""

_SCHEMA = re.compile(rb"\s*([A-Za-z_]\w*(?:\.\w+)?)\s*\(([^\x00]*)\)\s*->\s*([\w\[\]()?!, \t\n]+)", re.ASCII)
_USE = re.compile(rb"torch\.ops\.(\w+)\.(\w+)")


def schemas_in(library: Path) -> dict[str, str]:
    """The schemas that a compiled library defines, by name with overload, in the order in which they stand there.

    Raises OSError if it cannot be read.
    """
    found: dict[str, str] = {}
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(_ARROW)
        while at >= 0:
            begin = data.rfind(b"\0", max(0, at - _LONGEST), at) + 1
            end = data.find(b"\0", at, at + _LONGEST)
            end = at + len(_ARROW) if end < 0 else end
            matched = _SCHEMA.fullmatch(data[begin:end]) if begin else None
            if matched is not None:
                text = " ".join(matched.group().decode("ascii", "replace").split())
                found.setdefault(matched.group(1).decode(), text)
            at = data.find(_ARROW, max(end, at + len(_ARROW)))
    return found


def namespaces_used(files: Iterable[Path]) -> dict[str, frozenset[str]]:
    """The namespaces in which Python files call operators (``torch.ops.NAMESPACE.NAME``), by the operator's name."""
    used: dict[str, set[str]] = {}
    for file in files:
        for namespace, name in _USE.findall(file.read_bytes()):
            used.setdefault(name.decode(), set()).add(namespace.decode())
    return {name: frozenset(namespaces) for name, namespaces in used.items()}


def namespaces_of(name: str, used: Mapping[str, frozenset[str]], namespaces: tuple[str, ...]) -> tuple[str, ...]:
    """Where an operator is defined: of a library's ``namespaces`` those in which it is called, else the first."""
    plain = name.partition(".")[0]
    return tuple(each for each in namespaces if each in used.get(plain, ())) or namespaces[:1]
