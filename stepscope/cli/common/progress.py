"""A bar on the terminal while a command works for longer than a second."""

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
"""Seconds before the bar appears."""

INTERVAL = 0.1
"""Seconds between two drawings of it."""

WIDTH = 48
"""Columns of the text: with bar and time the line fits into 80."""


class Progress:
    """Shows that the work of a `with` block goes on, and for how long, once it has taken a second; removes the bar at its end.

    Nothing is shown, and no thread started, where standard error is no terminal. A terminal that goes away ends the bar only.

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
        # Here, because it takes 0.1 s; and drawn by this thread, because one of rich's may be a greenlet under gevent.
        from rich import progress
        from rich.console import Console

        class NoCursorChange(Console):
            """Leaves the cursor as it is: a signal that ends the process would leave it hidden."""

            def show_cursor(self, show: bool = True) -> bool:
                return False

        bars = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(20),
            progress.TimeElapsedColumn(),
            console=NoCursorChange(file=self._stream),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        task = bars.add_task(self._shown(), total=None)
        bars.tasks[0].start_time = began
        with contextlib.suppress(OSError, ValueError), bars:
            while not self._done.wait(INTERVAL):
                bars.update(task, description=self._shown(), refresh=True)
        discard_unwritten(self._stream)

    def _shown(self) -> str:
        return shorten(printable(self._text), WIDTH)
