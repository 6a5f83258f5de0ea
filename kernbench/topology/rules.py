"""Rules that join several keys of a description: what pydantic's per-field checks cannot see.

Each rule looks at the raw document and says nothing about a value that is missing or malformed (the field check has
said so already); thus one wrong value never hides another complaint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernbench.errors import ConfigError
from kernbench.topology.document import Document, Loc
from kernbench.topology.problems import Problem
from kernbench.topology.shipped import find_config
from kernbench.topology.system import GRID_TOPOLOGIES, SIP_TOPOLOGIES, IpcqSpec
from kernbench.topology.units import MAX_SIPS_PER_NODE, SIZE, QuantityError

Rule = Callable[[Document, Loc], Iterator[Problem]]


def system_rules(document: Document) -> Iterator[Problem]:
    """Complaints about a whole system document; its device and fabric have been put in place."""
    for rule in _SYSTEM_RULES:
        yield from rule(document, ("system",))
    if isinstance(document.get(("system", "sips", "device")), dict):
        yield from device_rules(document, ("system", "sips", "device"))


def device_rules(document: Document, at: Loc) -> Iterator[Problem]:
    """Complaints about the device at ``at``."""
    for rule in _DEVICE_RULES:
        yield from rule(document, at)


def _grid(document: Document, at: Loc) -> Iterator[Problem]:
    sips = (*at, "sips")
    kind = document.get((*sips, "topology"))
    given = {side: document.get((*sips, side)) for side in ("w", "h")}
    if kind in GRID_TOPOLOGIES:
        for side, value in given.items():
            if value is None:
                yield Problem(
                    document.mark((*sips, side)), "missing", f"the grid's `{side}`: topology {kind} needs w and h"
                )
        numbers = (document.get((*sips, "count")), *given.values())
        count, w, h = (_positive(number, MAX_SIPS_PER_NODE) for number in numbers)
        if count and w and h and w * h != count:
            fits = ", ".join(f"{d} x {count // d}" for d in range(1, count + 1) if count % d == 0)
            found = f"w x h = {w} x {h} = {w * h}"
            yield Problem(
                document.mark((*sips, "topology")), found, f"a grid of {count} SIPs, as system.sips.count says: {fits}"
            )
    elif kind in SIP_TOPOLOGIES or kind is None:
        for side, value in given.items():
            if value is not None:
                mark, grids = document.mark((*sips, side)), " and ".join(GRID_TOPOLOGIES)
                yield Problem(mark, f"{value!r} with topology {kind or 'ring_1d'}", f"`{side}` only with {grids}")


def _link(document: Document, at: Loc) -> Iterator[Problem]:
    sips = (*at, "sips")
    count = _count(document, (*sips, "count"))
    if count and count > 1 and document.get((*sips, "link")) is None:
        yield Problem(
            document.mark((*sips, "link")), "missing", f"the link that joins {count} SIPs: bandwidth and latency"
        )
    kind = document.get((*sips, "topology"))
    if document.get((*sips, "switch")) is not None and kind != "switch" and (kind is None or kind in SIP_TOPOLOGIES):
        yield Problem(
            document.mark((*sips, "switch")), f"a switch with topology {kind or 'ring_1d'}", "topology: switch"
        )


def _nodes(document: Document, at: Loc) -> Iterator[Problem]:
    nodes, nics, sips = (_count(document, (*at, *key)) for key in (("nodes",), ("nics", "count"), ("sips", "count")))
    if nodes and nodes > 1:
        for key, what in (("nics", "the NICs of each node"), ("fabric", "the fabric that joins them")):
            if document.get((*at, key)) is None:
                yield Problem(document.mark((*at, key)), "missing", f"{what}, as there are {nodes} nodes")
    if nics and sips and nics % sips and sips % nics:
        yield Problem(
            document.mark((*at, "nics", "count")), str(nics), f"a divisor or a multiple of the {sips} SIPs per node"
        )


def _ipcq(document: Document, at: Loc) -> Iterator[Problem]:
    default = IpcqSpec.model_fields["queues"].default
    queues = _count(document, (*at, "ipcq", "queues")) or default
    pes = _count(document, (*at, "sips", "device", "pes"))
    if pes and queues > pes:
        yield Problem(
            document.mark((*at, "ipcq", "queues")), str(queues), f"at most one queue per PE, of which there are {pes}"
        )


def _cubes(document: Document, at: Loc) -> Iterator[Problem]:
    if not isinstance(document.get((*at, "cubes")), dict):
        return
    w, h, per_cube = (_count(document, (*at, "cubes", key)) for key in ("w", "h", "pes"))
    pes = _count(document, (*at, "pes"))
    if w and h and per_cube and pes and w * h * per_cube != pes:
        expected = f"{w} x {h} cubes of {per_cube} PEs = {w * h * per_cube}"
        yield Problem(document.mark((*at, "pes")), str(pes), expected)
    for key, side in (("x", w), ("y", h)):
        place = document.get((*at, "cubes", "io_die", key))
        if side and isinstance(place, int) and place >= side:
            mark = document.mark((*at, "cubes", "io_die", key))
            yield Problem(mark, str(place), f"a cube of the mesh: 0 to {side - 1}")
    channels = _count(document, (*at, "hbm", "channels"))
    if w and h and channels and channels % (w * h):
        yield Problem(document.mark((*at, "hbm", "channels")), str(channels), f"a multiple of the {w * h} cubes")


def _block(document: Document, at: Loc) -> Iterator[Problem]:
    size, block = (_bytes(document, (*at, "pe", *key)) for key in (("tcm", "size"), ("tcm_per_block",)))
    if size and block and block > size:
        mark = document.mark((*at, "pe", "tcm_per_block"))
        yield Problem(mark, SIZE.format(block), f"at most the PE's TCM, {SIZE.format(size)}")


_SYSTEM_RULES: tuple[Rule, ...] = (_grid, _link, _nodes, _ipcq)


def _generation(document: Document, at: Loc) -> Iterator[Problem]:
    name = document.get((*at, "generation"))
    if isinstance(name, str):
        try:
            find_config("generations", name)
        except ConfigError as error:
            mark = document.mark((*at, "generation"))
            yield Problem(mark, str(error), "a shipped generation of devices, or the path of a file")


_DEVICE_RULES: tuple[Rule, ...] = (_cubes, _block, _generation)


def _positive(value: object, most: int = 2**31) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most else None


def _count(document: Document, loc: Loc) -> int | None:
    return _positive(document.get(loc))


def _bytes(document: Document, loc: Loc) -> float | None:
    try:
        return SIZE.parse(document.get(loc))
    except QuantityError:
        return None
