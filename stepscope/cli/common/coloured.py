"""Results in colour on a terminal, and as plain text elsewhere."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.text import Text

_RULE = re.compile(r"-+(?:  +-+)*")
_STYLES = {
    r"(?m)\b(?:no end|incomplete|missing|not merged|damaged?)\b.*$": "yellow",
    r"(?m)\b(?:still open)\b": "cyan",
    r"(?m)^(?:recovered|completed|see it)\b": "green",
}
"""Patterns of what matters in a result, and how it looks."""


def print_result(text: str) -> None:
    """Prints a text on standard output, in colour if that is a terminal that shows some."""
    stream: TextIO | None = sys.stdout  # it is None where it was closed when the process began
    if stream is None or not stream.isatty() or os.environ.get("NO_COLOR"):
        print(text)
        return
    from rich.console import Console

    Console(highlight=False).print(styled(text), soft_wrap=True)


def styled(text: str) -> Text:
    """A text whose heads of tables are bold, and whose problems are in colour."""
    from rich.text import Text

    made = Text(text)
    for pattern, style in _STYLES.items():
        made.highlight_regex(pattern, style)
    lines = text.split("\n")
    at = 0
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if _RULE.fullmatch(below):
            made.stylize("bold", at, at + len(line))
        at += len(line) + 1
    return made
