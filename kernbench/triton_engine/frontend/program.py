"""The flat program that the machine runs: basic blocks of instructions, numbered in source order.

Structured control flow (``scf``), branches (``cf``) and calls of functions that were not inlined all become jumps
between blocks. Block numbers follow source order, so "the batch with the lowest block runs first" makes lanes
reconverge after every ``if`` and loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernbench.triton_engine.ops.registry import OpDef

from .locations import Loc
from .types import Ty


@dataclass(eq=False)
class OpInfo:
    """What is known of one operation before it runs: the static side of an instruction."""

    index: int
    name: str
    #: Its row in the table of operations.
    row: OpDef
    attrs: dict[str, Any]
    words: list[str]
    groups: list[int]
    operand_types: list[Ty]
    result_types: list[Ty]
    loc: Loc
    text: str
    kernel: str
    regions: list[SubProgram] = field(default_factory=list)
    #: The result of a load may alias memory: nothing writes memory while it lives.
    view_ok: bool = False
    #: Operand positions whose tensor may be overwritten by the result.
    reusable: tuple[int, ...] = ()
    result_used: bool = True
    #: Of an atomic update: all elements of the tile are one word, and the compiler sees it (:mod:`.by_values`).
    uniform: bool = False
    #: Of a memory access: all threads of the program may have met since the access before it (:mod:`.meetings`).
    met: bool = False
    #: Only the store that follows looks at the result: it is computed there (:class:`..values.Late`).
    late: bool = False
    #: Of a memory access: what it touches relative to its address, by layout (see :mod:`..access.footprint`).
    layouts: dict[object, Any] = field(default_factory=dict)
    #: The GPU compiled for: ``cuda`` or ``hip``. Where they disagree, values are its.
    backend: str = "cuda"
    #: Threads of a program, and of a warp.
    threads: int = 128
    warp_size: int = 32

    @property
    def ty(self) -> Ty:
        """The type of the first result."""
        return self.result_types[0]


@dataclass(eq=False)
class SubProgram:
    """A straight-line region (the combine function of a reduction): argument slots, instructions, yielded slots."""

    args: tuple[int, ...]
    code: list[Instr]
    results: tuple[int, ...]
    ops: tuple[OpInfo, ...] = ()


@dataclass(eq=False)
class Instr:
    """``env[results] = fn(batch, *env[args])``, then the slots in ``kills`` are dropped."""

    info: OpInfo
    fn: Callable[..., Any]
    args: tuple[int, ...]
    results: tuple[int, ...]
    kills: tuple[int, ...] = ()


@dataclass(eq=False)
class Jump:
    """Go to ``target``, assigning ``moves`` (destination, source) in parallel. ``back``: a loop's back-edge."""

    target: int
    moves: tuple[tuple[int, int], ...] = ()
    loop: LoopInfo | None = None


@dataclass(eq=False)
class Branch:
    """Lanes where ``cond`` holds take ``then``, the others ``other``."""

    cond: int
    then: Jump
    other: Jump


@dataclass(eq=False)
class ForHead:
    """Enter ``body`` while ``iv < upper``, else go to ``exit``."""

    iv: int
    upper: int
    step: int
    body: int
    exit: int
    unsigned: bool
    loop: LoopInfo


@dataclass(eq=False)
class ForBack:
    """Advance ``iv`` by ``step``, move the loop-carried values, go to ``head``."""

    iv: int
    step: int
    head: int
    moves: tuple[tuple[int, int], ...]


@dataclass(eq=False)
class Return:
    """The end of the kernel."""


@dataclass(eq=False)
class LoopInfo:
    """A loop: where it stands, and whether it reads memory (so that its lanes may be waiting for a write)."""

    loc: Loc
    reads_memory: bool = False


Terminator = Jump | Branch | ForHead | ForBack | Return


@dataclass(eq=False)
class BasicBlock:
    """A basic block."""

    index: int
    instrs: list[Instr] = field(default_factory=list)
    term: Terminator = field(default_factory=Return)
    live_in: tuple[int, ...] = ()
    #: Slots that the terminator reads, or that are read after it.
    live_out: tuple[int, ...] = ()
    kills: tuple[int, ...] = ()
    #: All threads of a program come here together: there are tiles, or a barrier.
    meets: bool = False
    #: Before which of its instructions, as they stood in the kernel, threads wait for one another at a barrier.
    barriers: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Program:
    """A kernel, ready to be run."""

    name: str
    blocks: list[BasicBlock]
    n_slots: int
    args: list[tuple[int, Ty]]
    #: Slots with a value known now (constants).
    constants: dict[int, object]
    ops: list[OpInfo]
    #: Largest tile of the program, in elements.
    widest: int
    ttir: str = ""
    #: Threads of one program, and of a warp.
    threads: int = 128
    warp_size: int = 32
    #: Its threads are kept distinct: there is a lane for each.
    by_thread: bool = False
    #: The type of each slot.
    types: list[Any] = field(default_factory=list)

    # What :mod:`.analysis` finds
    #: Launch-invariant instructions, in order: index arithmetic, masks, loop bounds.
    invariant: list[Instr] = field(default_factory=list)
    #: Slots of scalar integers that tiles, pointers or loop bounds are built from.
    frontier: tuple[int, ...] = ()
    #: Kernel arguments (positions) that the invariant instructions depend on.
    key_args: tuple[int, ...] = ()
    #: True if a program may wait for another one, so all must be alive at once.
    waits: bool = False
    #: What it may touch (:class:`.reach.Reach`).
    reach: Any = None
    #: Slots whose tensors have no other reader.
    owned: frozenset[int] = frozenset()
    #: What :func:`kernbench.triton_engine.runners.ready` makes of it when it first runs.
    ready: Any = field(default=None, repr=False)
