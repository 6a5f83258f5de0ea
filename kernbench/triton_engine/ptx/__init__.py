"""The part of PTX that kernels use inline: arithmetic, packed types, predicates, vectors, signals in memory.

``parse`` turns a template into instructions, once; ``run`` executes it for all elements of all programs at once.
"""

from __future__ import annotations

from .interpreter import Stuck, run
from .parse import Assembly, AssemblyError, parse
from .state import Frame

__all__ = ["Assembly", "AssemblyError", "Frame", "Stuck", "parse", "run"]
