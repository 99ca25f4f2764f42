"""Tables of text with aligned columns for terminals, and in Markdown, for any text in a cell; numbers for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import msgspec

_UNITS = ((1e3, "us"), (1e6, "ms"), (1e9, "s"))


class Column(msgspec.Struct, frozen=True):
    """A column's title, and whether its cells are aligned right."""

    title: str
    right: bool = True


def human_time(ns: float) -> str:
    """Returns a duration in ns with three digits and a unit: `7ns`, `1.23us`, `45.6ms`, `1,234s`."""
    if ns < 999.5:
        return f"{ns:.0f}ns"
    scale, unit = next((item for item in _UNITS if ns / item[0] < 999.5), _UNITS[-1])
    value = ns / scale
    return f"{value:.2f}{unit}" if value < 9.995 else f"{value:.1f}{unit}" if value < 99.95 else f"{value:,.0f}{unit}"


def human_number(value: float, digits: int = 4) -> str:
    """Returns a number with `digits` digits, or those of its whole part: `0.001234`, `27.33`, `12,345`, `1.235e+15`."""
    return f"{value:,.0f}" if 10**digits - 0.5 <= abs(value) < 1e15 else f"{value:.{digits}g}"


def human_count(number: int, noun: str, plural: str = "s") -> str:
    """Returns a number with a noun: `1 step`, `2 steps`, `12,345 steps`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{plural}"


def printable(text: str) -> str:
    """Escapes line breaks, controls, direction marks and joiners, so that a text stays on one line of a terminal.

    Joiners are escaped because terminals disagree on the width of a joined emoji.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _cells(text: str) -> list[tuple[str, int]]:
    """The characters, each with its combining marks and its width in columns."""
    cells: list[tuple[str, int]] = []
    for c in text:
        if c == "\ufe0f" and cells:  # selects the emoji form of the previous character, which is wide
            cells[-1] = (cells[-1][0] + c, 2)
        elif unicodedata.category(c) in ("Mn", "Me") and cells:
            cells[-1] = (cells[-1][0] + c, cells[-1][1])
        else:
            mark = unicodedata.category(c) in ("Mn", "Me")
            cells.append((c, 0 if mark else 2 if unicodedata.east_asian_width(c) in "WF" else 1))
    return cells


def columns(text: str) -> int:
    """Returns the width of a printable text in columns of a terminal."""
    return len(text) if text.isascii() else sum(width for _, width in _cells(text))


def shorten(text: str, limit: int) -> str:
    """Removes the middle of a printable text that is wider than `limit` columns. Both ends stay, as names differ there."""
    if columns(text) <= limit:
        return text
    cells = _cells(text)

    def fitting(part: Iterable[tuple[str, int]], room: int) -> list[str]:
        found: list[str] = []
        for cell, width in part:
            room -= width
            if room < 0:
                break
            found.append(cell)
        return found

    tail = (limit - 3) // 2
    return "".join(fitting(cells, limit - 3 - tail)) + "..." + "".join(reversed(fitting(reversed(cells), tail)))


def text_table(head: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table with columns aligned by spaces, under a ruled title. Cells must be printable."""
    widths = [max(columns(cell) for cell in column) for column in zip([c.title for c in head], *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            " " * (width - columns(cell)) + cell if column.right else cell + " " * (width - columns(cell))
            for column, cell, width in zip(head, cells, widths, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line([c.title for c in head]), "  ".join("-" * width for width in widths), *map(line, rows)])


def fitting_table(head: Sequence[Column], rows: Sequence[Sequence[str]], width: int, optional: Sequence[str]) -> str:
    """Returns a table without as many of the optional columns (titles), the first ones first, as it takes to fit the width."""
    table = text_table(head, rows)
    for number in range(1, len(optional) + 1):
        if max(map(columns, table.split("\n"))) <= width:
            break
        shown = [at for at, column in enumerate(head) if column.title not in optional[:number]]
        table = text_table([head[at] for at in shown], [[row[at] for at in shown] for row in rows])
    return table


def markdown_code(text: str) -> str:
    """Returns any text as code for a cell of a Markdown table (GitHub flavour: pipes are escaped even in code)."""
    text = printable(text).replace("|", "\\|")
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}" if text.strip() else ""


def markdown_table(head: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in GitHub flavoured Markdown. Cells must be Markdown."""
    lines = [[c.title for c in head], ["---:" if c.right else "---" for c in head], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percents(shares: Sequence[float]) -> list[float]:
    """Returns shares in percent with one digit that add up to 100.0: those with the largest remainders are rounded up."""
    total = sum(shares)
    if total <= 0:
        return [0.0] * len(shares)
    exact = [1000 * share / total for share in shares]
    whole = [int(each) for each in exact]
    for at in sorted(range(len(exact)), key=lambda at: whole[at] - exact[at])[: 1000 - sum(whole)]:
        whole[at] += 1
    return [each / 10 for each in whole]
