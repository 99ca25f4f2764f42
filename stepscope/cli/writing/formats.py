"""Formats of the commands that write a trace, and the options that choose one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from stepscope.exporters import formats as _formats
from stepscope.runtime.export.formats import exporter_for, known
from stepscope.runtime.settings.validation import did_you_mean

_REGISTERED = (_formats,)
"""Imported for the formats that it registers."""


def described(**more: str) -> str:
    """The formats with their file endings, a line each, for a command's help.

    Args:
        more: what to say of further formats, by their names.
    """
    rows = [(one.name, " ".join(one.suffixes)) for one in known()]
    lines = "\n".join(f"  {name:12} {text}" for name, text in [*rows, *more.items()])
    return f"formats and their file endings:\n{lines}"


def add_format(parser: argparse.ArgumentParser) -> None:
    """Declares `--format`."""
    parser.add_argument("--format", metavar="F", help="name of the format, if the ending of OUT does not say it")


def check(given: argparse.Namespace, target: Path, more: Iterable[str] = ()) -> None:
    """A format that nobody knows is wrong usage.

    Args:
        given: the arguments.
        target: the file to write.
        more: names of further formats that the command has.
    """
    names = sorted({*(one.name for one in known()), *more})
    if given.format is not None and given.format not in names:
        given.parser.error(f"unknown format {given.format!r}{did_you_mean(given.format, names)}")
    try:
        exporter_for(target, given.format)
    except ValueError as error:
        parser: argparse.ArgumentParser = given.parser
        parser.error(str(error))
