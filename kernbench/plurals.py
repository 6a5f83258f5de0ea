"""Numbers of things in sentences: ``1 call``, ``3 calls``."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "", spec: str = "") -> str:
    """The number, and the noun in the form that belongs to it.

    Args:
        number: how many.
        noun: one of them.
        plural: several, where that is not the noun with an ``s``.
        spec: how the number is written, as :func:`format` takes it: ``","`` for ``1,024 operations``.
    """
    return f"{number:{spec}} {noun if number == 1 else plural or noun + 's'}"
