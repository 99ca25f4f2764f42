"""The table of a window: read from a stream's file by a process of its own."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from stepscope.collector.downloads.bounded import ProcessBounds, Turns, bounded, ended
from stepscope.collector.problems import ProblemError
from stepscope.runtime import _core
from stepscope.runtime.errors import NoWindowError, StepscopeError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import WindowOpened
from stepscope.runtime.windows.summary import CounterRow, InstantRow, Summary, SummaryRow
from stepscope.runtime.windows.window import Window

ROWS = 1000
"""Most rows of a kind in an answer: those that take most time."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of a window, per name and category. Times are in ns."""

    spans: tuple[SummaryRow, ...]
    """Rows of spans, the largest self time first."""
    counters: tuple[CounterRow, ...]
    instants: tuple[InstantRow, ...]
    left_out: int
    """Rows beyond `ROWS` of a kind."""


def table(path: Path, window: int) -> Table:
    """Reads a window of a journal. Raises `OSError` or `FormatError` if it cannot be read, and `NoWindowError` if there
    is no such window."""
    aggregates, found = _core.Aggregates(), False
    with JournalReader(path) as reader:
        for item in reader.items(window):
            if isinstance(item, EventBatch) and item.window == window:
                aggregates.update(item.events)
            found = found or isinstance(item, EventBatch | Window | WindowOpened)
    if not found:
        raise NoWindowError(f"there is no window {window} in this stream")
    summary = Summary.of(aggregates)
    kinds = (summary.rows, summary.counters, summary.instants)
    return Table(
        spans=summary.rows[:ROWS],
        counters=summary.counters[:ROWS],
        instants=summary.instants[:ROWS],
        left_out=sum(max(len(rows) - ROWS, 0) for rows in kinds),
    )


class Tables:
    """Tables by file and window. A process of its own reads: the names of all runs would fill this one's table of names. It is killed
    when nobody waits for it any more."""

    def __init__(self, bounds: ProcessBounds | None = None) -> None:
        """Args: what the reading of one may take."""
        self._bounds = bounds or ProcessBounds(seconds=300.0)
        self._turns = Turns("tables")

    async def get(self, path: Path, window: int) -> bytes:
        """The table as JSON. Raises `ProblemError` if there is no such window, it cannot be read, or too many wait."""
        arguments = ("-m", "stepscope.collector.web.tables", str(path), str(window))
        async with self._turns.one(), bounded(arguments, self._bounds, output=True) as process:
            found, errors = await process.communicate()
            status = process.returncode
        if status:
            why = errors.decode(errors="replace").strip()[-300:] or ended(status, self._bounds)
            if status == NoWindowError.exit_code:
                raise ProblemError(404, f"window {window} is not in what is kept of it")
            raise ProblemError(500, f"the window could not be read: {why}")
        return found

    async def send(self, path: Path, window: int) -> AsyncGenerator[bytes]:
        """The result of `get`, for an answer that ends when the client disconnects."""
        yield await self.get(path, window)


def main(path: str, window: str) -> int:
    """Writes a table to standard output."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode(table(Path(path), int(window))))
    except (OSError, StepscopeError) as error:
        print(error, file=sys.stderr)
        return error.exit_code if isinstance(error, NoWindowError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
