"""Makes commands.md of what the command line says of itself in `--help`. `python -m docs.commands`."""

from __future__ import annotations

import argparse
import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.cli.main import EPILOG, MOST_COLUMNS, parser

PAGE = Path(__file__).with_name("commands.md")
BEGINNING = """\
# Commands

`stepscope COMMAND --help` says the same in a terminal. This page is made of those texts: `make docs` writes it, and a test
compares them. An option that every command has: `--traceback` shows the traceback of an error.
"""
WIDTH = 10_000
"""Columns of the help that is read here, so that no text is wrapped."""
HELP_COLUMN = 80
"""Column at which the text of an option begins, right of the longest option."""
_ROW = re.compile(r"^ +(\S.*?)(?: {2,}(\S.*))?$", re.MULTILINE)
_REPEATED = re.compile(r"(--?[\w-]+) (\S+), (?=(?:--?[\w-]+ \2, )*--?[\w-]+ \2$)")
"""A name of an option before others with the same value; from Python 3.13 on argparse names the value once."""


def page() -> str:
    """The page as it should be."""
    parsers = _parsers()
    lines = [BEGINNING, "| command | does |", "| --- | --- |"]
    lines += [f"| [`{name}`](#stepscope-{name}) | {short} |" for name, (_, short) in parsers.items()]
    lines += ["", "```text", EPILOG.partition("\n\n")[0].strip(), "```", ""]
    for name, (one, _) in parsers.items():
        lines += [f"## stepscope {name}", "", *_command(one)]
    return "\n".join(lines).rstrip() + "\n"


def help_of(command: str) -> str:
    """Returns the text that `--help` of a command prints."""
    return _parsers()[command][0].format_help()


def _parsers() -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """Each command's parser, and what the list of commands says of it."""
    top = parser()
    top.formatter_class = _formatter()
    subparsers: Any = top._subparsers
    parsers: dict[str, argparse.ArgumentParser] = subparsers._group_actions[0].choices
    short = dict(_ROW.findall(top.format_help()))
    return {name: (one, short[name]) for name, one in parsers.items()}


def _formatter() -> functools.partial[argparse.RawDescriptionHelpFormatter]:
    return functools.partial(argparse.RawDescriptionHelpFormatter, width=WIDTH, max_help_position=HELP_COLUMN)


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields the description of a command, its usage, a table for each group of arguments, and examples."""
    parser.formatter_class = _formatter()
    description, epilog = (parser.description or "").strip(), (parser.epilog or "").strip()
    text = parser.format_help().strip().removesuffix(epilog)
    usage, _, rest = text.partition(description)
    usage = usage.removeprefix("usage: ").replace("[-h] ", "").replace("[--traceback] ", "")
    yield from ("```text", *(line.strip() for line in usage.strip().splitlines()), "```", "")
    for paragraph in description.split("\n\n"):
        is_list = "\n  " in paragraph
        yield from ("```text", paragraph, "```", "") if is_list else (_escaped(_refilled(paragraph)), "")
    _, *groups = re.split(r"^(\S.*):$", rest, flags=re.MULTILINE)
    for title, body in zip(groups[::2], groups[1::2], strict=True):
        rows: list[tuple[str, str]] = [row for row in _ROW.findall(body) if row[0] != "--traceback"]
        if not rows:
            continue
        about = "".join(f" ({name})" for name, text in rows if not text)
        rows = [row for row in rows if row[1] and not row[0].startswith("-h, --help")]
        if rows:
            yield from (f"| {title}{about} | |", "| --- | --- |")
            yield from (f"| `{_option(name)}` | {_cell(text)} |" for name, text in rows)
            yield ""
    if epilog:
        yield from ("```text", epilog, "```", "")


def _refilled(paragraph: str) -> str:
    """Without the line breaks that it has in this terminal."""
    return textwrap.fill(" ".join(paragraph.split()), MOST_COLUMNS, break_long_words=False, break_on_hyphens=False)


def _option(names: str) -> str:
    """An option and its value as newer Pythons write them, whatever this one is."""
    return _REPEATED.sub(r"\1, ", names).replace("|", r"\|")


def _cell(text: str) -> str:
    return _escaped(text).replace("|", r"\|")


def _escaped(text: str) -> str:
    return text.replace("*", r"\*").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
