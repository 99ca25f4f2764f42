"""Messages to the user on standard error, results as JSON, and streams that cannot be written."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, TextIO

import msgspec

from stepscope.runtime.files.encoding import json_bytes


def message(text: str) -> None:
    """Prints a line. Where standard error is closed or full nobody reads it, and the command goes on."""
    with contextlib.suppress(OSError, ValueError):  # the latter: a program that was run has closed it
        print(text, file=sys.stderr)
    discard_unwritten(sys.stderr)


def add_json(parser: Any, what: str) -> None:
    """Declares `--json`.

    Args:
        parser: of the command, or a group of its options.
        what: the thing that is printed, in words.
    """
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def print_json(value: object) -> None:
    """Prints a value as indented JSON; paths are texts."""
    print(msgspec.json.format(json_bytes(msgspec.to_builtins(value, enc_hook=str))).decode(), flush=True)


def print_any_text() -> None:
    """Lets standard output take paths with bytes that are not UTF-8, if it refuses what it cannot encode."""
    stream: Any = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")


def flush(stream: TextIO | None) -> None:
    """Writes what the stream has buffered.

    Raises:
        OSError: if that cannot be written.
    """
    if stream is not None:  # it is None where it was closed when the process began
        with contextlib.suppress(ValueError):  # a program that was run has closed it
            stream.flush()


def discard_unwritten(stream: TextIO | None) -> None:
    """Writes what the stream has buffered, or lets go of it: what cannot be written Python would try again at its exit, and
    make the exit code 120."""
    try:
        flush(stream)
    except OSError:
        assert stream is not None
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
