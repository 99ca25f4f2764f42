"""A line on the terminal while a command works for longer than a second."""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType
from typing import Self, TextIO

from stepscope.cli.common.messages import discard_unwritten
from stepscope.runtime.display.text_table import printable, shorten
from stepscope.runtime.threads.background_call import start
from stepscope.runtime.threads.native_threads import Event, Thread

DELAY = 1.0
"""Seconds before the line appears."""

INTERVAL = 0.1
"""Seconds between two drawings of it."""

WIDTH = 48
"""Columns of the text."""


class Progress:
    """Shows that the work of a `with` block goes on, and for how long, once it has taken a second; removes the line at its end.

    Nothing is shown, and no thread started, where standard error is no terminal. A terminal that goes away ends the line only.

    Args:
        text: the work, in words.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._stream: TextIO | None = sys.stderr
        self._done = Event()
        self._thread: Thread | None = None

    def show(self, text: str) -> None:
        """Changes the text. May be called for each of many events."""
        self._text = text

    def __enter__(self) -> Self:
        terminal = False
        with contextlib.suppress(ValueError):  # a program that was run has closed it
            terminal = self._stream is not None and self._stream.isatty()
        if terminal:
            self._thread = Thread(target=self._draw, name="stepscope progress", daemon=True)
            start(self._thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        began = time.monotonic()
        if self._done.wait(DELAY):
            return
        with contextlib.suppress(OSError, ValueError):
            while not self._done.wait(INTERVAL):
                self._write(f"{shorten(printable(self._text), WIDTH)}  {time.monotonic() - began:.0f} s")
            self._write("")
        discard_unwritten(self._stream)

    def _write(self, text: str) -> None:
        """Replaces the line by this text."""
        print(f"\r{text}\x1b[K", end="", file=self._stream, flush=True)
