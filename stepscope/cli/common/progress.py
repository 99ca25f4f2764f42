"""A line on standard error that says how far long work has come."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

from stepscope.cli.common.messages import discard_unwritten
from stepscope.runtime.threads.background_call import start
from stepscope.runtime.threads.native_threads import Event, Thread

PLAIN_INTERVAL = 5.0
"""Seconds between two lines where there is no terminal."""

TERMINAL_INTERVAL = 0.1


class Progress:
    """Rewrites one line of a terminal; elsewhere it writes a line now and then, and always the last one.

    Args:
        stream: where to write; default: `sys.stderr`. Where that is closed or full nothing is shown.
        clock: seconds, monotonic.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._clock = clock
        self._terminal = False
        with contextlib.suppress(ValueError):  # a program that was run has closed it
            self._terminal = self._stream is not None and self._stream.isatty()
        self._shown_at = clock()
        self._pending = False

    def show(self, text: str) -> None:
        """Says how far it is; calls that come too soon after one another are left out."""
        now = self._clock()
        if now - self._shown_at < (TERMINAL_INTERVAL if self._terminal else PLAIN_INTERVAL):
            return
        self._shown_at = now
        self._pending = self._terminal
        self._write(text, self._terminal)

    def done(self, text: str) -> None:
        """Says how it ended, on a line that stays."""
        self._write(text, False)
        self._pending = False

    @contextmanager
    def during(self, text: str) -> Generator[None]:
        """Says every second that a block of work, which cannot say how far it is, still goes on."""
        done = Event()
        began = self._clock()

        def tick() -> None:
            while not done.wait(1):
                self.show(f"{text}, {self._clock() - began:.0f} s")

        thread = Thread(target=tick, name="stepscope progress", daemon=True)
        start(thread)
        try:
            yield
        finally:
            done.set()
            thread.join()
            if self._pending:
                self._put("\r\x1b[K")
                self._pending = False

    def _write(self, text: str, rewritten: bool) -> None:
        # \r and "erase to the end of the line" (ECMA-48 EL) let this line take the place of the one before.
        self._put(("\r\x1b[K" if self._terminal else "") + text + ("" if rewritten else "\n"))

    def _put(self, text: str) -> None:
        if self._stream is not None:  # it is None where standard error was closed when the process began
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
            discard_unwritten(self._stream)
