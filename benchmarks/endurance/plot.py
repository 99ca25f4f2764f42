"""A plot of lines over a common axis, as SVG that is readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

import msgspec

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 44
MOST = 240
"""Points of a line; of more, every so many are shown."""

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 14px; font-weight: 600; }
  .grid { stroke: #d0d7de; stroke-width: 1; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .c0 { stroke: #0969da; } .c1 { stroke: #bc4c00; } .c2 { stroke: #1a7f37; }
  text.c0 { stroke: none; fill: #0969da; } text.c1 { stroke: none; fill: #bc4c00; } text.c2 { stroke: none; fill: #1a7f37; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .grid { stroke: #3d444d; }
    .c0 { stroke: #58a6ff; } .c1 { stroke: #f0883e; } .c2 { stroke: #3fb950; }
    text.c0 { fill: #58a6ff; } text.c1 { fill: #f0883e; } text.c2 { fill: #3fb950; }
  }
"""


class Line(msgspec.Struct, frozen=True):
    """One line and its name."""

    name: str
    points: Sequence[tuple[float, float]]


def svg(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """Draws up to three lines; both axes begin at 0.

    Args:
        title: of the plot.
        across: what the horizontal axis shows, with its unit.
        up: the same for the vertical axis.
        lines: at least one point in all.
    """
    right = max(x for line in lines for x, _ in line.points) or 1.0
    top = _above(max(y for line in lines for _, y in line.points))

    def place(x: float, y: float) -> str:
        return f"{LEFT + x / right * (WIDTH - LEFT - RIGHT):.1f},{_height(y, top):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>',
    ]
    for tick in range(5):
        value, y = top * tick / 4, _height(top * tick / 4, top)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        at = LEFT + (WIDTH - LEFT - RIGHT) * tick / 4
        parts.append(
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{right * tick / 4:.3g}</text>'
        )
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{escape(across)}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 8}">{escape(up)}</text>')
    for number, line in enumerate(lines):
        points = line.points[:: max(len(line.points) // MOST, 1)]
        parts.append(f'<polyline class="line c{number}" points="{" ".join(place(x, y) for x, y in points)}"/>')
        above = _height(line.points[-1][1], top) - 8
        parts.append(
            f'<text class="c{number}" x="{WIDTH - RIGHT}" y="{above:.1f}" text-anchor="end">{escape(line.name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _height(y: float, top: float) -> float:
    return HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)


def _above(value: float) -> float:
    """The next number above that makes round quarters."""
    step = 1.0
    while step * 4 < value:
        step *= 2 if str(step)[0] in "15" else 2.5
    return step * 4
