"""Messages to the user on standard error, and streams that cannot be written."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, TextIO


def message(text: str) -> None:
    """Prints a line. Where standard error is closed or full nobody reads it, and the command goes on."""
    with contextlib.suppress(OSError, ValueError):  # the latter: a program that was run has closed it
        print(text, file=sys.stderr)
    discard_unwritten(sys.stderr)


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
