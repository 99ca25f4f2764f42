"""A plot of the figures of all releases. `python -m benchmarks.harness.release_plot` makes it and the table of releases."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.harness.document import put
from benchmarks.harness.releases import PAGE, Release, Result, releases, section
from benchmarks.harness.table import figure

PLOT = PAGE.with_name("releases.svg")

WIDTH, LEFT, RIGHT, TOP = 900, 470, 110, 34
ROW_HEIGHT, BAR_HEIGHT = 16, 8
MAX_TITLE_CHARACTERS = 72

STYLE = """
  text { font: 11px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 14px; font-weight: 600; }
  .bar { fill: #8c959f; } .newest { fill: #0969da; }
  .range { stroke: #24292f; stroke-width: 1; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .bar { fill: #6e7681; } .newest { fill: #58a6ff; } .range { stroke: #e6edf3; }
  }
"""


def svg(found: Sequence[Release]) -> str:
    """Draws a group of bars for each row of the benchmarks: the median of each release, the oldest on top, and a line from its
    lowest to its highest sample. Each group has a scale of its own, which begins at 0.

    Args:
        found: the releases, the oldest first; one at least.
    """
    newest = found[-1]
    parts: list[str] = []
    y = float(TOP)
    for key, result in newest.rows.items():
        group = [(release, release.rows[key]) for release in found if key in release.rows]
        parts.append(_title(result.title, y + BAR_HEIGHT + 1))
        y = _group(parts, group, newest, y)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" role="img" aria-label="Benchmarks of all releases">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="8" y="20">{escape(", ".join(release.version for release in found))}: medians, lowest to highest</text>',
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _title(title: str, y: float) -> str:
    short = title if len(title) <= MAX_TITLE_CHARACTERS else title[: MAX_TITLE_CHARACTERS - 1] + "…"
    return f'<text x="8" y="{y:.1f}">{escape(short)}<title>{escape(title)}</title></text>'


def _group(parts: list[str], group: Sequence[tuple[Release, Result]], newest: Release, y: float) -> float:
    """Adds the bars of one row, and returns where the next row begins."""
    most = max(result.highest for _, result in group) or 1.0

    def across(value: float) -> float:
        return LEFT + max(value, 0.0) / most * (WIDTH - LEFT - RIGHT) if most > 0 else LEFT

    for release, result in group:
        style = "bar newest" if release is newest else "bar"
        middle = y + BAR_HEIGHT / 2
        parts.append(
            f'<rect class="{style}" x="{LEFT}" y="{y:.1f}" width="{across(result.median) - LEFT:.1f}" height="{BAR_HEIGHT}"/>'
        )
        parts.append(
            f'<line class="range" x1="{across(result.lowest):.1f}" x2="{across(result.highest):.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>'
        )
        text = f"{figure(result.median)} {result.unit}"
        parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{y + BAR_HEIGHT + 1:.1f}">{escape(text)}</text>')
        y += ROW_HEIGHT
    return y


if __name__ == "__main__":
    put(PAGE, "releases", section(releases()), title="Performance")
    PLOT.write_text(svg(releases()), encoding="utf-8")
