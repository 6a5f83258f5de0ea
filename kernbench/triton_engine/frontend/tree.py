"""The tree of operations that printed TTIR describes: functions of regions of blocks of operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .locations import Loc
from .types import Ty


@dataclass
class Op:
    """One operation. ``operands`` and ``results`` are SSA names; ``groups`` keeps bracketed operand lists."""

    name: str
    operands: list[str]
    results: list[str]
    operand_types: list[Ty]
    result_types: list[Ty]
    attrs: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    successors: list[tuple[str, list[str]]] = field(default_factory=list)
    symbol: str = ""
    text: str = ""
    loc: Loc = field(default_factory=Loc)


@dataclass
class RegionBlock:
    """Operations in order, with the arguments that branches to ``label`` pass."""

    label: str
    args: list[tuple[str, Ty]]
    ops: list[Op] = field(default_factory=list)


@dataclass
class Region:
    """Blocks; the first is where it is entered."""

    blocks: list[RegionBlock] = field(default_factory=list)


@dataclass
class Function:
    """One ``tt.func``: a kernel, or a helper that was not inlined."""

    name: str
    args: list[tuple[str, Ty]]
    result_types: list[Ty]
    body: Region
    public: bool
    loc: Loc
