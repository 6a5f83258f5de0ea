"""Loads and stores of tiles: strided views where addresses are affine, gathers where they are not.

An affine access of many programs is cut into *pieces* (``strided``), rectangular runs of lanes over which the address is
affine in one allocation and the mask is one box. Most accesses are one piece: a view. Every piece is checked against the
bounds of its allocation with a few integer operations (``layout``); what goes wrong is named by ``faults``. The ranks of
a batch (``per_rank``), affine tiles at irregular places (``windows``) and rows at irregular places (``rows``) have ways of
their own. Whatever is left is looked up element by element (``gathered``). ``loads`` and ``stores`` choose among these.

A turn of a kernel's loop does the same few accesses with other addresses, and cutting one into pieces took 40-80 us each
time. So what an access touches relative to its address is a ``Footprint``, kept per instruction by strides, lanes and mask;
a load places it and compares two numbers with the allocation. Lanes whose addresses are not affine (persistent kernels,
pointer tables, decoded tiles) paid that per lane; they are one ``index_select`` over a view that has a window at every
multiple of the greatest common step, and how the windows lie is kept as long as the very same array of offsets comes. All
ranks' tiles are one footprint in several allocations.

A streaming kernel wrote its result twice, to a tensor of its own and then to memory. An operation whose result is only
stored is therefore moved to just before its store, never across a write, and handed to it unevaluated (``Late``): the store
computes it into memory if the whole tile goes to one place, every element has an address of its own, and operands in the
same memory are the very same elements; else it is computed first. Only operations that IEEE arithmetic defines bit by bit
qualify (``into=`` in the table of operations), because a vector loop's elementary functions may round differently by
alignment: what gets an ``into`` must give the same bits wherever it writes. In a profile, the last operation's time stands
on the line of the store.
"""

from __future__ import annotations

from .addresses import note_rows, visit, wave_bytes
from .footprint import Piece
from .gathered import flat_index
from .loads import load
from .operands import Access
from .stores import store
from .strided import pieces

__all__ = ["Access", "Piece", "flat_index", "load", "note_rows", "pieces", "store", "visit", "wave_bytes"]
