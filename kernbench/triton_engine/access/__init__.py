"""Loads and stores of tiles: strided views where addresses are affine, gathers where they are not.

An affine access of many programs is cut into *pieces* (``strided``), rectangular runs of lanes over which the address is
affine in one allocation and the mask is one box. Most accesses are one piece: a view. Every piece is checked against the
bounds of its allocation with a few integer operations (``layout``); what goes wrong is named by ``faults``. The ranks of
a batch (``per_rank``), affine tiles at irregular places (``windows``) and rows at irregular places (``rows``) have ways of
their own. Whatever is left is looked up element by element (``gathered``). ``loads`` and ``stores`` choose among these.
"""

from __future__ import annotations

from .addresses import visit, wave_bytes
from .footprint import Piece
from .gathered import flat_index
from .loads import load
from .operands import Access
from .stores import store
from .strided import pieces

__all__ = ["Access", "Piece", "flat_index", "load", "pieces", "store", "visit", "wave_bytes"]
