"""A small canvas that writes SVG: shapes in, text out. No dependency, byte for byte the same for the same calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

Point = tuple[float, float]

_STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #1f2937 }
  .title { font-size: 22px; font-weight: 700 }
  .subtitle { font-size: 13px; fill: #4b5563 }
  .heading { font-size: 13px; font-weight: 600; fill: #374151 }
  .name { font-size: 12px; font-weight: 600 }
  .small { font-size: 10px; fill: #4b5563 }
  .frame { fill: #f9fafb; stroke: #d1d5db }
  .sip { fill: #dbeafe; stroke: #2563eb }
  .switch { fill: #fef3c7; stroke: #d97706 }
  .nic { fill: #dcfce7; stroke: #16a34a }
  .fabric { fill: #f3e8ff; stroke: #9333ea }
  .host { fill: #f3f4f6; stroke: #6b7280 }
  .die { fill: #e0f2fe; stroke: #0284c7 }
  .io { fill: #ffe4e6; stroke: #e11d48 }
  .link { fill: none; stroke: #64748b; stroke-width: 2 }
  .wrap { fill: none; stroke: #94a3b8; stroke-width: 1.6; stroke-dasharray: 5 3 }
  .rail { fill: none; stroke: #16a34a; stroke-width: 1.4 }
""".strip("\n")


@dataclass
class Canvas:
    """Shapes in drawing order. Coordinates are pixels, y grows downwards."""

    shapes: list[str] = field(default_factory=list)

    def box(self, kind: str, x: float, y: float, w: float, h: float, *, radius: float = 6, title: str = "") -> None:
        """A rounded rectangle; ``title`` shows when the pointer rests on it."""
        tip = f"<title>{escape(title)}</title>" if title else ""
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}" rx="{_n(radius)}"'
        self.shapes.append(f'<rect class="{kind}" {place}>{tip}</rect>')

    def text(self, kind: str, x: float, y: float, text: str, *, anchor: str = "middle") -> None:
        """A line of text whose ``anchor`` is at the point."""
        self.shapes.append(f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, kind: str, points: Iterable[Point], *, title: str = "") -> None:
        """Straight segments from point to point."""
        path = " L ".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self.curve(kind, f"M {path}", title=title)

    def arc(self, kind: str, start: Point, control: Point, stop: Point, *, title: str = "") -> None:
        """A quadratic curve."""
        (x, y), (cx, cy), (tx, ty) = start, control, stop
        self.curve(kind, f"M {_n(x)} {_n(y)} Q {_n(cx)} {_n(cy)} {_n(tx)} {_n(ty)}", title=title)

    def curve(self, kind: str, path: str, *, title: str = "") -> None:
        """Any path, in SVG's own language."""
        tip = f"<title>{escape(title)}</title>" if title else ""
        self.shapes.append(f'<path class="{kind}" d="{path}">{tip}</path>')

    def render(self, width: float, height: float, *, title: str, style: str = _STYLE) -> str:
        """The document; ``style``: CSS of the classes that the shapes name as their ``kind``."""
        w, h = _n(width), _n(height)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img">'
        body = "\n".join(self.shapes)
        background = f'<rect width="{w}" height="{h}" fill="#ffffff"/>'
        return f"{head}\n<title>{escape(title)}</title>\n<style>\n{style}\n</style>\n{background}\n{body}\n</svg>\n"


def _n(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
