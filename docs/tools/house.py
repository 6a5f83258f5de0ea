"""The house, drawn from its imports: ``docs/images/house.svg``.

    python docs/tools/house.py            draw it
    python docs/tools/house.py --check    exit 1 if the picture is not that of the imports

A room is a package of ``kernbench``. A room stands above all that it imports, whether at the head of a file or
within a function; imports for type checkers alone do not count. An arrow that follows from two others is left out. Imports that
would close a circle point upwards, red and dashed: of each circle the one that the fewest lines make.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/images/house.svg"

Edge = tuple[str, str]
"""The room that imports, the room that is imported."""

BOX, SLOT, HEIGHT, GAP, FLOOR, MARGIN = 186, 14, 66, 22, 46, 16
"""Pixels: width of a room and of a passing arrow, height of a room, between rooms, between floors, around the picture."""


# -- what there is ---------------------------------------------------------------------------------------------------


def find_rooms(root: Path = ROOT) -> dict[str, str]:
    """Room to what it says of itself: the first sentence of its docstring."""
    rooms = {}
    for folder in sorted(path.parent for path in (root / "kernbench").glob("*/__init__.py")):
        about = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
        rooms[folder.name] = (
            " ".join(about.partition("\n\n")[0].split()).partition(". ")[0].replace("`", "").rstrip(".")
        )
    return rooms


def imports(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Modules that a file imports when it runs, with their full names."""
    package = list(path.relative_to(root).parts[:-1])
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1]] if node.level else [])
            module = ".".join(filter(None, (base, node.module)))
            yield from ((f"{module}.{name.name}" for name in node.names) if module == "kernbench" else (module,))
        else:
            todo += ast.iter_child_nodes(node)


def find_edges(rooms: Iterable[str], root: Path = ROOT) -> Counter[Edge]:
    """How often each room imports each other one."""
    edges: Counter[Edge] = Counter()
    for room in rooms:
        for path in sorted((root / "kernbench" / room).rglob("*.py")):
            for module in imports(path, root):
                parts = module.split(".")
                other = parts[1] if parts[0] == "kernbench" and parts[1:] else ""
                if other in rooms and other != room:
                    edges[room, other] += 1
    return edges


# -- who stands where ------------------------------------------------------------------------------------------------


def reachable(start: str, edges: Iterable[Edge]) -> set[str]:
    """Rooms that ``start`` imports, directly or through others."""
    edges, found, todo = set(edges), set[str](), [start]
    while todo:
        at = todo.pop()
        new = {below for above, below in edges if above == at} - found
        found |= new
        todo += new
    return found


def upward(edges: Counter[Edge]) -> set[Edge]:
    """Edges to leave out so that no circle is left: of each circle the one with the fewest imports."""
    left, out = dict(edges), set[Edge]()
    while circular := [edge for edge in left if edge[0] in reachable(edge[1], left)]:
        lightest = min(circular, key=lambda edge: (left[edge], edge))
        out.add(lightest)
        del left[lightest]
    return out


def reduced(edges: set[Edge]) -> list[Edge]:
    """Edges that do not follow from others."""
    return sorted(edge for edge in edges if edge[1] not in reachable(edge[0], edges - {edge}))


def floors(rooms: Iterable[str], edges: set[Edge]) -> dict[str, int]:
    """Room to floor: one above the highest room that it imports; 0 is the ground."""
    level = dict.fromkeys(rooms, 0)
    for _ in level:
        for above, below in sorted(edges):
            level[above] = max(level[above], level[below] + 1)
    return level


# -- the picture -----------------------------------------------------------------------------------------------------


