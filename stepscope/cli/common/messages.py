"""Messages to the user on standard error, results as text or JSON, a bar while work goes on, and streams that cannot be written."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Self, TextIO

import msgspec

from stepscope.runtime.display.text_table import human_count, printable, shorten
from stepscope.runtime.errors import INCOMPLETE
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.threads.background_call import start
from stepscope.runtime.threads.native_threads import Event, Thread


def message(text: str) -> None:
    """Prints a line. If standard error is closed or full, the command goes on."""
    with contextlib.suppress(OSError, ValueError):  # the latter: a program that was run has closed it
        print(text, file=sys.stderr)
    discard_unwritten(sys.stderr)


def on_terminal() -> bool:
    """True if standard error is a terminal."""
    with contextlib.suppress(ValueError):  # a program that was run has closed it
        return sys.stderr is not None and sys.stderr.isatty()
    return False


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


_STYLES = {
    r"(?m)\b(?:no end|incomplete|missing|not merged|damaged?)\b.*$": "yellow",
    r"(?m)\b(?:still open)\b": "cyan",
    r"(?m)^(?:recovered|completed|see it)\b": "green",
    r"(?m)^.+(?=\n-+(?:  +-+)*$)": "bold",
}
"""Patterns of important words in a result, and their styles. The last is the head of a table."""


def print_result(text: str) -> None:
    """Prints a text on standard output; on a terminal that shows some, problems in colour, and bold heads of tables."""
    stream: TextIO | None = sys.stdout  # it is None where it was closed when the process began
    if stream is None or not stream.isatty() or os.environ.get("NO_COLOR"):
        print(text)
        return
    from rich.console import Console
    from rich.text import Text

    made = Text(text)
    for pattern, style in _STYLES.items():
        made.highlight_regex(pattern, style)
    Console(highlight=False).print(made, soft_wrap=True)


MOST_NAMED = 20
"""Recordings that are named; the others are counted."""


def exit_code(unreadable: Sequence[object], damaged: Sequence[str] = ()) -> int:
    """The exit code. Standard error has a sentence if it is not 0, and the name of each recording.

    Args:
        unreadable: as texts: each names a recording, and says why it could not be read.
        damaged: sentences on files that could not be read whole.
    """
    counts = [f"{human_count(len(unreadable), 'recording')} could not be read"] if unreadable else []
    counts += [f"{human_count(len(damaged), 'file')} could be read in part only"] if damaged else []
    if not counts:
        return 0
    message(f"the result is not whole: {', '.join(counts)}")
    for text in [f"not read: {each}" for each in unreadable][:MOST_NAMED] + [*damaged][:MOST_NAMED]:
        message(printable(text))
    return INCOMPLETE


PROGRESS_DELAY_S = 1.0
"""Seconds before the bar appears."""

PROGRESS_INTERVAL_S = 0.1
"""Seconds between two drawings of it."""

PROGRESS_COLUMNS = 48
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
        if on_terminal():
            self._thread = Thread(target=self._draw, name="stepscope progress", daemon=True)
            start(self._thread)
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        began = time.monotonic()
        if self._done.wait(PROGRESS_DELAY_S):
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
            while not self._done.wait(PROGRESS_INTERVAL_S):
                bars.update(task, description=self._shown(), refresh=True)
        discard_unwritten(self._stream)

    def _shown(self) -> str:
        return shorten(printable(self._text), PROGRESS_COLUMNS)
