"""Tables of text: aligned columns for terminals, and Markdown; safe for any text in a cell. Numbers as people write them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import msgspec

_UNITS = ((1e3, "us"), (1e6, "ms"), (1e9, "s"))


class Column(msgspec.Struct, frozen=True):
    """A column's title, and on which side its cells stand."""

    title: str
    right: bool = True


def human_time(ns: float) -> str:
    """A duration in ns with three digits and its unit: `7ns`, `1.23us`, `45.6ms`, `1,234s`."""
    if ns < 999.5:
        return f"{ns:.0f}ns"
    scale, unit = next((item for item in _UNITS if ns / item[0] < 999.5), _UNITS[-1])
    value = ns / scale
    return f"{value:.2f}{unit}" if value < 9.995 else f"{value:.1f}{unit}" if value < 99.95 else f"{value:,.0f}{unit}"


def human_number(value: float, digits: int = 4) -> str:
    """A number with so many digits, or as many as its whole part has: `0.001234`, `27.33`, `12,345`, `1.235e+15`."""
    return f"{value:,.0f}" if 10**digits - 0.5 <= abs(value) < 1e15 else f"{value:.{digits}g}"


def human_count(number: int, noun: str, plural: str = "s") -> str:
    """A number of things: `1 step`, `2 steps`, `12,345 steps`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{plural}"


def printable(text: str) -> str:
    """The text on one line: what a terminal would act on (controls, direction marks, joiners) is escaped.

    Joiners are escaped too because terminals disagree on how wide the joined emoji is.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _cells(text: str) -> list[tuple[str, int]]:
    """The characters that stand alone, each with the marks that belong to it, and how many columns they take."""
    cells: list[tuple[str, int]] = []
    for c in text:
        if c == "\ufe0f" and cells:  # asks for the emoji form of the character before, which is wide
            cells[-1] = (cells[-1][0] + c, 2)
        elif unicodedata.category(c) in ("Mn", "Me") and cells:
            cells[-1] = (cells[-1][0] + c, cells[-1][1])
        else:
            mark = unicodedata.category(c) in ("Mn", "Me")
            cells.append((c, 0 if mark else 2 if unicodedata.east_asian_width(c) in "WF" else 1))
    return cells


def columns(text: str) -> int:
    """How many columns of a terminal a printable text takes."""
    return len(text) if text.isascii() else sum(width for _, width in _cells(text))


def shorten(text: str, limit: int) -> str:
    """Takes out the middle of a printable text that is wider than `limit` columns: both ends tell names apart."""
    if columns(text) <= limit:
        return text
    cells = _cells(text)

    def take(part: Iterable[tuple[str, int]], room: int) -> list[str]:
        taken: list[str] = []
        for cell, width in part:
            room -= width
            if room < 0:
                break
            taken.append(cell)
        return taken

    tail = (limit - 3) // 2
    return "".join(take(cells, limit - 3 - tail)) + "..." + "".join(reversed(take(reversed(cells), tail)))


def text_table(head: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned with spaces, as wide as their widest cell, under a ruled title. Cells must be printable."""
    widths = [max(columns(cell) for cell in column) for column in zip([c.title for c in head], *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            " " * (width - columns(cell)) + cell if column.right else cell + " " * (width - columns(cell))
            for column, cell, width in zip(head, cells, widths, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line([c.title for c in head]), "  ".join("-" * width for width in widths), *map(line, rows)])


def markdown_code(text: str) -> str:
    """Any text as code in a cell of a Markdown table (GitHub flavour: pipes are escaped even in code)."""
    text = printable(text).replace("|", "\\|")
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}" if text.strip() else ""


def markdown_table(head: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """A table of GitHub flavoured Markdown. Cells are Markdown already."""
    lines = [[c.title for c in head], ["---:" if c.right else "---" for c in head], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percents(shares: Sequence[float]) -> list[float]:
    """Shares of a whole in percent with one digit, which add up to 100.0; those that a rounding would cost most are rounded up."""
    total = sum(shares)
    if total <= 0:
        return [0.0] * len(shares)
    exact = [1000 * share / total for share in shares]
    whole = [int(each) for each in exact]
    for at in sorted(range(len(exact)), key=lambda at: whole[at] - exact[at])[: 1000 - sum(whole)]:
        whole[at] += 1
    return [each / 10 for each in whole]