def draw(rooms: dict[str, str], edges: Counter[Edge]) -> str:
    """The picture, as SVG."""
    red = upward(edges)
    down = set(edges) - red
    level = floors(rooms, down)
    ways = {edge: _way(edge, level) for edge in reduced(down)}
    x = _places(level, ways)
    width = max(x[room] for room in rooms) + BOX / 2 + MARGIN
    top = max(level.values())

    def y(node: str) -> float:
        floor = level[node] if node in level else int(node.rpartition("@")[2])
        return MARGIN + (top - floor) * (HEIGHT + FLOOR)

    height = MARGIN + (top + 1) * (HEIGHT + FLOOR) - FLOOR + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="sans-serif">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for way in ways.values():
        line = [f"M{x[way[0]]:.0f} {y(way[0]) + HEIGHT:.0f}"]
        for above, below in pairwise(way):
            begin, end = (y(above) + HEIGHT, y(below))
            middle = (begin + end) / 2
            line.append(f"C{x[above]:.0f} {middle:.0f} {x[below]:.0f} {middle:.0f} {x[below]:.0f} {end:.0f}")
            if "@" in below:
                line.append(f"V{end + HEIGHT:.0f}")
        parts.append(
            f'<path d="{" ".join(line)}" fill="none" stroke="#99a" stroke-width="1.3" marker-end="url(#head)"/>'
        )
    for above, below in sorted(red):
        parts.append(
            f'<path d="M{x[above]:.0f} {y(above):.0f} L{x[below]:.0f} {y(below) + HEIGHT:.0f}" fill="none" stroke="#c22"'
            ' stroke-width="1.3" stroke-dasharray="5 4" marker-end="url(#head)"/>'
        )
    for room, about in rooms.items():
        left, head = x[room] - BOX / 2, y(room)
        parts.append(
            f'<rect x="{left:.0f}" y="{head:.0f}" width="{BOX}" height="{HEIGHT}" rx="5" fill="#eef3fb" stroke="#557"/>'
            f'<text x="{x[room]:.0f}" y="{head + 17:.0f}" text-anchor="middle" font-size="13" font-weight="bold">{room}</text>'
        )
        for number, line_of_text in enumerate(textwrap.wrap(about, 32, max_lines=3, placeholder=" ...")):
            parts.append(
                f'<text x="{x[room]:.0f}" y="{head + 32 + 12 * number:.0f}" text-anchor="middle" font-size="10" fill="#333">'
                f"{escape(line_of_text)}</text>"
            )
    return "\n".join([*parts, "</svg>", ""])


def _way(edge: Edge, level: dict[str, int]) -> list[str]:
    """The nodes of an arrow: two rooms, and a place on each floor between them."""
    above, below = edge
    return [above, *(f"{above}>{below}@{floor}" for floor in range(level[above] - 1, level[below], -1)), below]


def _places(level: dict[str, int], ways: dict[Edge, list[str]]) -> dict[str, float]:
    """Node to the x of its middle: each as near as there is room to the mean of those it is joined with."""
    nodes = dict(level) | {node: int(node.rpartition("@")[2]) for way in ways.values() for node in way if "@" in node}
    joined: dict[str, list[str]] = {node: [] for node in nodes}
    for way in ways.values():
        for above, below in pairwise(way):
            joined[above].append(below)
            joined[below].append(above)
    rows = [sorted(node for node in nodes if nodes[node] == floor) for floor in range(max(level.values()) + 1)]
    x = {node: 40.0 * place for row in rows for place, node in enumerate(row)}
    for sweep in range(40):
        for row in rows if sweep % 2 else rows[::-1]:
            wanted = {node: sum(x[other] for other in joined[node]) / max(1, len(joined[node])) for node in row}
            row.sort(key=lambda node: (wanted[node], node))
            widths = [SLOT if "@" in node else BOX for node in row]
            least = [0.0]
            for left, right in pairwise(widths):
                least.append(least[-1] + (left + right) / 2 + GAP)
            # the nearest places to the wanted ones, in this order and this far apart, are an isotonic regression
            shifted = [wanted[node] - offset for node, offset in zip(row, least, strict=True)]
            for node, offset, place in zip(row, least, _isotonic(shifted), strict=True):
                x[node] = offset + place
    start = min(x[node] - (SLOT if "@" in node else BOX) / 2 for node in nodes)
    return {node: place - start + MARGIN for node, place in x.items()}


def _isotonic(values: list[float]) -> list[float]:
    """The nearest values (least squares) that do not fall: neighbours that do are pooled."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            total, count = total + pools[-1][0], count + pools.pop()[1]
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]


def main(arguments: list[str]) -> int:
    """The command line of above; returns the exit code."""
    rooms = find_rooms()
    picture = draw(rooms, find_edges(rooms))
    if "--check" not in arguments:
        PICTURE.write_text(picture, encoding="utf-8")
    elif not PICTURE.is_file() or PICTURE.read_text(encoding="utf-8") != picture:
        print("docs/images/house.svg shows other imports than there are: run make house", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
