"""The table of a window: read from a stream's file by a process of its own, kept for those who ask again."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from pathlib import Path

import msgspec

from stepscope.collector.bounded import CHUNK, ProcessBounds, bounded, ended
from stepscope.collector.problems import ProblemError
from stepscope.runtime.aggregates import Aggregates
from stepscope.runtime.errors import StepscopeError
from stepscope.runtime.events import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.summary import CounterRow, InstantRow, Summary, SummaryRow

KEPT = 64
"""Tables of closed windows that are kept."""
ROWS = 1000
"""Rows of a kind that are told; those that take most time."""
_AT_ONCE = 2
_MOST_BYTES = 16 << 20
"""Of a table, which has `ROWS` rows of a kind with names that are bounded, too."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What a window holds, per name and category. Times are in ns."""

    spans: tuple[SummaryRow, ...]
    """The largest self time first."""
    counters: tuple[CounterRow, ...]
    instants: tuple[InstantRow, ...]
    left_out: int
    """Rows beyond `ROWS` of a kind."""


def table(path: Path, window: int) -> Table:
    """Reads a window of a journal.

    Raises:
        OSError, FormatError: if it cannot be read.
    """
    aggregates = Aggregates()
    with JournalReader(path) as reader:
        for item in reader.items(window):
            if isinstance(item, EventBatch) and item.window == window:
                aggregates.update(item.events)
    summary = Summary.of(aggregates)
    kinds = (summary.rows, summary.counters, summary.instants)
    return Table(
        spans=summary.rows[:ROWS],
        counters=summary.counters[:ROWS],
        instants=summary.instants[:ROWS],
        left_out=sum(max(len(rows) - ROWS, 0) for rows in kinds),
    )


class Tables:
    """Tables by file and window. A process of its own reads: the names of all runs would fill this one's table of names."""

    def __init__(self, bounds: ProcessBounds | None = None) -> None:
        """Args: what the reading of one may take."""
        self._bounds = bounds or ProcessBounds(seconds=300.0)
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._kept: OrderedDict[tuple[Path, int], bytes] = OrderedDict()

    async def get(self, path: Path, window: int, *, closed: bool) -> bytes:
        """The table as JSON.

        Args:
            path: of the stream's file.
            window: its index.
            closed: whether it will not change any more.

        Raises:
            ProblemError: if it cannot be read.
        """
        key = (path, window)
        if key not in self._kept:
            async with self._turn:
                found = await self._read(path, window)
            if not closed:
                return found
            self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    async def _read(self, path: Path, window: int) -> bytes:
        arguments = ("-m", "stepscope.collector.tables", str(path), str(window))
        async with bounded(arguments, self._bounds, output=True) as process:
            assert process.stdout is not None and process.stderr is not None
            found, said = await asyncio.gather(_most(process.stdout), _most(process.stderr))
            status = await process.wait()
        if status:
            why = said.decode(errors="replace").strip()[-300:] or ended(status, self._bounds)
            raise ProblemError(500, f"the window could not be read: {why}")
        return found


async def _most(stream: asyncio.StreamReader) -> bytes:
    """What a process says.

    Raises:
        ProblemError: if it says more than anything that is asked of it.
    """
    said = bytearray()
    while chunk := await stream.read(CHUNK):
        said += chunk
        if len(said) > _MOST_BYTES:
            raise ProblemError(500, f"the window could not be read: its table has more than {_MOST_BYTES:,} bytes")
    return bytes(said)


def main(path: str, window: str) -> int:
    """Writes a table to standard output."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode(table(Path(path), int(window))))
    except (OSError, StepscopeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
